# SPDX-License-Identifier: Apache-2.0
# What tests/run.sh and tests/long.sh share: stages with time limits, whose results are counted. To be sourced, from the project's root.
# Sets `logs`, `passed`, `failed`, `skipped`, TMPDIR. Each stage's output is in $logs.
# shellcheck shell=sh

root=$(pwd)
JOBS=${JOBS:-$(nproc)}
# What is only sampled is drawn by the commit, so that each one tries others.
GACC_SAMPLE=${GACC_SAMPLE:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo none)}
export JOBS GACC_SAMPLE
# Seconds for each test, with its fixtures: one that hangs fails with all threads' stacks, and does not take its stage with it. Some have marks for more.
export PYTEST_TIMEOUT=${PYTEST_TIMEOUT:-$((300 * ${SLOW:-1}))}
started=$(date +%s)
passed=0 failed=0 skipped=0 number=0 child=
rm -rf "$logs"
mkdir -p "$logs"

# Everything that runs makes its temporary files and sockets here, so that what it leaves behind is seen.
# The path is short, for sockets, and open to the tests' second user.
TMPDIR=$(mktemp -d /tmp/gacc-tests.XXXXXX)
chmod 755 "$TMPDIR"
export TMPDIR
stop() {
	[ -z "$child" ] || kill "$child" 2>/dev/null || true
	"$root/deploy/leftovers.sh" end "$TMPDIR"
	rm -rf "$TMPDIR"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP

# Reads a stage's results off its log: sets p, f, s. One result if it has no counts of its own.
count() { # KIND RC LOG
	p=0 f=0 s=0
	case $1 in
	ctest) eval "$(awk -f "$root/tests/count-ctest.awk" "$3.xml" 2>/dev/null)" ;;
	pytest) eval "$(awk -f "$root/tests/count-pytest.awk" "$3")" ;;
	lines) eval "$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/p=\1 f=\2/p' "$3" | tail -n 1)" ;;
	esac
	if [ "$2" != 0 ] && [ "$f" = 0 ]; then
		f=1
	elif [ "$2" = 0 ] && [ "$((p + s))" = 0 ]; then
		[ "$1" = one ] && p=1 || f=1 # a stage that counts must have run something
	fi
}

# Runs a shell script as one stage, within a time limit. Returns whether it passed.
stage() { # NAME LIMIT_S KIND SCRIPT
	number=$((number + 1))
	log=$logs/$(printf '%02d' "$number")-$(echo "$1" | tr A-Z a-z | tr -cs 'a-z0-9\n' -).log
	export JUNIT="$log.xml"
	printf '%2d %-42s limit %5d s ' "$number" "$1" "$(($2 * ${SLOW:-1}))"
	begin=$(date +%s) rc=0
	timeout -k 20 "$(($2 * ${SLOW:-1}))" sh -euc "$4" >"$log" 2>&1 </dev/null &
	child=$!
	wait "$child" || rc=$?
	child=
	count "$3" "$rc" "$log"
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	printf '%5d s  %d passed, %d failed%s\n' "$(($(date +%s) - begin))" "$p" "$f" "$([ "$s" = 0 ] || echo ", $s skipped")"
	[ "$f" != 0 ] || return 0
	[ "$rc" != 124 ] || echo "   stopped: it took longer than its limit"
	echo "   $log:"
	{ grep -E '^FAILED|^ERROR|\*\*\*|:[EF]:|error:|Sanitizer:|runtime error' "$log" | head -n 30; echo ...; tail -n 12 "$log"; } |
		cut -c 1-240 | sed 's/^/   | /'
	return 1
}

skip() { # NAME WHY
	skipped=$((skipped + 1))
	printf '   %-42s skipped: %s\n' "$1" "$2"
}

# With asserts, but for what is built as users do.
build() { # DIR CC CMAKE-OPTIONS
	case $3 in *Release*) asserts=OFF ;; *) asserts=ON ;; esac
	debug='-O2 -g1 -DNDEBUG' # lines for sanitizers and backtraces; variables would take a sixth of the compilers' time
	cxx=$(echo "$2" | sed 's/gcc/g++/; s/clang/clang++/')
	stage "$1: build" 1800 one "
		cmake -G Ninja -S . -B build/test-$1 -DCMAKE_C_COMPILER=$2 -DCMAKE_CXX_COMPILER=$cxx -DGACC_WERROR=ON -DGACC_ASSERTS=$asserts \
			-DCMAKE_C_FLAGS_RELWITHDEBINFO='$debug' -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='$debug' $3
		cmake --build build/test-$1 -j $JOBS -- --quiet -k 0" || [ -x "build/test-$1/bin/gaccd" ]
}

# One more at a time than JOBS, since many wait.
unit() { # DIR LIMIT [PREFIX] [OPTIONS of ctest]
	stage "$1: unit and simulation tests" "$2" ctest "
		${3:-} ctest --test-dir build/test-$1 -j $((JOBS + 1)) --output-on-failure --no-tests=error ${4:-} \
			--output-junit \"\$JUNIT\" --test-output-size-passed 1000000 --test-output-size-failed 1000000"
}

# The system tests that MARKERS choose, JOBS files at a time and one more, since many wait, and then those of marker `campaign`, JOBS files at a time;
# at last, one after the other, those that need the machine for themselves (marker `alone`). WHERE: files or options of pytest, all files by default.
system() { # DIR LIMIT MARKERS WHAT [PREFIX] [WHERE]
	report=a seconds=$PYTEST_TIMEOUT
	case $1 in asan | tsan) seconds=$((2 * PYTEST_TIMEOUT)) ;; esac
	case $3 in
	'not '*) ;;
	*campaign*) report=aP ;; # how many kills, how long until all was whole again
	esac
	stage "$1: $4" "$2" pytest "
		failed=0
		run() {
			rc=0
			GACC_BUILD_DIR=$root/build/test-$1 PYTHONDONTWRITEBYTECODE=1 PYTEST_TIMEOUT=$seconds ${5:-} /usr/bin/python3 -m pytest -v -r$report --durations=25 -p no:cacheprovider \
				--basetemp=\"\$TMPDIR/p\" \"\$@\" ${6:-tests/system} || rc=\$?
			rm -rf \"\$TMPDIR/p\"
			[ \$rc = 0 ] || [ \$rc = 5 ] || failed=1 # 5: none is of this kind
		}
		run -n $((JOBS + 1)) --dist loadfile -m '($3) and not alone and not campaign'
		case '$3' in *'not campaign'*) ;; *campaign*) run -n $JOBS --dist loadfile -m '($3) and campaign and not alone' ;; esac
		case '$3' in *'not alone'*) ;; *) run -m '($3) and alone' ;; esac
		exit \$failed"
}

# clang 14's TSan cannot map its shadow where the kernel randomises addresses over 32 bits; gRPC, libuv and OpenBLAS are not instrumented.
tsan_prefix() {
	echo "env TSAN_OPTIONS=ignore_noninstrumented_modules=1$(! setarch -R true 2>/dev/null || echo ' setarch -R')"
}

# Files of system tests whose jobs may be on a device (TEST_DEVICE).
on_device="equivalence outcomes checkpoint inline sessions leaving kills control"

# Libraries that Debian has not, as references for tests: into build/python, which tests/system/conftest.py knows. With them root
# has all that any test needs: from here on a skip for want of something is a failure.
python_packages() {
	[ "$(id -u)" != 0 ] || export GACC_COMPLETE=1
	[ ! -d "$root/build/python/safetensors" ] || [ ! -d "$root/build/python/mypy" ] || [ ! -d "$root/build/python/nvidia" ] || return 0
	if [ "${OFFLINE:-0}" = 1 ] || ! stage "Python packages" 120 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore --retries 1 \
			--timeout 20 --no-deps --only-binary :all: --require-hashes --target '$root/build/python' -r tests/requirements.txt"; then
		failed=0 # it is the first stage that can
		unset GACC_COMPLETE
		skip "tests with the safetensors library" "PyPI cannot be reached, or OFFLINE=1"
	fi
}

# Sets `torch`: a command for a Python that has PyTorch and these packages, which are installed into build/python-torch (1 GB with Accelerate) if one is
# not there. "": there is none. Never needed: the benchmarks beside PyTorch, its example and gacc.torch's tests are passed over without it. Only the build
# for CPUs is asked for: PyPI's own for Linux brings CUDA, gigabytes of it.
torch_package() { # [NAME==VERSION...]
	torch="env PYTHONPATH=$root/build/python-torch /usr/bin/python3"
	wanted="torch==2.13.0+cpu $*" before=$failed
	if ! $torch -c 'import sys; from importlib.util import find_spec; sys.exit(not all(find_spec(w.partition("=")[0]) for w in sys.argv[1:]))' $wanted &&
		{ [ "${OFFLINE:-0}" = 1 ] || ! stage "PyTorch for CPUs" 1800 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
			--retries 1 --timeout 20 --only-binary :all: --upgrade --target '$root/build/python-torch' $wanted"; }; then
		failed=$before # what needs it is skipped
		torch=
	fi
}
no_torch="OFFLINE=1, or pip finds no torch==2.13.0+cpu (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL says where it is)"

# Tests of the Python package with a library; what that leaves in the folder for temporary files is deleted.
with_library() { # WHAT LIMIT PYTHON FILES
	stage "$1" "$2" pytest "
		rc=0
		mkdir \"\$TMPDIR/p\"
		GACC_BUILD_DIR=$root/build/test-gcc PYTHONDONTWRITEBYTECODE=1 TORCHINDUCTOR_CACHE_DIR=\"\$TMPDIR/p/inductor\" $3 -m pytest -v -ra --durations=10 \
			-p no:cacheprovider --basetemp=\"\$TMPDIR/p/tmp\" $4 || rc=\$?
		rm -rf \"\$TMPDIR/p\"
		exit \$rc"
}

# gacc.torch with PyTorch, and the adapters of the libraries that $torch has (tests of the others are skipped). After torch_package.
torch_tests() { # LIMIT WHAT [FILE...]
	limit=$1 what=$2
	shift 2
	if [ -n "$torch" ]; then
		with_library "$what" "$limit" "$torch" "-n $JOBS --dist loadfile ${*:-tests/python tests/pains}"
	else
		skip "$what" "$no_torch"
	fi
}

# gacc.colossalai with Colossal-AI 0.5, in a folder of its own before $torch's (410 MB): it brings an older transformers. Without what it depends on, since it
# asks for torch <= 2.5 and for much that its Booster does not import; it is built from source, and its setup.py imports torch. After torch_package.
colossalai_tests() {
	[ -n "$torch" ] || return 0
	colossalai="env PYTHONPATH=$root/build/python-colossalai:$root/build/python-torch /usr/bin/python3" before=$failed
	if ! $colossalai -c 'from importlib.util import find_spec; import sys; sys.exit(not find_spec("colossalai"))' && { [ "${OFFLINE:-0}" = 1 ] || ! stage "Colossal-AI" 600 one "
		PYTHONPATH='$root/build/python-torch' /usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
			--retries 1 --timeout 20 --no-deps --no-build-isolation --upgrade --target '$root/build/python-colossalai' colossalai==0.5.0 peft==0.13.2 \
			transformers==4.51.3 tokenizers==0.21.4 huggingface_hub==0.34.4 bitsandbytes==0.45.5 galore_torch==1.0 einops==0.8.2 regex requests urllib3 certifi \
			charset_normalizer pillow"; }; then
		failed=$before
		skip "gacc.colossalai with Colossal-AI" "OFFLINE=1, or pip finds no colossalai==0.5.0"
		return
	fi
	with_library "gacc.colossalai with Colossal-AI" 600 "$colossalai" "tests/python/test_colossalai.py tests/python/test_torch_examples.py"
}

# gacc.jax with JAX, in a folder of its own: it brings another numpy.
jax_tests() {
	jax="env PYTHONPATH=$root/build/python-jax /usr/bin/python3" before=$failed
	if ! $jax -c 'import jax' 2>/dev/null && { [ "${OFFLINE:-0}" = 1 ] || ! stage "JAX" 900 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
			--retries 1 --timeout 20 --only-binary :all: --upgrade --target '$root/build/python-jax' jax==0.7.2"; }; then
		failed=$before
		skip "gacc.jax" "OFFLINE=1, or pip finds no jax==0.7.2"
		return
	fi
	with_library "gacc.jax" 600 "$jax" tests/python/test_jax.py
}

# gacc.mindspore with MindSpore's build for CPUs (2.8 GB), in a folder of its own: it brings another protobuf, and was built against numpy 1.
mindspore_tests() {
	mindspore="env PYTHONPATH=$root/build/python-mindspore /usr/bin/python3" before=$failed
	if ! $mindspore -c 'from importlib.util import find_spec; import sys; sys.exit(not find_spec("mindspore"))' && { [ "${OFFLINE:-0}" = 1 ] || ! stage "MindSpore" 1800 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
			--retries 1 --timeout 20 --only-binary :all: --upgrade --target '$root/build/python-mindspore' mindspore==2.10.0 'numpy<2'"; }; then
		failed=$before
		skip "gacc.mindspore" "OFFLINE=1, or pip finds no mindspore==2.10.0"
		return
	fi
	with_library "gacc.mindspore" 900 "$mindspore" tests/python/test_mindspore.py
}

# The closing line; returns whether nothing failed.
summary() {
	seconds=$(($(date +%s) - started))
	echo "$((seconds / 60)) min $((seconds % 60)) s"
	if [ "$skipped" = 0 ]; then
		echo "$passed passed, $failed failed"
	else
		echo "$passed passed, $failed failed, $skipped skipped"
	fi
	[ "$failed" = 0 ]
}

# SPDX-License-Identifier: Apache-2.0
# What tests/run.sh and tests/long.sh share: stages with time limits, whose results are counted. To be sourced, from the project's root.
# Sets `logs`, `passed`, `failed`, `skipped`, TMPDIR. Each stage's output is in $logs.
# shellcheck shell=sh

root=$(pwd)
JOBS=${JOBS:-$(nproc)}
# What is only sampled is drawn by the commit, so that each one tries others.
GACC_SAMPLE=${GACC_SAMPLE:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo none)}
export JOBS GACC_SAMPLE
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
	cxx=$(echo "$2" | sed 's/gcc/g++/; s/clang/clang++/')
	stage "$1: build" 1800 one "
		cmake -G Ninja -S . -B build/test-$1 -DCMAKE_C_COMPILER=$2 -DCMAKE_CXX_COMPILER=$cxx -DGACC_WERROR=ON -DGACC_ASSERTS=$asserts $3
		cmake --build build/test-$1 -j $JOBS -- --quiet -k 0" || [ -x "build/test-$1/bin/gaccd" ]
}

unit() { # DIR LIMIT [PREFIX] [OPTIONS of ctest]
	stage "$1: unit and simulation tests" "$2" ctest "
		${3:-} ctest --test-dir build/test-$1 -j $JOBS --output-on-failure --no-tests=error ${4:-} \
			--output-junit \"\$JUNIT\" --test-output-size-passed 1000000 --test-output-size-failed 1000000"
}

# The system tests that MARKERS choose, JOBS files at a time and one more, since many wait; then, one after the other, those that need the machine for
# themselves (marker `alone`). WHERE: files or options of pytest, all files by default.
system() { # DIR LIMIT MARKERS WHAT [PREFIX] [WHERE]
	report=a
	case $3 in
	'not '*) ;;
	*campaign*) report=aP ;; # how many kills, how long until all was whole again
	esac
	stage "$1: $4" "$2" pytest "
		failed=0
		run() {
			rc=0
			GACC_BUILD_DIR=$root/build/test-$1 PYTHONDONTWRITEBYTECODE=1 ${5:-} /usr/bin/python3 -m pytest -v -r$report --durations=25 -p no:cacheprovider \
				--basetemp=\"\$TMPDIR/p\" \"\$@\" ${6:-tests/system} || rc=\$?
			rm -rf \"\$TMPDIR/p\"
			[ \$rc = 0 ] || [ \$rc = 5 ] || failed=1 # 5: none is of this kind
		}
		run -n $((JOBS + 1)) --dist loadfile -m '($3) and not alone and not campaign'
		run -m '($3) and (alone or campaign)'
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
	[ ! -d "$root/build/python/safetensors" ] || return 0
	if [ "${OFFLINE:-0}" = 1 ] || ! stage "Python packages" 120 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore --retries 1 \
			--timeout 20 --no-deps --only-binary :all: --require-hashes --target '$root/build/python' -r tests/requirements.txt"; then
		failed=0 # it is the first stage that can
		unset GACC_COMPLETE
		skip "tests with the safetensors library" "PyPI cannot be reached, or OFFLINE=1"
	fi
}

# Sets `torch`: a command for a Python that has PyTorch, which is downloaded into build/python-torch (some GB) if there is none. "": there is
# none. Never needed: the benchmarks beside PyTorch and its example are passed over without it.
torch_package() {
	torch="env PYTHONPATH=$root/build/python-torch /usr/bin/python3"
	if ! $torch -c 'import torch' 2>/dev/null && { [ "${OFFLINE:-0}" = 1 ] || ! stage "PyTorch" 1800 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
			--retries 1 --timeout 20 --only-binary :all: --target '$root/build/python-torch' torch==2.13.0"; }; then
		torch=
	fi
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

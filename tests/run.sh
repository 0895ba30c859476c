#!/bin/sh
# All tests, from nothing: installs packages (deploy/install-packages.sh), builds with gcc and clang, plain and with
# sanitizers, runs everything, goes on after a failure, and closes with the line "N passed, N failed".
#   JOBS=n     parallel compilers and tests (all cores)
#   QUICK=1    gcc, unit tests and system tests only
#   OFFLINE=1  do not install packages
#   SLOW=n     multiply the stages' time limits (1)
#   KILLS=n    SIGKILLs of the fault campaign (320)
#   FUZZ=n     seconds of each fuzz target (60)
# Each stage's output is in build/test-logs.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
JOBS=${JOBS:-$(nproc)}
export JOBS
started=$(date +%s)
passed=0 failed=0 skipped=0 number=0 child=
logs=$root/build/test-logs
rm -rf "$logs"
mkdir -p "$logs"

# Everything that runs makes its temporary files and sockets here, so that what it leaves behind is seen.
# The path is short, for sockets, and open to the tests' second user.
TMPDIR=$(mktemp -d /tmp/gacc-tests.XXXXXX)
chmod 755 "$TMPDIR"
export TMPDIR
snapshot=$logs/shm-before
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
stage() { # NAME BUDGET_S KIND SCRIPT
	number=$((number + 1))
	log=$logs/$(printf '%02d' "$number")-$(echo "$1" | tr A-Z a-z | tr -cs 'a-z0-9\n' -).log
	export JUNIT="$log.xml"
	printf '%2d %-34s limit %4d s ' "$number" "$1" "$(($2 * ${SLOW:-1}))"
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
	printf '   %-34s skipped: %s\n' "$1" "$2"
}

build() { # DIR CC CMAKE-OPTIONS
	cxx=$(echo "$2" | sed 's/gcc/g++/; s/clang/clang++/')
	stage "$1: build" 1800 one "
		cmake -G Ninja -S . -B build/test-$1 -DCMAKE_C_COMPILER=$2 -DCMAKE_CXX_COMPILER=$cxx -DGACC_WERROR=ON $3
		cmake --build build/test-$1 -j $JOBS -- --quiet -k 0" || [ -x "build/test-$1/bin/gaccd" ]
}

unit() { # DIR LIMIT [PREFIX]
	stage "$1: unit and simulation tests" "$2" ctest "
		${3:-} ctest --test-dir build/test-$1 -j $JOBS --output-on-failure --no-tests=error \
			--output-junit \"\$JUNIT\" --test-output-size-passed 1000000 --test-output-size-failed 1000000"
}

# The tests get the build by GACC_BUILD_DIR. Markers: `smoke` is the part for sanitizers, `campaign` the fault campaign.
system() { # DIR LIMIT MARKERS WHAT [PREFIX]
	report=a
	case $3 in
	'not '*) ;;
	*campaign*) report=aP ;; # how many kills, how long until all was whole again
	esac
	stage "$1: $4" "$2" pytest "
		rc=0
		GACC_BUILD_DIR=$root/build/test-$1 PYTHONDONTWRITEBYTECODE=1 ${5:-} /usr/bin/python3 -m pytest -r$report \
			-p no:cacheprovider --basetemp=\"\$TMPDIR/p\" -m '$3' tests/system || rc=\$?
		rm -rf \"\$TMPDIR/p\"
		exit \$rc"
}

echo "gacc tests on $JOBS of $(nproc) cores; logs in $logs"
if ! stage "packages" 900 one 'deploy/install-packages.sh'; then
	echo "$passed passed, $failed failed"
	exit 1
fi
# Libraries that Debian has not, as references: into build/python, which tests/system/conftest.py knows.
python=$root/build/python
if [ ! -d "$python/safetensors" ]; then
	if [ "${OFFLINE:-0}" = 1 ] || ! stage "Python packages" 120 one "
		/usr/bin/python3 -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore --retries 1 \
			--timeout 20 --no-deps --only-binary :all: --require-hashes --target '$python' -r tests/requirements.txt"; then
		failed=0 # it is the first stage that can
		skip "tests with the safetensors library" "PyPI cannot be reached, or OFFLINE=1"
	fi
fi
deploy/leftovers.sh snapshot "$snapshot"

if build gcc gcc ""; then
	unit gcc 600 || true
	system gcc 1200 'not campaign and not failpoints' "system tests" || true
	[ "${QUICK:-0}" = 1 ] || system gcc 1800 campaign "fault campaign and soak" \
		"env GACC_KILLS=${KILLS:-320} GACC_CAMPAIGN_S=20 GACC_SOAK_S=45" || true
else
	skip "gcc: tests" "the build failed"
fi

# the campaigns in a build with sanitizers
short="env GACC_KILLS=30 GACC_CAMPAIGN_S=10 GACC_SOAK_S=15"

if [ "${QUICK:-0}" != 1 ]; then
	if build clang clang ""; then
		unit clang 600 || true
	else
		skip "clang: tests" "the build failed"
	fi

	if build asan clang "-DGACC_SANITIZE=address,undefined"; then
		unit asan 1200 || true
		system asan 1800 'smoke or campaign' "system tests and faults, ASan+UBSan" "$short" || true
	else
		skip "asan: tests" "the build failed"
	fi

	# clang 14's TSan cannot map its shadow where the kernel randomises addresses over 32 bits; gRPC, libuv and OpenBLAS are
	# not instrumented
	fixed='env TSAN_OPTIONS=ignore_noninstrumented_modules=1'
	setarch -R true 2>/dev/null && fixed="$fixed setarch -R"
	if build tsan clang "-DGACC_SANITIZE=thread"; then
		unit tsan 1200 "$fixed" || true
		system tsan 1800 'smoke or campaign' "system tests and faults, TSan" "$fixed $short" || true
	else
		skip "tsan: tests" "the build failed"
	fi

	if build failpoints gcc "-DGACC_FAILPOINTS=ON -DCMAKE_BUILD_TYPE=Release"; then # as users build it: -O3, without assert
		system failpoints 900 failpoints "every failpoint, every action" || true
	else
		skip "failpoints: tests" "the build failed"
	fi

	if [ -e tests/model/run.sh ]; then
		stage "protocol models (spin)" 900 lines 'sh tests/model/run.sh' || true
	else
		skip "protocol models (spin)" "no tests/model/run.sh"
	fi
	if [ -e tests/fuzz/run.sh ]; then
		stage "fuzzing, briefly" 1800 lines "SECONDS_EACH=${FUZZ:-60} sh tests/fuzz/run.sh" || true
	else
		skip "fuzzing, briefly" "no tests/fuzz/run.sh"
	fi
fi

stage "nothing is left behind" 30 one "deploy/leftovers.sh check '$snapshot' '$TMPDIR'" || true

seconds=$(($(date +%s) - started))
echo "$((seconds / 60)) min $((seconds % 60)) s"
if [ "$skipped" = 0 ]; then
	echo "$passed passed, $failed failed"
else
	echo "$passed passed, $failed failed, $skipped skipped"
fi
[ "$failed" = 0 ]

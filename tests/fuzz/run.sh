#!/bin/sh
# Builds the fuzz targets with clang and runs each for SECONDS_EACH (10) from its corpus; new inputs go to a temporary folder. A
# night's run: SECONDS_EACH=80000 JOBS=8 sh tests/fuzz/run.sh
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
seconds=${SECONDS_EACH:-10}
build=build/test-fuzz
cmake -G Ninja -S . -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGACC_FUZZ=ON -DGACC_TESTS=OFF \
	-DGACC_SANITIZE=address,undefined >/dev/null
targets="messages spec config control session safetensors"
# shellcheck disable=SC2086
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target $(printf 'fuzz_%s ' $targets) >/dev/null
found=$(mktemp -d "${TMPDIR:-/tmp}/gacc-fuzz.XXXXXX")
trap 'rm -rf "$found"' EXIT
passed=0 failed=0
for t in $targets; do
	mkdir "$found/$t"
	if "$build/bin/fuzz_$t" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$root/build/fuzz-$t-" "$found/$t" "tests/fuzz/corpus/$t" >"$found/log" 2>&1; then
		passed=$((passed + 1))
		echo "$t: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs, nothing found"
	else
		failed=$((failed + 1))
		echo "$t: FAILED; the input is in build/fuzz-$t-*"
		tail -n 40 "$found/log"
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

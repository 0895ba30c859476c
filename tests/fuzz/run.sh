#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets with clang and runs each for SECONDS_EACH (60) from its corpus, JOBS (all cores) at a time. Inputs that reach
# new code go to CORPUS, a folder that is kept, or to a temporary one. tests/long.sh fuzz runs for hours.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
export SECONDS_EACH="${SECONDS_EACH:-60}" build=build/test-fuzz root
jobs=${JOBS:-$(nproc)}
targets=${TARGETS:-messages spec config control cluster session attach safetensors mailbox rank_states}
cmake -G Ninja -S . -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGACC_FUZZ=ON -DGACC_TESTS=OFF \
	-DGACC_SANITIZE=address,undefined -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O2 -g1 -DNDEBUG' -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O2 -g1 -DNDEBUG' >/dev/null
temporary=$(mktemp -d "${TMPDIR:-/tmp}/gacc-fuzz.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
# shellcheck disable=SC2046,SC2086
if ! cmake --build "$build" -j "$jobs" --target $(printf 'fuzz_%s ' $targets) >"$temporary/build" 2>&1; then
	grep -E -A 5 'error:|FAILED' "$temporary/build"
	exit 1
fi
export found="${CORPUS:-$temporary}" logs="$temporary"

# shellcheck disable=SC2016 # expanded by the inner shell
one='
	mkdir -p "$found/$1"
	if "$build/bin/fuzz_$1" -max_total_time="$SECONDS_EACH" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$root/build/fuzz-$1-" "$found/$1" "tests/fuzz/corpus/$1" >"$logs/$1.log" 2>&1; then
		echo "$1: $(sed -n "s/^stat::number_of_executed_units: *//p" "$logs/$1.log") inputs, nothing found"
	else
		echo "$1: FAILED; the input is in build/fuzz-$1-*"
		tail -n 40 "$logs/$1.log"
	fi'
# shellcheck disable=SC2086
printf '%s\n' $targets | xargs -P "$jobs" -I{} sh -c "$one" sh {} >"$temporary/results"
cat "$temporary/results"
passed=$(grep -c ' nothing found$' "$temporary/results" || true)
failed=$(($(echo $targets | wc -w) - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

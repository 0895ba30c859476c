#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A night of fuzzing: tests/fuzz/long.sh HOURS [TARGET...]. All targets run at once, nicely, and go on from what earlier nights found in
# build/fuzz-corpus; at the end that is reduced to the inputs that matter. An input that breaks something is left as build/fuzz-TARGET-*:
# it belongs into tests/fuzz/corpus, with a unit test.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 HOURS [TARGET...]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
hours=$1
shift
TARGETS=${*:-messages spec config control cluster session attach safetensors mailbox rank_states}
export TARGETS SECONDS_EACH=$((hours * 3600)) CORPUS="$root/build/fuzz-corpus"
JOBS=$(echo "$TARGETS" | wc -w)
export JOBS
status=0
nice -n 10 sh "$here/run.sh" || status=$?
for t in $TARGETS; do
	mkdir -p "$CORPUS/$t.least"
	if "$root/build/test-fuzz/bin/fuzz_$t" -merge=1 "$CORPUS/$t.least" "$CORPUS/$t" >/dev/null 2>&1; then
		rm -rf "${CORPUS:?}/$t"
		mv "$CORPUS/$t.least" "$CORPUS/$t"
	fi
done
exit "$status"

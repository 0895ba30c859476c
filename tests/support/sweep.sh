#!/bin/sh
# sweep.sh BUILD: every n of the n-th-failure sweeps, of which CTest runs every k-th (tests/unit/store/torture.h). About two minutes.
set -eu
failed=0
for program in "$1"/bin/torture_*; do
	TORTURE_EVERY=1 "$program" || failed=1
done
exit "$failed"

#!/bin/sh
# The long fault campaign: random SIGKILLs until there have been 10,000 (or KILLS=n), on a build with the tests in it.
#
#   tests/campaign.sh [BUILD_DIR]      (build/test-gcc)
#
# Prints the seed; GACC_SEED=n repeats the choices, not the moments.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
GACC_KILLS=${KILLS:-10000} exec /usr/bin/python3 -m pytest -s -p no:cacheprovider -m campaign "$root/tests/system/test_campaign.py" \
	--build "${1:-$root/build/test-gcc}"

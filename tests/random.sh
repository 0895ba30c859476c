#!/bin/sh
# Random jobs, compared with a numpy program bit for bit: thousands of them (or SEEDS=n), on a build with the tests in it.
#
#   tests/random.sh [BUILD_DIR]      (build/test-gcc)
#
# SEED=n is the first one. A seed repeats the job and its faults, not the moments.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
GACC_SEEDS=${SEEDS:-3000} GACC_SEED=${SEED:-1} exec /usr/bin/python3 -m pytest -s -p no:cacheprovider "$root/tests/system/test_random_jobs.py" \
	--build "${1:-$root/build/test-gcc}"

#!/bin/sh
# Half an hour (or MINUTES) of jobs that come and go while trainers and engines die; memory and descriptors must stay flat.
#
#   tests/soak.sh [MINUTES] [BUILD_DIR]      (30, build/test-gcc)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
GACC_SOAK_S=$((${1:-30} * 60)) exec /usr/bin/python3 -m pytest -s -p no:cacheprovider -m campaign "$root/tests/system/test_soak.py" \
	--build "${2:-$root/build/test-gcc}"

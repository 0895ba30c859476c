#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Debian packages of this tree, with Debian's hardening flags:  build-packages.sh BUILD-DIR [CMAKE-OPTIONS]
# They lie in BUILD-DIR/packages.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
shift
cd "$root" # which the flags take out of the paths in the debug information
export DEB_BUILD_MAINT_OPTIONS=hardening=+bindnow
eval "$(dpkg-buildflags --export=sh)"
CFLAGS="$CFLAGS $CPPFLAGS" CXXFLAGS="$CXXFLAGS $CPPFLAGS" cmake -G Ninja -S . -B "$build" -DCMAKE_INSTALL_PREFIX=/usr \
	-DCMAKE_BUILD_TYPE=RelWithDebInfo -DGACC_TESTS=OFF "$@"
cmake --build "$build" -j "${JOBS:-$(nproc)}" -- --quiet
cd "$build"
cpack -B packages

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A tarball of a build that runs on a node of another distribution, where nothing is installed for it:
#   bundle.sh [--host] BUILD_DIR FILE.tar.gz
# It holds the programs, their libraries but for those of glibc, unit tests, benchmarks, data for a small training job, and run.sh
# (bundle-run.sh), which measures in stages. It compiles nothing. The programs find their libraries by RPATH, so the environment stays
# as it is for the trainers that they start. --host: the CUDA plug-in is left out even if it is built.
set -eu

fail() {
	echo "bundle: $*" >&2
	exit 1
}
host=
[ "${1:-}" != --host ] || { host=1; shift; }
[ $# = 2 ] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
build=$1 out=$2 max_mib=50 samples=2000
root=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$build/bin/gaccd" ] || fail "$build/bin/gaccd: there is no such program; build first"
data=${DATASETS:-/usr/share/datasets}/fashion-mnist
[ -d "$data" ] || fail "$data: not there (Debian: dataset-fashion-mnist)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
top=$work/gacc
mkdir -p "$top/bin" "$top/lib" "$top/tests/golden" "$top/data" "$top/share"

# ---- programs ----

tests='math_arena math_golden math_init math_kernels math_norm_tree math_optim math_reference
	engine_arith engine_box engine_box_kill engine_boxes engine_comm engine_fill engine_joining engine_kill engine_parts engine_process
	engine_shards engine_snapshot engine_step_parts engine_sum_parts engine_update'
for name in gaccd gaccctl mlp linear bench_kernels bench_step bench_push gpu_probe $tests; do
	[ -x "$build/bin/$name" ] || { echo "bundle: $name is not built and is left out" >&2; continue; }
	cp "$build/bin/$name" "$top/bin"
done
cp -L "$build/lib/libgacc.so.0" "$top/lib"
plugin=no
if [ -z "$host" ] && [ -e "$build/lib/gacc_cuda.so" ]; then
	cp -L "$build/lib/gacc_cuda.so" "$top/lib"
	plugin=yes
fi

# ---- their libraries ----

# glibc's own go with the node's kernel and loader; the driver's come with the driver
of_the_node='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|mvec|anl|nsl)|libcuda|libnvidia-.*)\.so'
for file in "$top"/bin/* "$top"/lib/*; do
	ldd "$file" || fail "ldd $file failed"
done >"$work/ldd"
! grep 'not found' "$work/ldd" >&2 || fail "libraries are missing (above)"
awk '$2 == "=>" { print $1, $3 }' "$work/ldd" | sort -u | while read -r name path; do
	echo "$name" | grep -qE "$of_the_node" && continue
	[ -e "$top/lib/$name" ] || cp -L "$path" "$top/lib/$name"
done
strip --strip-unneeded "$top"/bin/* "$top"/lib/*

# RUNPATH of a library would hide the programs' RPATH from it, and a program without RPATH would take the node's libraries
for file in "$top"/bin/* "$top"/lib/*; do
	dynamic=$(readelf -d "$file")
	case $dynamic in *'(RUNPATH)'*) fail "$file has a RUNPATH, so that it does not find the bundle's libraries" ;; esac
	case $file in "$top"/lib/*) continue ;; esac
	case $dynamic in *'(RPATH)'*'[$ORIGIN/../lib'*) ;; *) fail "$file has no RPATH \$ORIGIN/../lib" ;; esac
done
glibc=$(for file in "$top"/bin/* "$top"/lib/*; do objdump -T "$file"; done | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
glibc=${glibc#GLIBC_}

# ---- data ----

cp "$root/tests/golden/golden.bin" "$top/tests/golden"
cp "$root/LICENSE" "$top"
[ ! -e "$build/proto/gacc.protoset" ] || cp "$build/proto/gacc.protoset" "$top/share"
# The first samples of each file: the header with another number, then the bytes.
cut_idx() {
	size=$(($3 * samples))
	[ "$3" = 1 ] && printf '\000\000\010\001\000\000\007\320' || printf '\000\000\010\003\000\000\007\320\000\000\000\034\000\000\000\034'
	gzip -dc "$data/$1.gz" | tail -c "+$(($2 + 1))" | head -c "$size"
}
for set in train t10k; do
	cut_idx $set-images-idx3-ubyte 16 784 >"$top/data/$set-images-idx3-ubyte"
	cut_idx $set-labels-idx1-ubyte 8 1 >"$top/data/$set-labels-idx1-ubyte"
	[ "$(cat "$top/data/$set-"* | wc -c)" = $((16 + 8 + samples * 785)) ] || { echo "bundle.sh: $data has no $samples images and labels of \"$set\"" >&2; exit 1; }
done
[ ! -e /usr/share/doc/dataset-fashion-mnist/copyright ] || cp /usr/share/doc/dataset-fashion-mnist/copyright "$top/data/COPYRIGHT"

# ---- the script ----

cp "$root/deploy/bundle-run.sh" "$top/run.sh"
chmod 755 "$top/run.sh"
{
	echo "version=$("$build/bin/gaccd" --version | tr ' ' _)"
	echo "build_type=$(sed -n 's/^CMAKE_BUILD_TYPE:STRING=//p' "$build/CMakeCache.txt")"
	echo "glibc=$glibc"
	echo "machine=$(uname -m)"
	echo "plugin=$plugin"
} >"$top/facts"

tar -C "$work" --owner=0 --group=0 --numeric-owner --sort=name -cf "$work/tar" gacc
gzip <"$work/tar" >"$work/gz"
bytes=$(stat -c %s "$work/gz")
[ "$bytes" -le $((max_mib << 20)) ] || fail "$((bytes >> 20)) MiB, more than $max_mib"
cp "$work/gz" "$out"
echo "bundle: $out, $(((bytes + 524288) >> 20)) MiB, needs glibc $glibc or newer"
[ $plugin = yes ] || echo "bundle: without the CUDA plug-in (${host:+--host}${host:-it is not built}); its rows say so" | sed 's/--host1/--host/'

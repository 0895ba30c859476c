#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A tarball of a build that runs on a node of another distribution, where nothing is installed for it:
#   bundle.sh [--host] BUILD_DIR FILE.tar.gz
# It holds the programs, their libraries but for those of glibc, unit tests, benchmarks, data for a small training job, and run.sh
# (bundle-run.sh), which measures in stages. It compiles nothing. The programs find their libraries by RPATH, so the environment stays
# as it is for the trainers that they start. With the CUDA plug-in, if it is built with kernels, come what the stages for a GPU run, and a
# trainer for GPUs; the driver is the node's. --host: all that is left out.
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
gpu_tests='cuda_pass cuda_update cuda_engine engine_program mlp_cuda'
plugin=no
[ -n "$host" ] || [ ! -e "$build/lib/gacc/gacc_cuda.so" ] || [ ! -e "$build/lib/gacc_cuda.fatbin" ] || plugin=yes
[ $plugin = yes ] || gpu_tests=
for name in gaccd gaccctl mlp linear bench_kernels bench_step bench_push gpu_probe $tests $gpu_tests; do
	[ -x "$build/bin/$name" ] || { echo "bundle: $name is not built and is left out" >&2; continue; }
	cp "$build/bin/$name" "$top/bin"
done
cp -L "$build/lib/libgacc.so.0" "$top/lib"
if [ $plugin = yes ]; then
	mkdir "$top/lib/gacc"
	cp "$build/lib/gacc/gacc_cuda.so" "$top/lib/gacc" # where gaccd looks
	[ ! -e "$build/lib/mlp_cuda.fatbin" ] || cp "$build/lib/mlp_cuda.fatbin" "$top/lib"
	cp "$root/client/examples/torch_offload.py" "$root/client/examples/linear.py" "$root/client/examples/attach_socket.py" \
		"$root/client/examples/protoset.py" "$top/share"
fi

# ---- their libraries ----

# glibc's own go with the node's kernel and loader; the driver's come with the driver
of_the_node='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|mvec|anl|nsl)|libcuda|libnvidia-.*)\.so'
objects=$(find "$top/bin" "$top/lib" -type f ! -name '*.fatbin')
for file in $objects; do
	ldd "$file" || fail "ldd $file failed"
done >"$work/ldd"
! grep 'not found' "$work/ldd" >&2 || fail "libraries are missing (above)"
awk '$2 == "=>" { print $1, $3 }' "$work/ldd" | sort -u | while read -r name path; do
	echo "$name" | grep -qE "$of_the_node" && continue
	[ -e "$top/lib/$name" ] || cp -L "$path" "$top/lib/$name"
done
objects=$(find "$top/bin" "$top/lib" -type f ! -name '*.fatbin') # with those
# shellcheck disable=SC2086 # a list of files; none of our names has a space, nor has that of mktemp
strip --strip-unneeded $objects

# RUNPATH of a library would hide the programs' RPATH from it, and a program without RPATH would take the node's libraries
for file in $objects; do
	dynamic=$(readelf -d "$file")
	case $dynamic in *'(RUNPATH)'*) fail "$file has a RUNPATH, so that it does not find the bundle's libraries" ;; esac
	case $file in "$top"/lib/*) continue ;; esac
	case $dynamic in *'(RPATH)'*'[$ORIGIN/../lib'*) ;; *) fail "$file has no RPATH \$ORIGIN/../lib" ;; esac
done
glibc=$(for file in $objects; do objdump -T "$file"; done | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
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
[ $plugin = yes ] || echo "bundle: without the CUDA plug-in ($([ -n "$host" ] && echo --host || echo "it is not built, or without nvcc")); its rows say so"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In a bundle of deploy/bundle.sh: checks and measures this node, in stages of 8 minutes at most.
#   run.sh list            the stages
#   run.sh STAGE...        each prints its rows: number, what, result; "all" is every stage, one after the other
# The numbers are those of the list of checks for GPUs; 0 is for the machine and for what needs no GPU. A row that cannot be had says "not run" and why.
# Ends with 1 if a row is FAILED or LOST. Files are below TMPDIR (/tmp) and are gone at the end.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
limit=480
stages='facts math engine smoke kernels step push gpu-bits gpu-survival gpu-late gpu-copy gpu-ready gpu-system gpu-sanitizer gpu-nccl gpu-torch gpu-mps'

fact() {
	sed -n "s/^$1=//p" "$here/facts"
}
row() {
	printf '%-2s  %-58s  %s\n' "$1" "$2" "$3"
	case $3 in FAILED* | LOST*) echo >>"$work/failed" ;; esac
}

# One sentence instead of the loader's "version GLIBC_.. not found" for each library.
check_node() {
	[ "$(uname -m)" = "$(fact machine)" ] || { echo "run.sh: this bundle is for $(fact machine), and this machine is $(uname -m)" >&2; exit 2; }
	have=${GACC_GLIBC:-$(getconf GNU_LIBC_VERSION 2>/dev/null || true)}
	have=${have#glibc }
	[ -n "$have" ] || { echo "run.sh: this system has no glibc, and the programs need glibc $(fact glibc) or newer" >&2; exit 2; }
	oldest=$(printf '%s\n%s\n' "$have" "$(fact glibc)" | sort -V | head -n 1)
	[ "$oldest" = "$(fact glibc)" ] ||
		{ echo "run.sh: the programs need glibc $(fact glibc) or newer, and this node has $have: build the bundle on an older distribution" >&2; exit 2; }
}

# Runs it within what is left of the stage's time; its output is in $work/out.
bounded() {
	left=$((end - $(date +%s)))
	[ $left -gt 0 ] || left=1
	timeout -k 5 $left "$@" >"$work/out" 2>&1 </dev/null
}
why() {
	[ "$1" != 124 ] && [ "$1" != 137 ] || { echo "FAILED: not done within the stage's $limit s"; return; }
	echo "FAILED ($1): $(grep -v '^100%' "$work/out" | tail -n 1 | cut -c 1-300)"
}

# ---- stages ----

stage_facts() {
	row 0 version "$(fact version), $(fact build_type)"
	distribution=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\).*/\1/p' /etc/os-release 2>/dev/null || true)
	row 0 system "${distribution:-no /etc/os-release}, Linux $(uname -r), glibc $have (needs $(fact glibc))"
	row 0 processor "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(getconf _NPROCESSORS_ONLN) CPUs"
	row 0 memory "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), RLIMIT_MEMLOCK $(awk '/locked memory/ { print $4, $6 }' /proc/self/limits)"
	if [ -r /proc/driver/nvidia/version ]; then
		row 0 "NVIDIA driver" "$(head -n 1 /proc/driver/nvidia/version)"
		nvidia-smi --query-gpu=name,uuid,persistence_mode,compute_mode,mig.mode.current --format=csv,noheader 2>&1 | while read -r line; do
			row 0 GPU "$line"
		done
	else
		row 0 "NVIDIA driver" "none"
	fi
	if [ "$(fact plugin)" = yes ]; then row 0 "CUDA plug-in" "in this bundle"; else row 0 "CUDA plug-in" "not built in this bundle"; fi
}

unit_tests() {
	for program in "$here"/bin/"$1"_*; do
		name=${program##*/} status=0
		GACC_SOURCE_DIR=$here CK_DEFAULT_TIMEOUT=60 bounded "$program" || status=$?
		if [ $status = 0 ]; then row 0 "tests $name" "ok, $(sed -n 's/^100%: Checks: \([0-9]*\),.*/\1/p' "$work/out" | tail -n 1) tests"; else row 0 "tests $name" "$(why $status)"; fi
	done
}
stage_math() { unit_tests math; }
stage_engine() { unit_tests engine; }

# Returns when it is gone; it has some seconds to end by itself.
end_gaccd() {
	[ -n "$gaccd" ] || return 0
	kill "$gaccd" 2>/dev/null || true
	for _ in $(seq 100); do
		kill -0 "$gaccd" 2>/dev/null || break
		sleep 0.1
	done
	kill -9 "$gaccd" 2>/dev/null || true
	wait "$gaccd" || true
	gaccd=
}

# gaccd, two trainers, two epochs of 2000 images, and the accuracy that the first rank prints.
stage_smoke() {
	"$here/bin/gaccd" --set "runtime_dir=$work" --set "state_dir=$work/state" --set node.name=bundle >"$work/gaccd.log" 2>&1 </dev/null &
	gaccd=$!
	export GACC_ENDPOINT="$work/gaccd.sock"
	for _ in $(seq 100); do
		"$here/bin/gaccctl" health >"$work/out" 2>&1 && break
		sleep 0.1
	done
	status=0
	bounded "$here/bin/gaccctl" health || status=$?
	if [ $status = 0 ]; then row 0 "gaccctl health" "$(head -n 1 "$work/out")"; else row 0 "gaccctl health" "$(why $status); $(tail -n 1 "$work/gaccd.log")"; fi
	bounded "$here/bin/gaccctl" run -n 2 --micro-size 4 --set optimizer.type=sgd --set optimizer.lr=0.02 -- \
		"$here/bin/mlp" --data "$here/data" --batch 8 --epochs 2 || status=$?
	accuracy=$(sed -n 's/.*accuracy is \([0-9.]*\).*/\1/p' "$work/out" | tail -n 1)
	if [ $status != 0 ]; then
		row 0 "training, 2 ranks, 2 epochs of 2000 images" "$(why $status)"
	elif awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 60) }'; then
		row 0 "training, 2 ranks, 2 epochs of 2000 images" "ok, accuracy $accuracy %"
	else
		row 0 "training, 2 ranks, 2 epochs of 2000 images" "FAILED: accuracy ${accuracy:-not printed}, below 60 %"
	fi
	end_gaccd
}

# The program's table, line by line.
bench() {
	what=$1 status=0
	shift
	bounded "$@" || status=$?
	[ $status = 0 ] || { row 0 "$what" "$(why $status)"; return; }
	row 0 "$what" "ok"
	sed 's/^/    /' "$work/out"
}
stage_kernels() {
	bench "kernels, passes" "$here/bin/bench_kernels" -m "${GACC_BENCH_MB:-400}" -r "${GACC_BENCH_ROUNDS:-15}" passes
	bench "kernels, updates" "$here/bin/bench_kernels" -m "${GACC_BENCH_MB:-400}" -r "${GACC_BENCH_ROUNDS:-15}" updates
}
stage_step() { bench "step" "$here/bin/bench_step" -r "${GACC_BENCH_ROUNDS:-15}" -p "${GACC_BENCH_PARAMETERS:-10000000}"; }
stage_push() {
	for part in push commit; do
		bench "push, $part" "$here/bin/bench_push" -r "${GACC_BENCH_ROUNDS:-15}" $part
	done
}

probe() {
	status=0
	[ -x "$here/bin/gpu_probe" ] || { row "$1" "$2" "not run: gpu_probe is not in this bundle"; return; }
	bounded "$here/bin/gpu_probe" "$2" || status=$?
	while IFS='	' read -r number what result; do
		[ -z "$result" ] || row "$number" "$what" "$result"
	done <"$work/out"
	[ $status -le 1 ] || row "$1" "$2" "$(why $status)"
}
without_plugin() {
	if [ "$(fact plugin)" = yes ]; then row "$1" "$2" "not run: this part is not written yet"; else row "$1" "$2" "not run: the CUDA plug-in is not built in this bundle"; fi
}
stage_gpu_bits() { without_plugin 1 "kernels against the reference, bit by bit"; }
stage_gpu_survival() { probe 2 survival; }
stage_gpu_late() { without_plugin 3 "work that ends after its process"; }
stage_gpu_copy() { row 4 "copy bandwidth" "not run: this part is not written yet"; }
stage_gpu_ready() { row 5 "latency of ready words" "not run: this part is not written yet"; }
stage_gpu_system() { without_plugin 6 "system tests on a GPU, and with kills"; }
stage_gpu_sanitizer() { without_plugin 7 "compute-sanitizer"; }
stage_gpu_nccl() { without_plugin 8 "NCCL"; }
stage_gpu_torch() { without_plugin 9 "PyTorch on a GPU"; }
stage_gpu_mps() { without_plugin 10 "MPS"; }

usage() {
	sed -n 's/^#   //p' "$0" >&2
	exit 2
}
[ $# -gt 0 ] || usage
[ "$1" != list ] || { printf '%s\n' $stages; exit; }
# shellcheck disable=SC2086 # a list of words
[ "$*" != all ] || set -- $stages
for stage; do
	case " $stages " in *" $stage "*) ;; *) echo "run.sh: there is no stage \"$stage\"; run.sh list names them" >&2; exit 2 ;; esac
done
check_node
gaccd='' work=$(mktemp -d)
finish() {
	end_gaccd
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
for stage; do
	echo "== $stage"
	end=$(($(date +%s) + limit))
	"stage_$(echo "$stage" | tr - _)"
done
[ ! -e "$work/failed" ]

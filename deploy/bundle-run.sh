#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In a bundle of deploy/bundle.sh: checks and measures this node, in stages of 8 minutes at most.
#   run.sh list            the stages
#   run.sh STAGE...        each prints its rows: number, what, result; "all" is every stage, one after the other
# The numbers are those of the list of checks for GPUs; 0 is for the machine and for what needs no GPU. A row that cannot be had says "not run" and why.
# Rows of the gpu- stages are the GPU's that the row above them names; with the driver of gacc's tests that is "Fake GPU", and nothing of theirs
# is then known of a GPU. Ends with 1 if a row is FAILED or LOST. Files are below TMPDIR (/tmp) and are gone at the end.
#   GACC_BENCH_ROUNDS, GACC_BENCH_MB, GACC_BENCH_PARAMETERS    of the benchmarks without a GPU
#   GACC_GPU_TESTS                                             of gpu-bits: some of cuda_pass cuda_update cuda_engine
#   GACC_SAMPLES, GACC_KILLS, GACC_KILL_SECONDS                of gpu-system: images of a job; so many kills, or so long
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

# With what it is told further.
begin_gaccd() {
	"$here/bin/gaccd" --set "runtime_dir=$work" --set "state_dir=$work/state" --set node.name=bundle "$@" >>"$work/gaccd.log" 2>&1 </dev/null &
	gaccd=$!
	export GACC_ENDPOINT="$work/gaccd.sock"
	answers
}
answers() {
	for _ in $(seq 100); do
		! "$here/bin/gaccctl" health >"$work/out" 2>&1 || break
		sleep 0.1
	done
}

# gaccd, two trainers, two epochs of 2000 images, and the accuracy that the first rank prints.
stage_smoke() {
	begin_gaccd
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

# ---- stages for a GPU ----

# What the driver calls the first GPU, or why there is none. Asked once.
find_gpu() {
	[ -z "${gpu:-}${no_gpu:-}" ] || return 0
	if [ ! -x "$here/bin/gpu_probe" ]; then
		no_gpu='gpu_probe is not in this bundle'
		return
	fi
	bounded "$here/bin/gpu_probe" name || true
	gpu=$(sed -n 's/^0	GPU	//p' "$work/out" | head -n 1)
	case $gpu in
	'not run: '* | 'FAILED'* | '') no_gpu=${gpu#not run: } gpu='' ;;
	esac
	[ -n "$gpu" ] || no_gpu=${no_gpu:-gpu_probe says nothing}
}
# needs_gpu NUMBER ROW...: prints the GPU's name; or each row as not run, and fails.
needs_gpu() {
	number=$1
	shift
	find_gpu
	if [ -n "$gpu" ]; then
		row "$number" GPU "$gpu"
		return
	fi
	for what; do
		case $no_gpu in FAILED*) row "$number" "$what" "$no_gpu" ;; *) row "$number" "$what" "not run: $no_gpu" ;; esac
	done
	return 1
}
# The same for what runs our kernels.
needs_plugin() {
	if [ "$(fact plugin)" = yes ]; then
		needs_gpu "$@"
		return
	fi
	number=$1
	shift
	for what; do row "$number" "$what" "not run: the CUDA plug-in is not built in this bundle"; done
	return 1
}
# probe NUMBER PART: the part's own rows.
probe() {
	status=0
	bounded "$here/bin/gpu_probe" "$2" || status=$?
	while IFS='	' read -r number what result; do
		[ -z "$result" ] || row "$number" "$what" "$result"
	done <"$work/out"
	[ $status -le 1 ] || row "$1" "$2" "$(why $status)"
}
# gpu_tests NUMBER PROGRAM [VARIABLE=VALUE...]: tests that run on whatever driver there is.
gpu_tests() {
	number=$1 name=$2 status=0
	shift 2
	bounded env "$@" CK_DEFAULT_TIMEOUT=120 "$here/bin/$name" || status=$?
	n=$(sed -n 's/^100%: Checks: \([0-9]*\),.*/\1/p' "$work/out" | tail -n 1)
	if [ $status != 0 ]; then row "$number" "tests $name" "$(why $status)"; elif [ "${n:-0}" = 0 ]; then row "$number" "tests $name" "FAILED: none was run"; else row "$number" "tests $name" "ok, $n tests"; fi
}

stage_gpu_bits() {
	needs_plugin 1 "kernels against the reference, bit by bit" "engine on the GPU beside one on the host" "numbers beside the smallest normal one" || return 0
	for name in ${GACC_GPU_TESTS:-cuda_pass cuda_update cuda_engine}; do
		case $name in
		cuda_engine) gpu_tests 1 cuda_engine CK_RUN_CASE=engine ;; # the other case kills at stores, which a driver has no switch for
		*) gpu_tests 1 "$name" ;;
		esac
	done
	probe 1 tiny
}
stage_gpu_survival() { needs_gpu 2 "memory that outlives its maker" || return 0; probe 2 survival; }
stage_gpu_late() { needs_plugin 3 "memory after a process killed in a kernel has been waited for" || return 0; probe 3 late; }
stage_gpu_copy() { needs_plugin 4 "copy bandwidth, and passes and updates beside it" || return 0; probe 4 rates; }
stage_gpu_ready() { needs_plugin 5 "latency of ready words" || return 0; probe 5 ready; }

# train DEVICE NAME COMMAND...: two ranks; the job's number is in $job.
train() {
	device=$1 name=$2
	shift 2
	bounded "$here/bin/gaccctl" run -n 2 --name "$name" --log-dir "$work/$name" --micro-size 2 --set device="$device" --set slots_per_rank=2 \
		--set optimizer.type=adamw --set optimizer.lr=0.001 --set clip_norm=1 --set checkpoint.at_end=true -- "$@" || return $?
	job=$(job_number "$name")
}
# why_job STATUS NAME: with what a rank has said last.
why_job() {
	echo "$(why "$1"); $(tail -q -n 1 "$work/$2"/worker_*.log 2>/dev/null | head -n 1 | cut -c 1-400)"
}
job_number() {
	"$here/bin/gaccctl" jobs -a -o json 2>/dev/null | tr -d '\n' | sed 's/"uuid"/\n&/g' | awk -v n="\"name\": \"$1\"" '
		{ if (index($0, n)) print id; id = $0; sub(/.*"id": "?/, "", id); sub(/[^0-9].*/, "", id) }' | tail -n 1
}
mlp_of() {
	echo "$here/bin/$1 --data $here/data --batch 8 --epochs 1 --max-samples ${GACC_SAMPLES:-2000}"
}
# Digests of the parameters after each step.
digests() {
	"$here/bin/gaccctl" history "$1" -n 10000 -o json | sed -n 's/.*"params_digest": "\(.*\)".*/\1/p'
}
# same_as_host WHAT NAME: every step's parameters, and the files of the last checkpoint.
same_as_host() {
	digests "$2" >"$work/digests"
	n=$(grep -c . "$work/digests") differ=''
	cmp -s "$work/host.digests" "$work/digests" || differ="parameters after a step"
	for file in model optimizer; do
		cmp -s "$work/host.$file" "$(echo "$work/state/checkpoints/$job"/*/$file.safetensors)" || differ="$differ${differ:+, }$file.safetensors"
	done
	if [ -z "$differ" ] && [ "$n" -gt 0 ]; then
		row 6 "$1" "ok: $n steps and the checkpoint have the bits of the host"
	else
		row 6 "$1" "FAILED: of $n steps differ from the host's: ${differ:-nothing, as there are none}"
	fi
}
of_host() {
	# shellcheck disable=SC2046 # words
	train host on-host $(mlp_of mlp) || return $?
	digests on-host >"$work/host.digests"
	for file in model optimizer; do cp "$(echo "$work/state/checkpoints/$job"/*/$file.safetensors)" "$work/host.$file"; done
}

# One process of the job or gaccd, and then the job gets on. Nothing is killed once it has ended.
steps_of() {
	"$here/bin/gaccctl" describe "job/$1" -o json 2>/dev/null | sed -n 's/^ *"applied_step": "\{0,1\}\([0-9]*\).*/\1/p' | head -n 1
}
pid_in() {
	"$here/bin/gaccctl" describe "$1" -o json 2>/dev/null | sed -n "s/^ *\"$2\": \"\{0,1\}\([0-9]*\).*/\1/p" | head -n 1
}
kill_one() {
	case $((kills % 3)) in 0) victim=$(pid_in node pid) ;; *) victim=$(pid_in "job/$1" engine_pid) ;; esac
	[ "${victim:-0}" -gt 1 ] || return 0
	before=$(steps_of "$1")
	kill -9 "$victim" 2>/dev/null || return 0
	kills=$((kills + 1))
	for _ in $(seq 600); do
		kill -0 "$trainer" 2>/dev/null || return 0
		after=$(steps_of "$1")
		[ "${after:-0}" -le "${before:-0}" ] || return 0
		sleep 0.1
	done
}
kill_campaign() {
	what="kills of engines and gaccd at any moment" kills=0 run=0 stop=$(($(date +%s) + ${GACC_KILL_SECONDS:-300}))
	while [ $kills -lt "${GACC_KILLS:-100}" ] && [ "$(date +%s)" -lt $stop ] && [ "$(date +%s)" -lt $((end - 30)) ]; do
		run=$((run + 1)) status=0 name=killed-$run
		# shellcheck disable=SC2046
		train cuda $name $(mlp_of mlp) &
		trainer=$! number=''
		while kill -0 $trainer 2>/dev/null; do
			[ -n "$number" ] || number=$(job_number $name)
			[ -z "$number" ] || [ "$(steps_of "$number")" = 0 ] || [ $kills -ge "${GACC_KILLS:-100}" ] || kill_one "$number"
			sleep "0.$(awk -v s=$((kills + run)) 'BEGIN { srand(s); printf "%02d", int(rand() * 100) }')"
		done
		wait $trainer || status=$?
		if [ $status != 0 ]; then
			row 6 "$what" "$(why_job $status $name) after $kills kills"
			return
		fi
		answers
		job=$number
		digests $name >"$work/digests"
		cmp -s "$work/host.digests" "$work/digests" || { row 6 "$what" "FAILED: after $kills kills the parameters differ from the host's"; return; }
		cmp -s "$work/host.model" "$(echo "$work/state/checkpoints/$job"/*/model.safetensors)" ||
			{ row 6 "$what" "FAILED: after $kills kills the checkpoint differs from the host's"; return; }
	done
	[ $kills -gt 0 ] || { row 6 "$what" "FAILED: there was nothing to kill"; return; }
	row 6 "$what" "ok: $kills SIGKILLs in $run jobs, each with the bits of the host"
}
stage_gpu_system() {
	needs_plugin 6 "jobs with device: cuda beside the same on the host" "a trainer on the GPU" "kills of engines and gaccd at any moment" || return 0
	begin_gaccd --supervise
	status=0
	of_host || status=$?
	if [ $status != 0 ]; then
		row 6 "the same job on the host" "$(why_job $status on-host)"
		end_gaccd
		return
	fi
	# shellcheck disable=SC2046
	train cuda on-gpu $(mlp_of mlp) || status=$?
	if [ $status = 0 ]; then same_as_host "a job with device: cuda beside the same on the host" on-gpu; else row 6 "a job with device: cuda beside the same on the host" "$(why_job $status on-gpu)"; fi
	status=0
	if [ ! -x "$here/bin/mlp_cuda" ]; then
		row 6 "a trainer on the GPU" "not run: mlp_cuda is not in this bundle"
	else
		# shellcheck disable=SC2046
		train cuda trainer-on-gpu $(mlp_of mlp_cuda) || status=$?
		if [ $status = 0 ]; then row 6 "a trainer on the GPU" "ok: $(grep 'steps applied' "$work/out" | tail -n 1)"; else row 6 "a trainer on the GPU" "$(why_job $status trainer-on-gpu)"; fi
	fi
	kill_campaign
	end_gaccd
}

stage_gpu_sanitizer() {
	needs_plugin 7 "compute-sanitizer" || return 0
	sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
	[ -n "$sanitizer" ] || { row 7 "compute-sanitizer" "not run: it is not on the PATH, nor in /usr/local/cuda/bin"; return; }
	for tool in memcheck racecheck synccheck; do
		for program in cuda_pass cuda_update; do
			status=0
			bounded env CK_FORK=no "$sanitizer" --tool $tool --error-exitcode 9 "$here/bin/$program" || status=$?
			if [ $status = 0 ]; then row 7 "$tool of $program" "ok"; else row 7 "$tool of $program" "$(why $status)"; fi
		done
	done
}
stage_gpu_nccl() { row 8 "NCCL" "not run: a job with device: cuda has one part, whose engine talks to no other (docs/gpu.md)"; }

stage_gpu_torch() {
	needs_plugin 9 "PyTorch on a GPU, sums there" || return 0
	python=$(command -v python3 || true)
	[ -n "$python" ] || { row 9 "PyTorch on a GPU, sums there" "not run: there is no python3"; return; }
	bounded "$python" -c 'import google.protobuf, grpc, torch; assert torch.cuda.is_available(), "torch sees no GPU"' ||
		{ row 9 "PyTorch on a GPU, sums there" "not run: $(tail -n 1 "$work/out")"; return; }
	begin_gaccd
	status=0
	bounded "$here/bin/gaccctl" run -n 1 --name torch --micro-size 2 --steps 50 --set device=cuda --set slots_per_rank=2 --set optimizer.type=adamw \
		--set optimizer.lr=0.01 -- "$python" "$here/share/torch_offload.py" "$here/share/gacc.protoset" cuda || status=$?
	if [ $status = 0 ]; then row 9 "PyTorch on a GPU, sums there" "ok: $(grep '^step' "$work/out" | tail -n 1)"; else row 9 "PyTorch on a GPU, sums there" "$(why $status)"; fi
	end_gaccd
}

# A control daemon of our own, in folders of our own; the GPU's settings stay as they are.
stage_gpu_mps() {
	needs_plugin 10 "MPS" || return 0
	control=$(command -v nvidia-cuda-mps-control || true)
	[ -n "$control" ] || { row 10 "MPS" "not run: nvidia-cuda-mps-control is not on the PATH"; return; }
	export CUDA_MPS_PIPE_DIRECTORY="$work/mps" CUDA_MPS_LOG_DIRECTORY="$work/mps"
	mkdir -p "$work/mps"
	if bounded "$control" -d; then
		probe 10 late
		probe 10 ready
		echo quit | "$control" >/dev/null 2>&1 || true
	else
		row 10 "MPS" "not run: its control daemon does not start: $(tail -n 1 "$work/out" | cut -c 1-200)"
	fi
	unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

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
gaccd='' gpu='' no_gpu='' work=$(mktemp -d)
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

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to a trained model: installs packages, builds, starts two gaccds that are one cluster in a
# temporary folder, trains a perceptron on Fashion-MNIST with two processes on each, trains the same on one gaccd with two
# parts and compares every step, checks the result against single-process runs, and leaves nothing behind. Needs root or
# sudo for missing packages only. Where nvidia-smi finds a GPU and nvcc has built the kernels, the trainers are mlp_cuda, which
# compute there, else mlp, on the CPU; the summary says which.
#   OFFLINE=1  do not install packages
#   JOBS=n     parallel compilers (all cores)
#   KEEP=1     keep the temporary folder
#
# What it checks, and why these bounds:
#   steps       all 1407 of three epochs; a demo of fewer than 100 would show little
#   loss        the last losses printed are lower than the first
#   accuracy    80 % on the test set: three epochs of SGD at 0.01 reach 81.6 %
#   samples     each of the three epochs counts its 60,000 samples once
#   one gaccd   0 of the 1407 steps may differ: the sum over two parts does not depend on the nodes on which they lie
#   replay      0: one process that adds in the same order with the same f32 operations has the same bits: the ranks of
#               each part, then the two parts. One lost or doubled micro-batch of the 22,500 would show. On a GPU products
#               are added in another order, so 0.01, as for the reference
#   reference   f64, one batch per step: 0.01. While no ReLU changes sides through rounding, the difference is that of
#               f32 parameters, 7e-8 after 150 steps. Then a unit whose input is within rounding of zero learns from a
#               sample in one run and not in the other, and the runs drift apart like two trainings, not like two
#               roundings: 5e-4 was measured at the end, and 5e-4 to 3.5e-3 with OpenBLAS's kernels for six other
#               CPUs, which round differently. 0.01 is about three times the largest. Gradients of the wrong scale or
#               from the wrong samples exceed it; the replay is what finds the small errors.
set -eu

ranks=4 parts=2 micro_size=4 batch=8 epochs=3 lr=0.01 steps=1407 samples=180000 accuracy=80 bound=0.01 replay_bound=0

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
jobs=${JOBS:-$(nproc)}
logs=$root/build/demo-logs
bin=$root/build/bin
dir='' checks='' ok=0
log=
mkdir -p "$logs"
rm -f "$logs"/*

# Before their folder goes.
keep_daemon_logs() {
	for node in 0 1; do
		[ ! -e "$dir/cluster/node-$node/log" ] || cp "$dir/cluster/node-$node/log" "$logs/gaccd_$node.log"
	done
}

finish() {
	status=$?
	trap - EXIT
	[ -z "$checks" ] || kill $checks 2>/dev/null || true
	keep_daemon_logs
	[ ! -e "$dir/cluster" ] || "$bin/gaccctl" cluster down --dir "$dir/cluster" >/dev/null 2>&1 || true
	[ -z "$dir" ] || deploy/leftovers.sh end "$dir"
	if [ -n "$dir" ] && [ "${KEEP:-0}" = 1 ]; then
		echo "kept: $dir"
	elif [ -n "$dir" ]; then
		rm -rf "$dir"
	fi
	if [ "$ok" = 0 ]; then
		[ -z "$log" ] || [ ! -s "$log" ] || { echo "--- last lines of $log" && tail -n 20 "$log"; } >&2
		echo "demo FAILED; all logs are in $logs" >&2
		[ "$status" != 0 ] || status=1
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

fail() {
	echo "demo: $*" >&2
	exit 1
}

say() {
	printf '\n== %s\n' "$*"
}

build() {
	say "build"
	log=$logs/build.log
	{
		cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release -DGACC_TESTS=OFF
		cmake --build build -j "$jobs" --target gaccd gaccctl mlp mlp_cuda mlp_reference mlp_replay
	} >"$log" 2>&1
	tail -n 1 "$log"
}

choose_trainer() {
	program=mlp device='the CPU' device_spec=
	gpu=$(nvidia-smi -L 2>/dev/null | sed -n '1s/ (UUID.*//p')
	if [ -z "$gpu" ]; then
		echo "no GPU: the trainers compute on the CPU"
	elif [ ! -e "$root/build/lib/mlp_cuda.fatbin" ]; then
		echo "$gpu, but no nvcc to build its kernels: the trainers compute on the CPU"
	else
		program=mlp_cuda device=$gpu device_spec='--set slots_per_rank=2' replay_bound=$bound
		echo "the trainers compute on $gpu"
	fi
}

start_cluster() {
	say "two gaccds in $dir"
	log=$logs/cluster.log
	GACC_HISTORY_WINDOWS=$steps "$bin/gaccctl" cluster up --nodes 2 --dir "$dir/cluster" >"$dir/cluster.env" 2>"$log" ||
		fail "gaccctl cluster up"
	. "$dir/cluster.env" # GACC_ENDPOINT of node0, the one that coordinates
	for _ in $(seq 100); do
		! "$bin/gaccctl" nodes 2>>"$log" | grep -q '^node1 *UP' || break
		sleep 0.1
	done
	"$bin/gaccctl" nodes
	"$bin/gaccctl" health
}

# One rank: NODE is whose gaccd it attaches to. If it fails, the job ends, so that the others do not wait for it.
rank_on() {
	node=$1 rank=$2
	shift 2
	GACC_ENDPOINT=unix:$dir/cluster/node-$node/gaccd.sock RANK=$rank WORLD_SIZE=$ranks GACC_JOB_ID=$job \
		"$bin/$program" --batch $batch --epochs $epochs "$@" >"$logs/worker_$rank.log" 2>&1 || {
		"$bin/gaccctl" cancel "$job" --reason "rank $rank has failed: worker_$rank.log" >/dev/null 2>&1
		exit 1
	}
}

train() {
	say "train over two gaccds: $ranks processes, micro_size $micro_size, batch $batch, $epochs epochs"
	log=$logs/train.log
	job=$("$bin/gaccctl" submit --name demo -n $ranks --set nodes=node0,node1 "$@" 2>"$log")
	rank_on 0 0 --dump-params "$dir/job.safetensors" &
	checks=$!
	for rank in 1 2 3; do
		rank_on $((rank / 2)) $rank &
		checks="$checks $!"
	done
	"$bin/gaccctl" wait "$job" --for step=1 >>"$log" 2>&1 || fail "the job has not begun"
	"$bin/gaccctl" describe "job/$job" | sed -n '/^PART/,/^$/p'
	tail -n +1 -s 0.2 -F --pid="${checks%% *}" "$logs/worker_0.log" 2>/dev/null | sed -u 's/^/[rank0] /'
	log=$logs/worker_0.log
	for trainer in $checks; do
		wait "$trainer" || fail "a rank has failed"
	done
	checks=''
}

# The parameters' digest after each step, oldest first.
digests() {
	"$bin/gaccctl" history "$1" -n $steps -o json | sed -n 's/.*"params_digest": "\(.*\)".*/\1/p'
}

# The job of train again, with both parts on the first of the two.
train_on_one() {
	say "the same training on one gaccd, with $parts parts"
	log=$logs/one_gaccd.log
	"$bin/gaccctl" run -n $ranks --name one-gaccd --log-dir "$dir/one" --tee none "$@" -- "$bin/$program" --batch $batch \
		--epochs $epochs >"$log" 2>&1 || fail "the job on one gaccd has failed"
	digests demo >"$logs/two_gaccds.digests"
	digests one-gaccd >"$logs/one_gaccd.digests"
	compared=$(wc -l <"$logs/two_gaccds.digests")
	[ "$compared" = $steps ] || fail "$compared steps over two gaccds have a digest, not $steps"
	cmp -s "$logs/two_gaccds.digests" "$logs/one_gaccd.digests" || fail "the two jobs differ"
	echo "$compared steps, each with the same parameters"
}

# Two single-process runs at once, a core each.
compare() {
	say "the same training in one process: f32 in the same order, and f64 with one batch per step"
	shape="--ranks $ranks --parts $parts --micro-size $micro_size --batch $batch --epochs $epochs --lr $lr --threads 1"
	# shellcheck disable=SC2086
	"$bin/mlp_replay" $shape --compare "$dir/job.safetensors" --bound $replay_bound >"$logs/replay.log" 2>&1 &
	checks=$!
	# shellcheck disable=SC2086
	"$bin/mlp_reference" $shape --compare "$dir/job.safetensors" --bound $bound >"$logs/reference.log" 2>&1 &
	reference=$!
	replay=$checks checks="$checks $reference"
	log=$logs/replay.log
	wait "$replay" || fail "the job differs from its replay"
	log=$logs/reference.log
	wait "$reference" || fail "the job is too far from the f64 reference"
	checks=''
	replayed=$(sed -n 's/^largest parameter difference: //p' "$logs/replay.log")
	referenced=$(sed -n 's/^largest parameter difference: //p' "$logs/reference.log")
	echo "replay f32:    $replayed"
	echo "reference f64: $referenced"
}

# Rank 0's log has a loss per 100 micro-batches, a line per epoch, and the counts.
judge() {
	log=$logs/worker_0.log
	first=$(sed -n 's/.*step: .*, loss is \([0-9.]*\)$/\1/p' "$log" | head -n 5 | awk '{ s += $1 } END { print s / NR }')
	last=$(sed -n 's/.*step: .*, loss is \([0-9.]*\)$/\1/p' "$log" | tail -n 5 | awk '{ s += $1 } END { print s / NR }')
	reached=$(sed -n 's/.*test accuracy is \([0-9.]*\) %$/\1/p' "$log" | tail -n 1)
	applied=$(sed -n 's/^\([0-9]*\) steps applied.*/\1/p' "$log")
	counted=$(sed -n 's/.*, \([0-9]*\) samples counted$/\1/p' "$log")
	[ "${applied:-0}" -ge 100 ] && [ "$applied" = $steps ] || fail "${applied:-no} steps were applied, not $steps"
	[ "$counted" = $samples ] || fail "$counted samples were counted, not $samples"
	awk "BEGIN { exit !($last < $first) }" || fail "the loss did not fall: $first at first, $last at last"
	awk "BEGIN { exit !($reached >= $accuracy) }" || fail "accuracy is $reached %, less than $accuracy %"
}

stop() {
	say "stop, and look for leftovers"
	log=$logs/cluster.log
	keep_daemon_logs
	"$bin/gaccctl" cluster down --dir "$dir/cluster" >>"$log" 2>&1 || fail "gaccctl cluster down"
	if [ "${KEEP:-0}" = 1 ]; then
		echo "not looked for: KEEP=1 keeps $dir"
		return
	fi
	rm -rf "$dir/one" "$dir/cluster.env" "$dir/job.safetensors" # what this script put there
	log=$logs/leftovers.log
	deploy/leftovers.sh check "$logs/shm-before" "$dir" >"$log" || fail "something is left behind"
	echo "no process, no socket, no file, nothing in /dev/shm"
}

deploy/install-packages.sh
build
choose_trainer
dir=$(mktemp -d "${TMPDIR:-/tmp}/gacc-demo.XXXXXX")
deploy/leftovers.sh snapshot "$logs/shm-before"
start_cluster
# shellcheck disable=SC2086
set -- --set parts=$parts --set micro_size=$micro_size --set batch=$batch --set optimizer.type=sgd --set optimizer.lr=$lr $device_spec
begin=$(date +%s)
train "$@"
took=$(($(date +%s) - begin))
judge
train_on_one "$@"
compare
stop

say "summary"
cat <<SUMMARY
trainers on            $device
steps applied          $applied, with $counted samples
loss                   $first -> $last
test accuracy          $reached % (at least $accuracy %)
against the f32 replay $replayed (at most $replay_bound)
against f64, big batch $referenced (at most $bound)
against one gaccd      0 of $compared steps differ (must be 0)
training               $took s; logs in $logs
SUMMARY
ok=1

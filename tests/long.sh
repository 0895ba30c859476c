#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests of tests/run.sh at their full size, part by part. Each takes less than half an hour on two cores unless its size says otherwise.
#
#   tests/long.sh PART [SIZE]
#
#   campaign [KILLS]   10,000 SIGKILLs of trainers, engine, gaccd and launcher: each micro-batch counted once, the bits of a run without deaths
#   soak [MINUTES]     30 minutes of jobs that come and go while their processes die: gaccd's memory and descriptors stay flat
#   random [SEEDS]     3,000 random jobs with deaths, compared with a numpy program bit for bit, and a tenth of them
#                      with mailboxes and without (SEED=n is the first)
#   bits OLD_BUILD     60 random jobs and 15 kill campaigns on this tree and on the build of another one: the same bits
#   upgrade OLD_BUILD  three nodes with the gaccd of another tree's build are upgraded to this one's while a job trains
#   parts [KILLS]      1,000 SIGKILLs under each of three jobs of several parts, of their engines and of gaccd; as many of members of communicators
#   nodes [KILLS]      300 SIGKILLs of ranks, engines and gaccds of jobs on two to four nodes, and stopped engines (SEED=n draws them; 10,000
#                      take hours); a death at every failpoint of a step on each of two nodes
#   nodes-asan [KILLS], nodes-tsan [KILLS]  300 SIGKILLs as of nodes, of jobs on two nodes, under ASan+UBSan, under TSan
#   device [KILLS]     jobs of the system tests on the GPU of the rig (no GPU: the fake driver and the simulator), and 1,000 deaths of engines and gaccd there (SEED=n draws them)
#   large [TENSORS]    a job with a million tensors, declared in portions, and its checkpoint
#   sim [RUNS]         200,000 simulated runs of the control code
#   cluster [RUNS]     10,000 simulated runs of jobs on 1 to 16 nodes (SEED=n is the first)
#   torture            every n-th failure of the journal's and the checkpoints' system calls and allocations, of SQLite's calls while a loss is accepted,
#                      and of allocations in simulated jobs
#   cuts [N]           1,000 power cuts of what the store writes, and the worst images after each call (SEED=n is the first)
#   models             the protocol models with their large bounds
#   mutants            all mutants
#   asan, tsan         all unit and system tests under ASan+UBSan, under TSan
#   clang              all unit and system tests, built by clang without sanitizers
#   fuzz [HOURS]       all fuzz targets, going on from what earlier runs found (1)
#   python             gacc.torch with PyTorch, Accelerate, transformers and Lightning, gacc.colossalai, gacc.jax and gacc.mindspore, which are downloaded
#                      (1.2 GB in build/python-torch, 410 MB in python-colossalai, 550 MB in python-jax, 2.8 GB in python-mindspore), and what hurt users of
#                      gradient accumulation, by thread (tests/pains)
#   bench              each benchmark runs and prints its rows, in its quick form, and the PyTorch example; figures are not judged
#
# Builds what it needs in build/test-*. Closes with "N passed, N failed". JOBS, SLOW, OFFLINE, GACC_SAMPLE as for tests/run.sh;
# each part's output is in build/long-logs/PART.
set -eu

cd "$(dirname "$0")/.."
usage() {
	sed -n '3,/^$/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
part=${1:-} size=${2:-}
case $part in '' | */* | -*) usage ;; esac
logs=$(pwd)/build/long-logs/$part
hours() { # of a stage that takes so many minutes
	echo $(($1 * 60 * 2 + 1800))
}

on_gcc() {
	build gcc gcc "" || { summary; exit 1; }
}

begin() {
	[ "$part" = python ] || export PYTEST_TIMEOUT="${PYTEST_TIMEOUT:-0}" # tests take as long as their size says
	. tests/stages.sh
	echo "gacc $part on $JOBS of $(nproc) cores, drawn by $GACC_SAMPLE; logs in $logs"
	stage "packages" 900 one 'deploy/install-packages.sh build run test' || { summary; exit 1; }
	python_packages
}

case $part in
campaign)
	begin
	on_gcc
	system gcc 36000 campaign "${size:-10000} kills" "env GACC_KILLS=${size:-10000}" tests/system/test_campaign.py || true
	;;
soak)
	begin
	on_gcc
	system gcc "$(hours "${size:-30}")" campaign "soak of ${size:-30} minutes" "env GACC_SOAK_S=$((${size:-30} * 60))" tests/system/test_soak.py || true
	;;
random)
	begin
	on_gcc
	system gcc 36000 "not alone" "${size:-3000} random jobs" "env GACC_SEEDS=${size:-3000} GACC_SEED=${SEED:-1}" \
		tests/system/test_random_jobs.py || true
	system gcc 36000 "not alone" "$((${size:-3000} / 10 + 6)) of them with mailboxes and without" \
		"env GACC_SEEDS=$((${size:-3000} / 10 + 6)) GACC_SEED=${SEED:-1}" tests/system/test_both_ways.py || true
	;;
bits)
	[ -x "$size/bin/gaccd" ] && [ -x "$size/bin/campaign_trainer" ] || usage
	begin
	build release gcc "-DCMAKE_BUILD_TYPE=Release" || { summary; exit 1; }
	stage "the bits of $size" 7200 lines "GACC_BUILD_DIR=$root/build/test-release PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 tests/system/compare_trees.py '$size' build/test-release" || true
	;;
upgrade)
	[ -x "$size/bin/gaccd" ] || usage
	begin
	on_gcc
	system gcc 1800 "not alone" "from the gaccd of $size" "env GACC_OLD_BUILD=$(realpath "$size")" tests/system/test_upgrade.py || true
	;;
parts)
	begin
	on_gcc
	system gcc 36000 "not alone" "${size:-1000} kills of each job of several parts" "env GACC_PARTS_KILLS=${size:-1000} GACC_SEED=${SEED:-0}" \
		tests/system/test_parts_kills.py || true
	stage "${size:-1000} kills of members of communicators" 7200 one "GACC_COLL_KILLS=${size:-1000} CK_DEFAULT_TIMEOUT=7000 build/test-gcc/bin/test_coll_processes" || true
	;;
nodes)
	begin
	on_gcc
	system gcc 36000 "not alone" "${size:-300} kills of jobs on several nodes" "env GACC_NODES_KILLS=${size:-300} GACC_SEED=${SEED:-0}" \
		tests/system/test_nodes_kills.py || true
	build failpoints gcc "-DGACC_FAILPOINTS=ON -DCMAKE_BUILD_TYPE=Release" || { summary; exit 1; }
	system failpoints 3600 failpoints "every failpoint of a step on two nodes" "env GACC_NODES_POINTS=all" tests/system/test_nodes_failpoints.py || true
	;;
nodes-asan)
	begin
	build asan clang "-DGACC_SANITIZE=address,undefined -DGACC_SAMPLE=" || { summary; exit 1; }
	system asan 36000 "not alone" "${size:-300} kills on two nodes, ASan+UBSan" "env GACC_NODES=2 GACC_NODES_KILLS=${size:-300} GACC_SEED=${SEED:-0}" \
		tests/system/test_nodes_kills.py || true
	;;
nodes-tsan)
	begin
	build tsan clang "-DGACC_SANITIZE=thread -DGACC_SAMPLE=" || { summary; exit 1; }
	system tsan 36000 "not alone" "${size:-300} kills on two nodes, TSan" "$(tsan_prefix) env GACC_NODES=2 GACC_NODES_KILLS=${size:-300} GACC_SEED=${SEED:-0}" \
		tests/system/test_nodes_kills.py || true
	;;
device)
	begin
	on_gcc
	[ -e build/test-gcc/lib/gacc_cuda.fatbin ] || { echo "nvcc is needed, from NVIDIA's CUDA toolkit"; exit 1; }
	system gcc 7200 'not campaign and not failpoints and not alone' "jobs with device: cuda, on the rig" "env TEST_DEVICE=cuda" \
		"$(printf 'tests/system/test_%s.py ' $on_device parts parts_kills)" || true
	system gcc 36000 "not alone" "${size:-1000} kills on the rig" "env GACC_DEVICE_KILLS=${size:-1000} GACC_SEED=${SEED:-1}" tests/system/test_device.py || true
	;;
large)
	begin
	on_gcc
	system gcc 3600 "not alone" "${size:-1000000} tensors" "env GACC_TENSORS=${size:-1000000}" "tests/system/test_portions.py -k a_large_set" || true
	;;
sim)
	begin
	on_gcc
	stage "simulation, ${size:-200000} runs" 7200 one "build/test-gcc/bin/sim -n ${size:-200000}" || true
	;;
cluster)
	begin
	on_gcc
	for parts in 1 2 3 4 8 16 0; do # 0: drawn by the seed
		stage "simulation of nodes, $((${size:-10000} / 7)) runs, parts: $parts" 7200 one "build/test-gcc/bin/sim_cluster -d $parts -n $((${size:-10000} / 7 + 1)) \
			${SEED:+-s $SEED}" || true
	done
	;;
torture)
	begin
	on_gcc
	for program in build/test-gcc/bin/torture_* build/test-gcc/bin/test_accept_fails; do
		stage "${program##*/}, every n" 1800 one "TORTURE_EVERY=1 $program" || true
	done
	stage "simulation of nodes, every allocation of 60 runs" 7200 one "build/test-gcc/bin/sim_cluster_alloc -n 60 ${SEED:+-s $SEED}" || true
	stage "simulation of nodes, three allocations in a row" 7200 one "build/test-gcc/bin/sim_cluster_alloc -n 500 -m 10 -k 3 ${SEED:+-s $SEED}" || true
	;;
cuts)
	begin
	on_gcc
	for program in build/test-gcc/bin/cuts_*; do
		stage "${program##*/}, $((${size:-1000} / 4)) cuts" 3600 one "$program -a -n $((${size:-1000} / 4)) ${SEED:+-s $SEED}" || true
	done
	;;
models)
	begin
	stage "protocol models, large bounds" 7200 lines 'sh tests/model/run.sh --full' || true
	;;
mutants)
	begin
	stage "all mutants" 14400 lines 'tests/mutants/run.py' || true
	;;
asan)
	begin
	build asan clang "-DGACC_SANITIZE=address,undefined -DGACC_SAMPLE=" || { summary; exit 1; }
	unit asan 3600 || true
	system asan 7200 'not campaign and not failpoints' "all system tests, ASan+UBSan" || true
	;;
tsan)
	begin
	build tsan clang "-DGACC_SANITIZE=thread -DGACC_SAMPLE=" || { summary; exit 1; }
	unit tsan 3600 "$(tsan_prefix)" || true
	system tsan 7200 'not campaign and not failpoints' "all system tests, TSan" "$(tsan_prefix)" || true
	;;
clang)
	begin
	build clang clang "-DGACC_UNIT_TESTS=ON -DGACC_CUDA=ON" || { summary; exit 1; }
	unit clang 1800 || true
	system clang 3600 'not campaign and not failpoints' "all system tests, clang" || true
	;;
fuzz)
	begin
	stage "fuzzing for ${size:-1} hours" $((${size:-1} * 3600 + 3600)) lines "sh tests/fuzz/long.sh ${size:-1}" || true
	;;
python)
	begin
	on_gcc
	torch_package accelerate==1.15.0 transformers==5.23.0 lightning==2.6.6
	torch_tests 1800 "gacc.torch, libraries and pains" || true
	colossalai_tests || true
	jax_tests || true
	mindspore_tests || true
	;;
bench)
	begin
	build release gcc "-DCMAKE_BUILD_TYPE=Release" || { summary; exit 1; }
	stage "benchmarks, quick" 1800 one 'tests/bench/run.sh --quick --out "$TMPDIR/bench.txt" build/test-release && [ -s "$TMPDIR/bench.txt" ]' || true
	stage "bench_rpc, quick" 300 one 'build/test-release/bin/bench_rpc 0.2' || true
	stage "event loop, quick" 1800 one 'GACC_BUILD_DIR=build/test-release tests/bench/loop.py --quick' || true
	torch_package
	if [ -n "$torch" ]; then
		stage "beside PyTorch, quick" 1800 one "$torch tests/bench/torch/compare.py --quick --models S --ranks 2 build/test-release" || true
		stage "beside PyTorch on two nodes, quick" 1800 one "$torch tests/bench/torch/nodes.py --quick --models S --nodes 2 build/test-release" || true
		if [ "$(id -u)" = 0 ] && tests/bench/netns.py 1 true 2>/dev/null; then
			stage "the same in network namespaces" 1800 one "$torch tests/bench/torch/nodes.py --quick --models S --nodes 2 --ranks 1 --netns 10gbit build/test-release" || true
		else
			skip "the same in network namespaces" "needs root, and a kernel with namespaces, veth and tbf"
		fi
		stage "the PyTorch example" 300 pytest "GACC_BUILD_DIR=$root/build/test-release PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m pytest \
			-v -ra -p no:cacheprovider tests/system/test_examples.py -k torch" || true
	else
		skip "beside PyTorch, on one node and on two" "$no_torch"
	fi
	;;
*)
	usage
	;;
esac
summary

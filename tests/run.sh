#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All kinds of tests, from nothing, in about an hour on two busy cores: installs packages (deploy/install-packages.sh), builds
# with gcc, and with clang and its sanitizers, runs everything at the size that fits, goes on after a failure, and closes with
# the line "N passed, N failed". tests/long.sh has what takes longer. What is only sampled here is drawn by the commit's hash.
#   JOBS=n         parallel compilers and tests (all cores)
#   QUICK=1        gcc, unit tests and system tests only
#   OFFLINE=1      do not install packages
#   SLOW=n         multiply the stages' time limits (1)
#   KILLS=n        SIGKILLs of the fault campaign (80)
#   FUZZ=n         seconds of each fuzz target (7)
#   MUTANTS=n      mutants that are tried (4)
#   GACC_SAMPLE=x  draw the samples by x instead
# Each stage's output is in build/test-logs.
set -eu

cd "$(dirname "$0")/.."
logs=$(pwd)/build/test-logs
. tests/stages.sh

echo "gacc tests on $JOBS of $(nproc) cores, samples drawn by $GACC_SAMPLE; logs in $logs"
if ! stage "packages" 900 one 'deploy/install-packages.sh build run test'; then
	echo "$passed passed, $failed failed"
	exit 1
fi
python_packages
deploy/leftovers.sh snapshot "$logs/shm-before"

if build gcc gcc ""; then
	stage "structure and style" 900 lines "tests/structure.py build/test-gcc" || true
	unit gcc 900 || true
	system gcc 1800 'not campaign and not failpoints' "system tests" || true
	# all ranks of these tests push and wait through mailboxes; above, only those of libgacc do. A quarter of the files, drawn.
	both="equivalence deals push_lr finite outcomes client_optimizer sessions leaving promises lost over look control checkpoint wait stopped kills"
	[ "${QUICK:-0}" = 1 ] || system gcc 900 'not campaign and not failpoints and not alone' "pushes and steps through mailboxes" \
		"env TEST_MAILBOX=1 GACC_SHARE=0/4" "$(printf 'tests/system/test_%s.py ' $both)" || true
	# The jobs of these tests on the GPU of the rig, if there is a compiler for its kernels: a quarter of the files, and all in tests/long.sh device.
	if [ "${QUICK:-0}" != 1 ] && [ -e build/test-gcc/lib/gacc_cuda.fatbin ]; then
		system gcc 1200 'not campaign and not failpoints and not alone' "jobs with device: cuda, on the rig" \
			"env TEST_DEVICE=cuda GACC_SHARE=0/4" "$(printf 'tests/system/test_%s.py ' $on_device)" || true
	fi
	[ "${QUICK:-0}" = 1 ] || system gcc 300 'not alone' "libgacc without mailboxes" "env GACC_MAILBOX=0" \
		"tests/system/test_examples.py tests/system/test_events.py" || true
	[ "${QUICK:-0}" = 1 ] || system gcc 1800 campaign "fault campaign and soak" \
		"env GACC_KILLS=${KILLS:-80} GACC_CAMPAIGN_S=15 GACC_SOAK_S=15" || true
else
	skip "gcc: tests" "the build failed"
fi

if [ "${QUICK:-0}" != 1 ]; then
	short="GACC_KILLS=20 GACC_CAMPAIGN_S=8 GACC_SOAK_S=8" # the campaigns in a build with sanitizers

	# A quarter of the unit tests and of the files of system tests runs with each sanitizer, drawn by the commit's hash; tests/long.sh
	# runs all with both, and with clang alone.
	drawn="-DGACC_SAMPLE=$GACC_SAMPLE" drawn_tests="-LE not-drawn"
	# Without nvcc, too, all must be there.
	if build asan clang "-DGACC_SANITIZE=address,undefined -DGACC_CUDA=OFF $drawn"; then
		unit asan 1200 "" "$drawn_tests" || true
		system asan 1800 'smoke or sanitize or campaign' "system tests and faults, ASan+UBSan" "env GACC_SHARE=0/4 $short" || true
	else
		skip "asan: tests" "the build failed"
	fi

	fixed=$(tsan_prefix)
	if build tsan clang "-DGACC_SANITIZE=thread -DGACC_CUDA=OFF $drawn"; then
		unit tsan 1200 "$fixed" "$drawn_tests" || true
		system tsan 1800 'smoke or sanitize or campaign' "system tests and faults, TSan" "env GACC_SHARE=1/4 $short $fixed" || true
	else
		skip "tsan: tests" "the build failed"
	fi

	if build failpoints gcc "-DGACC_FAILPOINTS=ON -DCMAKE_BUILD_TYPE=Release -DGACC_UNIT_TESTS=OFF -DGACC_CUDA=OFF"; then # as users build it: -O3, without assert
		system failpoints 900 failpoints "every failpoint, every action" || true
	else
		skip "failpoints: tests" "the build failed"
	fi

	stage "protocol models (spin)" 900 lines 'sh tests/model/run.sh' || true
	stage "fuzzing, briefly" 1800 lines "SECONDS_EACH=${FUZZ:-7} sh tests/fuzz/run.sh" || true
	stage "mutants, a sample" 1200 lines "tests/mutants/run.py --sample ${MUTANTS:-4} --seed $GACC_SAMPLE" || true
fi

stage "nothing is left behind" 30 one "deploy/leftovers.sh check '$logs/shm-before' '$TMPDIR'" || true
summary

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All kinds of tests, from nothing, in about an hour on two busy cores: installs packages (deploy/install-packages.sh), builds
# with gcc, and with clang and its sanitizers, runs everything at the size that fits, goes on after a failure, and closes with
# the line "N passed, N failed". tests/long.sh has what takes longer. What is only sampled here is drawn by the commit's hash.
#   JOBS=n         parallel compilers and tests (all cores)
#   QUICK=1        gcc, unit tests and system tests only
#   OFFLINE=1      do not install packages, nor PyTorch (1 GB in build/python-torch): tests that need it are skipped
#   SLOW=n         multiply the stages' time limits (1)
#   KILLS=n        SIGKILLs of the fault campaign (60)
#   FUZZ=n         seconds of each fuzz target (7)
#   MUTANTS=n      mutants that are tried (3)
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
	if [ "${QUICK:-0}" != 1 ]; then
		torch_package accelerate==1.15.0
		torch_tests 600 "gacc.torch, Accelerate and six of tests/pains" $(printf 'tests/python/test_%s.py ' torch torch_types torch_fuse torch_refusals accelerate) \
			$(printf 'tests/pains/test_%s ' divisor.py::test_transformers_34242_mean_of_means divisor.py::test_lightning_19987_the_last_window_of_an_epoch \
				boundary.py::test_transformers_1563_clipped_in_every_micro_batch service.py::test_skyrl_2035_a_request_that_is_sent_again \
				ranks.py::test_pytorch_69031_a_parameter_unused_in_the_last_micro_batch death.py::test_transformers_22143_resume_inside_a_window) || true
	fi
	[ "${QUICK:-0}" = 1 ] || system gcc 1800 campaign "fault campaign and soak" \
		"env GACC_KILLS=${KILLS:-60} GACC_CAMPAIGN_S=15 GACC_SOAK_S=15" || true
else
	skip "gcc: tests" "the build failed"
fi

if [ "${QUICK:-0}" != 1 ]; then
	short="GACC_KILLS=20 GACC_CAMPAIGN_S=8 GACC_SOAK_S=12" # the campaigns in a build with sanitizers

	# An eighth of the unit tests and of the files of system tests run with each sanitizer, drawn by the commit's hash;
	# tests/long.sh runs all with both, and with clang alone.
	drawn="-DGACC_SAMPLE=$GACC_SAMPLE" drawn_tests="-LE not-drawn"
	# Without nvcc, too, all must be there.
	if build asan clang "-DGACC_SANITIZE=address,undefined -DGACC_CUDA=OFF $drawn"; then
		unit asan 1200 "" "$drawn_tests" || true
		system asan 1800 'smoke or sanitize or campaign' "system tests and faults, ASan+UBSan" "env GACC_SHARE=0/8 $short" || true
	else
		skip "asan: tests" "the build failed"
	fi

	fixed=$(tsan_prefix)
	if build tsan clang "-DGACC_SANITIZE=thread -DGACC_CUDA=OFF $drawn"; then
		unit tsan 1200 "$fixed" "$drawn_tests" || true
		system tsan 1800 'smoke or sanitize or campaign' "system tests and faults, TSan" "env GACC_SHARE=1/8 $short $fixed" || true
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
	stage "mutants, a sample" 1200 lines "tests/mutants/run.py --sample ${MUTANTS:-3} --seed $GACC_SAMPLE" || true
fi

stage "nothing is left behind" 30 one "deploy/leftovers.sh check '$logs/shm-before' '$TMPDIR'" || true
summary

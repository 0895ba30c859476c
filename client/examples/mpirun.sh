#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ranks of a job by mpirun (Open MPI): it tells each its rank, and ends all when one has failed.
#
#   mpirun.sh 2 linear.yaml ./linear
#   MPIRUN="mpirun --allow-run-as-root --oversubscribe" mpirun.sh 2 linear.yaml ./linear
set -eu
ranks=$1 file=$2
shift 2
GACC_JOB_ID=$(gaccctl submit -f "$file" -n "$ranks" -o name)
export GACC_JOB_ID
${MPIRUN:-mpirun} -n "$ranks" -x GACC_JOB_ID -x OMP_NUM_THREADS=1 "$@" || {
	gaccctl cancel "$GACC_JOB_ID" >/dev/null 2>&1
	exit 1
}

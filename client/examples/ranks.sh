#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ranks of a job by a loop of the shell, without any launcher: RANK, WORLD_SIZE and the job's number are all that a rank needs.
#
#   ranks.sh 2 linear.yaml ./linear
set -eu
ranks=$1 file=$2
shift 2
GACC_JOB_ID=$(gaccctl submit -f "$file" -n "$ranks" -o name)
export GACC_JOB_ID WORLD_SIZE="$ranks"
pids= failed=0
rank=0
while [ "$rank" -lt "$ranks" ]; do
	{ RANK=$rank "$@" || { gaccctl cancel "$GACC_JOB_ID" >/dev/null 2>&1; exit 1; }; } & # the others would wait for it
	pids="$pids $!"
	rank=$((rank + 1))
done
for pid in $pids; do
	wait "$pid" || failed=1
done
exit "$failed"

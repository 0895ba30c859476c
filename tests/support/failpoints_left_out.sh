#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# failpoints_left_out.sh ON GACCD LIBGACC: nothing of proto/failpoint.h is in these files, or, in a build with failpoints (ON is 1), it is.
set -eu
found=0
for file in "$2" "$3"; do
	! nm "$file" | grep -q ' failpoint_' || found=$((found + 1))
	! grep -qa GACC_FAILPOINTS_FILE "$file" || found=$((found + 1))
done
echo "$found of 4 traces of failpoints in $2 and $3"
[ "$found" = "$([ "$1" = 1 ] && echo 4 || echo 0)" ]

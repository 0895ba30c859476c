/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of partial and complete checkpoints, and whether a path lies beneath another. For checkpoint.c and for
 * gaccd's runtime and edge; pure, any thread. */
#include "store/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool checkpoint_beneath(const char *path, const char *root)
{
	size_t n = strlen(root);
	return !strncmp(path, root, n) && (!path[n] || path[n] == '/' || root[n - 1] == '/');
}

/* Bytes in hexadecimal behind the `at` characters that are there; where they end. */
static int put_hex(char out[CHECKPOINT_MAX_PATH], int at, const uint8_t *bytes, int n)
{
	for (int i = 0; i < n && at < CHECKPOINT_MAX_PATH; i++)
		at += snprintf(out + at, CHECKPOINT_MAX_PATH - (size_t)at, "%02x", bytes[i]);
	return at < CHECKPOINT_MAX_PATH ? at : CHECKPOINT_MAX_PATH - 1;
}

void checkpoint_partial_path(char out[CHECKPOINT_MAX_PATH], const char *dir, const uint8_t uuid[16], uint64_t id)
{
	int at = put_hex(out, snprintf(out, CHECKPOINT_MAX_PATH, "%s/.", dir), uuid, 16);
	snprintf(out + at, CHECKPOINT_MAX_PATH - (size_t)at, "-%" PRIu64 CHECKPOINT_PARTIAL, id);
}

void checkpoint_part_path(char out[CHECKPOINT_MAX_PATH], const char *partial, uint32_t part)
{
	if (part)
		snprintf(out, CHECKPOINT_MAX_PATH, "%.*s.p%" PRIu32, CHECKPOINT_MAX_PATH - 16, partial, part);
	else
		snprintf(out, CHECKPOINT_MAX_PATH, "%s", partial);
}

void checkpoint_final_path(char out[CHECKPOINT_MAX_PATH], const char *dir, const uint8_t uuid[16],
			   uint64_t applied_step, uint64_t id)
{
	int at = snprintf(out, CHECKPOINT_MAX_PATH, "%s/step-%" PRIu64 "-%" PRIu64 "-", dir, applied_step, id);
	put_hex(out, at, uuid, 4);
}

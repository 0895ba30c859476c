/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a checkpoint's files, whole or by part, and which of them a manifest can have. For manifest.c, for the
 * rest of store/, and for the engine's reader; pure, any thread. */
#include "store/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *checkpoint_part_name(enum checkpoint_part p)
{
	static const char *const names[CHECKPOINT_PARTS] = { "model.safetensors", "optimizer.safetensors",
							     "carry.safetensors", "window.safetensors" };
	return names[p];
}

void checkpoint_file_name(char out[CHECKPOINT_FILE_NAME], enum checkpoint_part p, uint32_t part, uint32_t n_parts)
{
	const char *name = checkpoint_part_name(p);
	if (n_parts > 1 && p != CHECKPOINT_MODEL)
		snprintf(out, CHECKPOINT_FILE_NAME, "%.*s-%05" PRIu32 "-of-%05" PRIu32 "%s", (int)strcspn(name, "."),
			 name, part + 1, n_parts, strchr(name, '.'));
	else
		snprintf(out, CHECKPOINT_FILE_NAME, "%s", name);
}

bool checkpoint_is_of_part(const char *name)
{
	char is[CHECKPOINT_FILE_NAME];
	uint32_t part = 0, n = 0;
	const char *numbers = strchr(name, '-');
	if (!numbers || sscanf(numbers, "-%5" SCNu32 "-of-%5" SCNu32, &part, &n) != 2 || !part || part > n || n < 2)
		return false;
	for (int p = CHECKPOINT_OPTIMIZER; p < CHECKPOINT_PARTS; p++) {
		checkpoint_file_name(is, (enum checkpoint_part)p, part - 1, n);
		if (!strcmp(is, name))
			return true;
	}
	return false;
}

const struct checkpoint_file *manifest_file(const struct manifest *m, uint32_t i, char name[CHECKPOINT_FILE_NAME])
{
	const uint32_t by_part = CHECKPOINT_PARTS - CHECKPOINT_OPTIMIZER, n_parts = manifest_by_part(m);
	if (i < CHECKPOINT_PARTS) {
		checkpoint_file_name(name, (enum checkpoint_part)i, 0, 1);
		return &m->file[i];
	}
	const uint32_t part = (i - CHECKPOINT_PARTS) / by_part;
	const uint32_t p = CHECKPOINT_OPTIMIZER + (i - CHECKPOINT_PARTS) % by_part;
	if (part >= n_parts && i > CHECKPOINT_PARTS + n_parts * by_part)
		return NULL;
	if (part >= n_parts) {
		snprintf(name, CHECKPOINT_FILE_NAME, "%s", CHECKPOINT_STATES_NAME);
		return &m->states;
	}
	checkpoint_file_name(name, (enum checkpoint_part)p, part, n_parts);
	return &m->part[part].file[p];
}

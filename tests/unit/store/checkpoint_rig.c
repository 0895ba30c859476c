/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of checkpoints share: a directory, and a checkpoint in it. */
#include "checkpoint_rig.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char dir[SCRATCH_PATH], partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
const uint8_t uuid[16] = { 0xab, 0xcd };
struct checkpoint_dir made;

void checkpoint_setup(void)
{
	ck_assert(scratch_make(dir));
	checkpoint_partial_path(partial, dir, uuid, 3);
	checkpoint_final_path(final, dir, uuid, 12, 3);
	why[0] = '\0';
}

void checkpoint_teardown(void)
{
	char command[96];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

void write_parts(const char *path, int n_parts, struct checkpoint_file *out)
{
	int fd;
	ck_assert_int_eq(checkpoint_make_dir(path, &made, &fd, why, sizeof(why)), ST_OK);
	for (int i = 0; i < n_parts; i++) {
		struct checkpoint_writer *w;
		ck_assert_int_eq(checkpoint_create(fd, (enum checkpoint_part)i, &w, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_reserve(w, 5, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_write(w, "ab", 2, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_write(w, "c", 1, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_finish(w, &out[i], why, sizeof(why)), ST_OK);
	}
	close(fd);
}

struct manifest example(void)
{
	struct manifest m = {
		.id = 3,
		.job = 7,
		.name = "n \"x\"",
		.uid = 1000,
		.created_unix_ns = 5,
		.window = 20,
		.applied_step = 12,
		.inside_window = true,
		.ranks = 4,
		.micro_size = 2,
		.optimizer = "adamw",
		.accumulate_dtype = "f32",
		.loss_scale = 1024,
		.params_digest = UINT64_MAX,
		.carry = { .count = 3, .sum_weight = 0.1, .sum_loss = NAN, .last_rank = 1, .lr = 0.3, .lr_rank = 2 },
		.spec = "spec",
		.n_spec = 4,
		.n_last = 4
	};
	memcpy(m.uuid, uuid, 16);
	m.last[0] = (struct manifest_value){ .name = "window", .whole = 19 };
	m.last[1] = (struct manifest_value){ .name = "digest", .whole = UINT64_C(1) << 63 };
	m.last[2] = (struct manifest_value){ .name = "lr", .is_real = true, .real = 1.0 / 3 };
	m.last[3] = (struct manifest_value){ .name = "norm", .is_real = true, .real = -INFINITY };
	return m;
}

void seal(int n_parts, bool inside)
{
	struct manifest m = example();
	uint8_t sum[32];
	m.inside_window = inside;
	write_parts(partial, n_parts, m.file);
	ck_assert_msg(!checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
}

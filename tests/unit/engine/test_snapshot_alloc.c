/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th allocation of a checkpoint fails, the writer's thread included: it is refused or fails as a whole, and
 * leaves nothing. */
#include "rig.h"

#include "base/log.h"
#include "engine/arith_host.h"
#include "engine/snapshot.h"
#include "support/nth.h"
#include "support/sample.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], path[96], why[256];

static uint64_t plenty(void)
{
	return UINT64_MAX;
}

/* A whole checkpoint, whose memory is wanted before it is written. */
static enum status save(const struct rig *rig, const struct memory *m, struct arith *arith, struct workers *w,
			struct engine_file files[ENGINE_FILES])
{
	struct snapshot *s = NULL;
	struct engine_dir made;
	enum status st = snapshot_new(&s, m, arith, w, plenty);
	if (!st)
		st = snapshot_begin(s, &rig->state, path, SNAPSHOT_ALL, why, sizeof(why));
	if (!st) {
		snapshot_protect(s, SEG_STATE1);
		snapshot_protect(s, SEG_PARAMS);
		poll(&(struct pollfd){ .fd = snapshot_fd(s), .events = POLLIN }, 1, -1);
		st = snapshot_end(s, files, &made, why, sizeof(why));
	}
	snapshot_free(s);
	return st;
}

#define EVERY 4 /* of the allocations one in so many, from a drawn one on */

START_TEST(any_allocation_may_fail)
{
	static const struct optim_config adamw = {
		.type = OPTIM_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
	};
	struct rig rig;
	struct rig_config c = rig_small();
	struct memory m = MEMORY_NONE;
	struct workers *w;
	struct arith *arith;
	struct engine_file whole[ENGINE_FILES], files[ENGINE_FILES];
	char command[128];
	unsigned n_failed = 0;
	c.optim = adamw;
	rig_open(&rig, &c);
	ck_assert_int_eq(memory_take(&m, dup(rig.plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig.n_segments; i++)
		ck_assert_int_eq(memory_take(&m, dup(rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(workers_new(&w, 2), ST_OK);
	ck_assert_int_eq(arith_host_open(&arith, &m, "", w), ST_OK);
	rig.state.r.filled = 1;
	rig.state.r.micro_size = 2;
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/saved", dir);
	snprintf(command, sizeof(command), "rm -r %s", path);
	for (unsigned n = 0, calls = 0; n <= calls; n += n ? EVERY : 1 + sample_seed() % EVERY) {
		nth_alloc_arm(n, false);
		enum status st = save(&rig, &m, arith, w, files);
		unsigned made = nth_alloc_disarm();
		if (n == 0) {
			ck_assert_int_eq(st, ST_OK);
			calls = made + 20; /* the two threads do not always share the work alike */
			memcpy(whole, files, sizeof(whole));
		}
		ck_assert_msg((access(path, F_OK) == 0) == !st, "allocation %u: %s, and the files are %s", n, why,
			      st ? "still there" : "not there");
		n_failed += st != ST_OK;
		ck_assert_msg(st || !memcmp(whole, files, sizeof(whole)), "allocation %u: other files", n);
		if (!st)
			ck_assert_int_eq(system(command), 0);
	}
	ck_assert_uint_gt(n_failed, 10);
	arith->ops->close(arith);
	workers_free(w);
	memory_fini(&m);
	rig_close(&rig);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0); /* its complaints are expected */
	Suite *s = suite_create("snapshot_alloc");
	TCase *c = tcase_create("snapshot_alloc");
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, any_allocation_may_fail);
	return suite_run(s);
}

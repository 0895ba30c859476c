/* SPDX-License-Identifier: Apache-2.0 */
/* When a checkpoint reads what it saves: far arenas before it writes anything, near ones piece by piece. */
#include "rig.h"

#include "base/log.h"
#include "engine/arith_host.h"
#include "engine/snapshot.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[96], why[256];
static const struct arith_ops *host;
static _Atomic unsigned n_before, n_after; /* reads: before the directory was made, and since */

static enum status note_read(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, void *to)
{
	atomic_fetch_add(access(path, F_OK) ? &n_before : &n_after, 1);
	return host->read(a, role, offset, n, to);
}

static uint64_t plenty(void)
{
	return UINT64_MAX;
}

static uint64_t none(void)
{
	return 0;
}

static const struct {
	bool is_far;
	uint64_t (*available)(void);
	bool at_once;
} cases[] = { { true, plenty, true }, { false, plenty, false }, { true, none, false } };
#define N_CASES (sizeof(cases) / sizeof(*cases))

START_TEST(far_arenas_are_read_first)
{
	static const struct optim_config adamw = {
		.type = OPTIM_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
	};
	char dir[SCRATCH_PATH], command[96];
	struct rig rig;
	struct rig_config c = rig_small();
	struct memory m = MEMORY_NONE;
	struct workers *w;
	struct arith *arith;
	struct snapshot *s;
	struct engine_file files[ENGINE_FILES];
	struct engine_dir made;
	c.tensor[0].shape[0] = c.tensor[4].shape[0] = 57 * 700; /* several chunks in each arena */
	c.optim = adamw;
	rig_open(&rig, &c);
	ck_assert_int_eq(memory_take(&m, dup(rig.plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig.n_segments; i++)
		ck_assert_int_eq(memory_take(&m, dup(rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(workers_new(&w, 2), ST_OK);
	ck_assert_int_eq(arith_host_open(&arith, &m, "", w), ST_OK);
	host = arith->ops;
	struct arith_ops noted = *host;
	noted.read = note_read;
	arith->ops = &noted;
	arith->is_far = cases[_i].is_far;
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/saved", dir);
	ck_assert_int_eq(snapshot_new(&s, &m, arith, w, cases[_i].available), ST_OK);
	ck_assert_int_eq(snapshot_begin(s, &rig.state, path, SNAPSHOT_STATE, why, sizeof(why)), ST_OK);
	poll(&(struct pollfd){ .fd = snapshot_fd(s), .events = POLLIN }, 1, -1);
	ck_assert_msg(!snapshot_end(s, files, &made, why, sizeof(why)), "%s", why);
	ck_assert_uint_gt(n_before + n_after, 10);
	ck_assert_uint_eq(cases[_i].at_once ? n_after : n_before, 0);
	snapshot_free(s);
	host->close(arith);
	workers_free(w);
	memory_fini(&m);
	rig_close(&rig);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0);
	Suite *s = suite_create("snapshot_far");
	TCase *c = tcase_create("snapshot_far");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, far_arenas_are_read_first, 0, N_CASES);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What libgacc decides without a daemon: who this process is, what it owes, when a call is repeated. */
#include "lib/channel.h"
#include "lib/env.h"
#include "lib/failure.h"
#include "lib/internal.h"
#include "lib/window.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- identity ---- */

static const char *get(void *ctx, const char *name)
{
	const char *const *env = ctx;

	for (; env[0]; env += 2)
		if (!strcmp(env[0], name))
			return env[1];
	return NULL;
}

static const struct {
	const char *env[12];
	int rank, world; /* arguments; -1: none */
	int want_rank, want_world;
	const char *want; /* source, or a word of the error when want_rank is -1 */
} identities[] = {
	{ { "RANK", "1", "WORLD_SIZE", "4" }, -1, -1, 1, 4, "RANK" },
	{ { "RANK", "1", "WORLD_SIZE", "4", "GACC_RANK", "2", "GACC_WORLD_SIZE", "3" }, -1, -1, 2, 3, "GACC_RANK" },
	{ { "SLURM_PROCID", "5", "SLURM_NTASKS", "6", "PMI_RANK", "0", "PMI_SIZE", "1" },
	  -1,
	  -1,
	  5,
	  6,
	  "SLURM_PROCID" },
	{ { "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "PMI_RANK", "7", "PMI_SIZE", "8" },
	  -1,
	  -1,
	  0,
	  2,
	  "OMPI_COMM_WORLD_RANK" },
	{ { "PMI_RANK", "7", "PMI_SIZE", "8" }, -1, -1, 7, 8, "PMI_RANK" },
	{ { "RANK", "1", "WORLD_SIZE", "4" }, 0, 2, 0, 2, "argument" },
	{ { "RANK", "1", "WORLD_SIZE", "4" }, 3, -1, 3, 4, "argument" },
	{ { "GACC_RANK", "", "GACC_WORLD_SIZE", "", "RANK", "1", "WORLD_SIZE", "2" }, -1, -1, 1, 2, "RANK" },
	/* half a pair is an error, even when a later pair is whole */
	{ { "GACC_RANK", "2", "RANK", "1", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "GACC_WORLD_SIZE" },
	{ { "WORLD_SIZE", "4" }, -1, -1, -1, 0, "RANK" },
	{ { "RANK", "x", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "RANK=x" },
	{ { "RANK", "-1", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "RANK=-1" },
	{ { "RANK", "1 ", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "RANK=1 " },
	{ { "RANK", "99999999999", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "RANK" },
	{ { "RANK", "4", "WORLD_SIZE", "4" }, -1, -1, -1, 0, "world of 4" },
	{ { NULL }, -1, -1, -1, 0, "no rank" },
};

START_TEST(identity)
{
	struct identity id;
	char err[256] = "";
	enum status st = identity_find(NULL, identities[_i].rank, identities[_i].world, get,
				       (void *)(uintptr_t)identities[_i].env, &id, err, sizeof(err));

	if (identities[_i].want_rank < 0) {
		ck_assert_int_eq(st, ST_INVALID_ARGUMENT);
		ck_assert_msg(strstr(err, identities[_i].want) != NULL, "error is: %s", err);
		return;
	}
	ck_assert_msg(st == ST_OK, "%s", err);
	ck_assert_int_eq(id.rank, identities[_i].want_rank);
	ck_assert_int_eq(id.world, identities[_i].want_world);
	ck_assert_str_eq(id.source, identities[_i].want);
}
END_TEST

START_TEST(identity_job)
{
	static const char *const both[] = { "GACC_JOB_ID", "7", "TORCHELASTIC_RUN_ID", "none", NULL };
	static const char *const elastic[] = { "TORCHELASTIC_RUN_ID", "r1", NULL };
	struct identity id;
	char err[256];

	ck_assert_int_eq(identity_find(NULL, 0, 1, get, (void *)(uintptr_t)both, &id, err, sizeof(err)), ST_OK);
	ck_assert_str_eq(id.job, "7");
	ck_assert_int_eq(identity_find("mine", 0, 1, get, (void *)(uintptr_t)both, &id, err, sizeof(err)), ST_OK);
	ck_assert_str_eq(id.job, "mine");
	ck_assert_int_eq(identity_find("", 0, 1, get, (void *)(uintptr_t)elastic, &id, err, sizeof(err)), ST_OK);
	ck_assert_str_eq(id.job, "r1");
	ck_assert_int_eq(identity_find(NULL, 0, 1, get, (void *)(uintptr_t)(elastic + 2), &id, err, sizeof(err)),
			 ST_OK);
	ck_assert_ptr_null(id.job);
}
END_TEST

/* ---- window ---- */

START_TEST(window_hands_out_in_order)
{
	struct window w = { 0 };
	uint32_t micro;
	bool last;

	ck_assert_int_eq(window_begin(&w, 5, 4, 3, 0), ST_OK);
	ck_assert(w.number == 5 && w.applied_step == 4 && w.loss_scale == 1);
	for (uint32_t want = 0; want < 3; want++) {
		for (int twice = 0; twice < 2; twice++) { /* the same one until it is pushed */
			ck_assert(window_next(&w, &micro, &last));
			ck_assert_uint_eq(micro, want);
			ck_assert_int_eq(last, want == 2);
		}
		window_pushed(&w, micro);
	}
	ck_assert(!window_next(&w, &micro, &last));
	ck_assert_int_eq(window_begin(&w, 6, 5, 1, 8), ST_OK);
	ck_assert(window_next(&w, &micro, &last) && micro == 0 && last && w.loss_scale == 8);
	window_give_up(&w);
	ck_assert(!window_next(&w, &micro, &last));
	window_fini(&w);
}
END_TEST

START_TEST(window_resumes_with_what_is_missing)
{
	const uint32_t missing[] = { 1, 4, 5, 7 }, queued[] = { 4 };
	struct window w = { 0 };
	uint32_t micro;
	bool last;

	ck_assert_int_eq(window_resume(&w, 9, 9, 8, 1, missing, 4, queued, 1), ST_OK);
	ck_assert(window_next(&w, &micro, &last) && micro == 1 && !last);
	window_pushed(&w, 1);
	ck_assert(window_next(&w, &micro, &last) && micro == 5); /* 4 is on its way */
	window_pushed(&w, 5);
	ck_assert(window_next(&w, &micro, &last) && micro == 7 && last);
	window_pushed(&w, 7);
	ck_assert(!window_next(&w, &micro, &last));
	ck_assert_int_eq(window_resume(&w, 10, 10, 8, 1, NULL, 0, NULL, 0), ST_OK); /* all counted before */
	ck_assert(!window_next(&w, &micro, &last));
	window_fini(&w);
}
END_TEST

/* A push that a recovery finds counted already is no longer in the list: pushing it must not skip the one after. */
START_TEST(window_pushed_skips_nothing)
{
	const uint32_t missing[] = { 3, 4 };
	struct window w = { 0 };
	uint32_t micro;
	bool last;

	ck_assert_int_eq(window_resume(&w, 1, 1, 8, 1, missing, 2, NULL, 0), ST_OK);
	window_pushed(&w, 2);
	ck_assert(window_next(&w, &micro, &last) && micro == 3);
	window_fini(&w);
}
END_TEST

START_TEST(window_refuses_nonsense)
{
	const uint32_t descending[] = { 2, 1 }, twice[] = { 1, 1 }, large[] = { 8 };
	struct window w = { 0 };

	ck_assert_int_eq(window_begin(&w, 3, 3, 2, 1), ST_OK);
	ck_assert_int_eq(window_resume(&w, 9, 9, 8, 1, descending, 2, NULL, 0), ST_MALFORMED);
	ck_assert_int_eq(window_resume(&w, 9, 9, 8, 1, twice, 2, NULL, 0), ST_MALFORMED);
	ck_assert_int_eq(window_resume(&w, 9, 9, 8, 1, large, 1, NULL, 0), ST_MALFORMED);
	ck_assert(w.number == 3 && w.n_missing == 2); /* as it was */
	window_fini(&w);
}
END_TEST

/* ---- failures ---- */

START_TEST(every_status_has_a_code)
{
	ck_assert_int_eq(gacc_status_of(ST_OK), GACC_OK);
	for (int st = 1; st < ST_COUNT; st++)
		ck_assert_int_lt(gacc_status_of((enum status)st), 0);
	ck_assert_int_eq(gacc_status_of(ST_WINDOW_CLOSED), GACC_ESTALE);
	ck_assert_int_eq(gacc_status_of(ST_SESSION_FENCED), GACC_ESTALE);
	ck_assert_int_eq(gacc_status_of(ST_LAYOUT_MISMATCH), GACC_ELAYOUT);
	ck_assert_int_eq(gacc_status_of(ST_STALLED), GACC_ETIMEOUT);
	ck_assert_int_eq(gacc_status_of(ST_JOB_NOT_FOUND), GACC_ENOTFOUND);
	ck_assert_int_eq(gacc_status_of(ST_BAD_WEIGHT), GACC_EINVAL);
	ck_assert_int_eq(gacc_status_of(ST_STORE_FAILED), GACC_EINTERNAL);
}
END_TEST

START_TEST(failure_says_what_who_and_what_next)
{
	struct rpc_failure rpc = { .status = ST_STALLED,
				   .message = "waiting for rank 3 (gpu-02 pid 55121) at 6/8 for 41 s",
				   .hint = "see: gaccctl status 7",
				   .missing_ranks = { 3, 5 },
				   .n_missing_ranks = 2 };
	struct failure f;

	ck_assert_int_eq(failure_of_rpc(&f, "wait for window 12 (job 7, rank 2)", &rpc), GACC_ETIMEOUT);
	ck_assert_str_eq(f.text,
			 "wait for window 12 (job 7, rank 2): waiting for rank 3 (gpu-02 pid 55121) at 6/8 for 41 s "
			 "(missing: ranks 3, 5); see: gaccctl status 7");
	ck_assert_str_eq(f.reason, "STALLED");
	rpc = (struct rpc_failure){ .status = ST_INTERNAL, .reason = "FROM_LATER" };
	failure_of_rpc(&f, "", &rpc);
	ck_assert_str_eq(f.reason, "FROM_LATER"); /* a name that this build does not know */
	ck_assert_str_eq(f.text, status_info(ST_INTERNAL)->text);
}
END_TEST

/* ---- repeating calls ---- */

static struct gacc_client client;
static struct gacc_job job;

struct script {
	enum status answer[8];
	int n;
};

static enum status scripted(struct gacc_job *j, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct script *s = arg;

	ck_assert_int_gt(timeout_ms, 0);
	failure->status = s->answer[s->n];
	return s->answer[s->n++];
}

static gacc_status run(struct script *s, int timeout_ms)
{
	static char endpoint[] = "dns:nowhere";

	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	job = (struct gacc_job){ .client = &client, .id = 7, .rank = 2, .outage_ms = 1000000, .memory.socket = -1 };
	return session_run(&job, "something", timeout_ms, scripted, s);
}

/* Names and paths are others' words, and a program prints the sentence. */
START_TEST(failures_act_on_no_terminal)
{
	struct failure f;
	char name[2000];

	failure_set(&f, ST_INVALID_ARGUMENT, "rename \x1b]0;x\a", "tensor \"a\x1b[2Jb\xc2\x9b%s\xff\"", "\xe2\x80\xae");
	ck_assert_str_eq(f.message, "tensor \"a\\x1b[2Jb\\u009b\\u202e\\xff\"");
	ck_assert_str_eq(f.hint, "rename \\x1b]0;x\\x07");
	ck_assert_str_eq(f.text, "tensor \"a\\x1b[2Jb\\u009b\\u202e\\xff\"; rename \\x1b]0;x\\x07");
	memset(name, '\x1b', sizeof(name) - 1); /* grows, and is cut between characters */
	name[sizeof(name) - 1] = '\0';
	failure_set(&f, ST_INVALID_ARGUMENT, NULL, "%s", name);
	ck_assert_uint_eq(strlen(f.message), 508);
	ck_assert_str_eq(f.message + 504, "\\x1b");
}
END_TEST

START_TEST(outages_are_repeated)
{
	struct script s = { { ST_UNAVAILABLE, ST_DRAINING, ST_ENGINE_DOWN, ST_STALLED, ST_CANCELLED, ST_OK }, 0 };

	ck_assert_int_eq(run(&s, -1), GACC_OK);
	ck_assert_int_eq(s.n, 6);
}
END_TEST

START_TEST(refusals_are_not)
{
	struct script s = { { ST_INVALID_ARGUMENT, ST_OK }, 0 };

	ck_assert_int_eq(run(&s, -1), GACC_EINVAL);
	ck_assert_int_eq(s.n, 1);
	ck_assert_str_eq(job.failure.text, "something (job 7, rank 2): invalid argument");
}
END_TEST

/* A daemon that has just started does not run yet what was running. */
START_TEST(not_ready_passes_once_it_ran)
{
	struct script s = { { ST_NOT_READY, ST_NOT_READY, ST_OK }, 0 };

	ck_assert_int_eq(run(&s, -1), GACC_EINVAL);
	job.running = true;
	ck_assert_int_eq(session_run(&job, "something", -1, scripted, &s), GACC_OK);
	ck_assert_int_eq(s.n, 3);
}
END_TEST

START_TEST(a_fence_is_for_good)
{
	struct script s = { { ST_UNAVAILABLE, ST_SESSION_FENCED, ST_OK }, 0 };

	ck_assert_int_eq(run(&s, -1), GACC_ESTALE);
	ck_assert_int_eq(s.n, 2);
	ck_assert(job.fenced);
	ck_assert_int_eq(job_enter(&job), GACC_ESTALE);
	ck_assert_ptr_nonnull(strstr(job.failure.text, "newer process"));
}
END_TEST

START_TEST(time_is_up)
{
	struct script s = { { ST_STALLED, ST_OK }, 0 };

	ck_assert_int_eq(run(&s, 0), GACC_ETIMEOUT);
	ck_assert_int_eq(s.n, 1);
}
END_TEST

START_TEST(an_outage_has_a_limit)
{
	struct script s = { { ST_UNAVAILABLE, ST_OK }, 0 };

	client = (struct gacc_client){ .endpoint = (char[]){ "dns:nowhere" }, .pid = getpid() };
	job = (struct gacc_job){ .client = &client, .outage_ms = 0, .memory.socket = -1 };
	ck_assert_int_eq(session_run(&job, "something", -1, scripted, &s), GACC_EUNAVAIL);
	ck_assert_int_eq(s.n, 1);
}
END_TEST

START_TEST(a_lost_session_is_repeated)
{
	struct script s = { { ST_SESSION_UNKNOWN, ST_INVALID_ARGUMENT }, 0 };

	ck_assert_int_eq(run(&s, -1), GACC_EINVAL);
	ck_assert_int_eq(s.n, 2);
	ck_assert(job.lost);
}
END_TEST

START_TEST(a_forked_child_keeps_off)
{
	client = (struct gacc_client){ .pid = getpid() + 1 };
	job = (struct gacc_job){ .client = &client };
	ck_assert_int_eq(job_enter(&job), GACC_EINVAL);
	gacc_detach(&job, 1); /* touches nothing: `job` is static memory */
	gacc_close(&client);
}
END_TEST

/* ---- parameters in pieces ---- */

START_TEST(any_piece_is_gathered)
{
	static const float a[] = { 1, 2, 3 }, b[] = { 4, 5 };
	const void *values[] = { a, NULL, b };
	struct tensor tensors[] = {
		{ .param_offset = 0, .count = 3, .param_dtype = GACC_F32 },
		{ .param_offset = 0, .count = 3, .param_dtype = GACC_F32, .alias = true },
		{ .param_offset = 64, .count = 2, .param_dtype = GACC_F32 },
	};
	struct layout layout = { .tensors = tensors, .n = 3, .param_bytes = 128 };
	unsigned char whole[128], guarded[3 * 128], *piece = guarded + 128;
	size_t outside = 0;

	layout_gather(&layout, values, 0, whole, sizeof(whole));
	ck_assert_mem_eq(whole, a, sizeof(a));
	ck_assert_mem_eq(whole + 64, b, sizeof(b));
	for (size_t i = 0; i < 52; i++)
		ck_assert_uint_eq(whole[12 + i], 0);
	for (size_t n = 1; n <= 128; n++)
		for (size_t at = 0; at + n <= 128; at++) {
			memset(guarded, 0xee, sizeof(guarded));
			layout_gather(&layout, values, at, piece, n);
			ck_assert_mem_eq(piece, whole + at, n);
			for (size_t i = 0; i < 128; i++)
				outside += guarded[i] != 0xee || (i >= n && piece[i] != 0xee);
			ck_assert_uint_eq(outside, 0);
		}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client state");
	TCase *tc = tcase_create("all");

	tcase_add_loop_test(tc, identity, 0, sizeof(identities) / sizeof(identities[0]));
	tcase_add_test(tc, identity_job);
	tcase_add_test(tc, window_hands_out_in_order);
	tcase_add_test(tc, window_resumes_with_what_is_missing);
	tcase_add_test(tc, window_pushed_skips_nothing);
	tcase_add_test(tc, window_refuses_nonsense);
	tcase_add_test(tc, every_status_has_a_code);
	tcase_add_test(tc, failure_says_what_who_and_what_next);
	tcase_add_test(tc, failures_act_on_no_terminal);
	tcase_add_test(tc, outages_are_repeated);
	tcase_add_test(tc, refusals_are_not);
	tcase_add_test(tc, not_ready_passes_once_it_ran);
	tcase_add_test(tc, a_fence_is_for_good);
	tcase_add_test(tc, time_is_up);
	tcase_add_test(tc, an_outage_has_a_limit);
	tcase_add_test(tc, a_lost_session_is_repeated);
	tcase_add_test(tc, a_forked_child_keeps_off);
	tcase_add_test(tc, any_piece_is_gathered);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

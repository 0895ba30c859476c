/* SPDX-License-Identifier: Apache-2.0 */
/* Placements of many large jobs for one node that is back: more than its link holds at a time; and a node that does not
 * answer its placement. */
#include "edge/hosted_life.h"
#include "edge/hosted_view.h"
#include "edge/links.h"
#include "edge/node_serve.h"
#include "edge/peer_link.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "far_rig.h"
#include "gacc/v1/common.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOBS = 4 };
#define SET_BYTES (40u << 20) /* of each job: two of them do not fit into a link */
#define FIVE_S UINT64_C(5000000000)

static struct hosted *job[JOBS], *divided;

static void on_b(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "b";
	spec->ranks = 2;
	spec->nodes = nodes;
}

static void on_b_and_c(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "b,c";
	spec->ranks = 2;
	spec->parts = 2;
	spec->nodes = nodes;
}

static void setup(void)
{
	void *set = calloc(1, SET_BYTES);
	rig_open();
	free(conf->node.name);
	conf->node.name = strdup("a");
	ck_assert_int_eq(node_serve_new(&d), ST_OK);
	for (uint64_t i = 0; i < JOBS; i++) {
		job[i] = rig_job(5 + i, getuid(), "ana", on_b);
		ck_assert(placing_note_tensors(job[i], set, SET_BYTES));
	}
	free(set);
	divided = rig_job(99, getuid(), "ana", on_b_and_c);
	far_serve(false);
}

static void teardown(void)
{
	far_close();
	rig_close();
	node_serve_free(&d);
}

static void hello(void)
{
	far_link(&far[1], NULL);
	far_hello(&far[1], "b", 1, 0);
	FAR_UNTIL(far[1].n[PEER_WELCOME]);
}

/* Ticks until all have come; what the link could not take is not left for the next repetition. */
START_TEST(all_placements_come_soon)
{
	const uint64_t end_ns = uv_hrtime() + FIVE_S;
	for (uint32_t i = 0; i < JOBS; i++)
		placing_send(job[i], daemon_now(&d)); /* there is no link */
	ck_assert(!links_have_room(&d, job[0]->part[0].node));
	hello();
	const struct peer_link *l = d.node_link[job[0]->part[0].node];
	ck_assert_uint_eq(l->lost, 0); /* they were not even made: that would hold up the loop */
	while (far[1].carried[LINK_PLACEMENT] < JOBS && uv_hrtime() < end_ns) {
		for (uint32_t i = 0; i < JOBS; i++)
			placing_tick(job[i], daemon_now(&d));
		far_turn();
	}
	ck_assert_uint_eq(far[1].carried[LINK_PLACEMENT], JOBS);
	ck_assert_uint_eq(l->lost, 0);
}
END_TEST

/* Lost, it is sent when there is room, and not after the time in which an answer might come. */
START_TEST(a_lost_placement_is_sent_soon)
{
	const uint64_t end_ns = uv_hrtime() + FIVE_S;
	hello();
	for (uint32_t i = 0; i < 2; i++)
		placing_send(job[i], daemon_now(&d));
	ck_assert_uint_eq(d.node_link[job[0]->part[0].node]->lost, 1);
	while (far[1].carried[LINK_PLACEMENT] < 2 && uv_hrtime() < end_ns) {
		placing_tick(job[1], daemon_now(&d));
		far_turn();
	}
	ck_assert_uint_eq(far[1].carried[LINK_PLACEMENT], 2);
}
END_TEST

static void reason_in(const struct hosted *h, int64_t s, const char *is)
{
	struct now now = daemon_now(&d);
	now.mono_ns += s * INT64_C(1000000000) + INT64_C(200000000);
	Gacc__V1__Job *j = hosted_view(h, 0, now);
	ck_assert_str_eq(j->reason, is);
	gacc__v1__job__free_unpacked(j, NULL);
}

/* Who submits, or looks, hears which node it is; of a node that is not linked only that it is not there. */
START_TEST(a_node_that_does_not_answer_is_named)
{
	static const char waits[] = "waits for a rank to register its tensors";
	struct hosted *h = divided;
	hello();
	placing_send(h, daemon_now(&d));
	FAR_UNTIL(far[1].carried[LINK_PLACEMENT] == 1);
	ck_assert(far[1].job == 99 && far[1].part == 0);
	reason_in(h, 1, waits);
	reason_in(h, 12, "part 0: node b has not answered its placement for 12 s");
	struct now now = daemon_now(&d);
	now.mono_ns += INT64_C(31000000000);
	placing_tick(h, now); /* repeated, it is not younger */
	FAR_UNTIL(far[1].carried[LINK_PLACEMENT] == 2);
	reason_in(h, 40, "part 0: node b has not answered its placement for 40 s");
	h->part[0].unanswered_ns -= INT64_C(50000000000);
	placing_linked(h, 0); /* it is asked anew */
	reason_in(h, 1, waits);
	reason_in(h, 5, "part 0: node b has not answered its placement for 5 s");
	placing_answered(h, 0);
	reason_in(h, 40, waits);
	placing_linked(h, 0);
	reason_in(h, 5, "part 0: node b has not answered its placement for 5 s");
	placing_refused(h, 0, ST_NO_MEMORY, "no");
	reason_in(h, 5, waits);
}
END_TEST

/* Of several the one that has waited longest. */
START_TEST(the_node_that_has_waited_longest_is_named)
{
	struct hosted *h = divided;
	const int64_t now_ns = daemon_now(&d).mono_ns;
	h->part[0].wanted = h->part[1].wanted = true;
	h->part[0].unanswered_ns = now_ns - INT64_C(3000000000);
	h->part[1].unanswered_ns = now_ns - INT64_C(4000000000);
	reason_in(h, 0, "part 1: node c has not answered its placement for 4 s");
	h->part[0].unanswered_ns = now_ns - INT64_C(7000000000);
	reason_in(h, 0, "part 0: node b has not answered its placement for 7 s");
}
END_TEST

static enum status told;
static char told_text[400];

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	ck_assert_ptr_null(h);
	told = st;
	snprintf(told_text, sizeof(told_text), "%s", why);
}

static void tick_in(struct hosted *h, int64_t s)
{
	struct now now = daemon_now(&d);
	now.mono_ns += s * INT64_C(1000000000) + INT64_C(200000000);
	hosted_tick(h, now);
}

/* Before its own deadline, and the job goes on; of two submitters each in its time. */
START_TEST(a_submitter_hears_who_does_not_answer)
{
	struct hosted *h = divided;
	const int64_t now_ns = daemon_now(&d).mono_ns, s = INT64_C(1000000000);
	hello();
	placing_send(h, daemon_now(&d));
	struct pending_submit *p = submitting_new(&d, h, on_submitted, NULL, now_ns + 9 * s);
	ck_assert_ptr_nonnull(p);
	ck_assert(submitting_join(p, on_submitted, NULL, now_ns + 1 * s));
	tick_in(h, 0);
	ck_assert_int_eq(told, ST_OK);
	tick_in(h, 1);
	ck_assert_int_eq(told, ST_DEADLINE);
	ck_assert_str_eq(told_text, "job 99 is submitted and goes on, but its memory is not there yet: see gaccctl "
				    "status 99, or end it with gaccctl cancel 99");
	told = ST_OK;
	tick_in(h, 8);
	ck_assert_int_eq(told, ST_OK);
	tick_in(h, 9);
	ck_assert_int_eq(told, ST_DEADLINE);
	ck_assert_str_eq(told_text,
			 "job 99 is submitted and goes on, but part 0: node b has not answered its placement for 9 s: "
			 "see gaccctl status 99, or end it with gaccctl cancel 99");
	ck_assert(!hosted_ended(h));
	told = ST_OK;
	ck_assert(submitting_join(p, on_submitted, NULL, INT64_MAX)); /* behind those who have been answered */
	submitting_end(&d, p, ST_NO_MEMORY, "no", NULL);
	ck_assert_int_eq(told, ST_NO_MEMORY);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("far_placing");
	TCase *c = tcase_create("far_placing");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, all_placements_come_soon);
	tcase_add_test(c, a_lost_placement_is_sent_soon);
	tcase_add_test(c, a_node_that_does_not_answer_is_named);
	tcase_add_test(c, the_node_that_has_waited_longest_is_named);
	tcase_add_test(c, a_submitter_hears_who_does_not_answer);
	return suite_run(s);
}

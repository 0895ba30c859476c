/* SPDX-License-Identifier: Apache-2.0 */
/* A job of several parts, all on a node that does not coordinate it: how they are placed, and what is heard of them. */
#include "divided_rig.h"

#include "cluster/event_message.h"
#include "cluster/ledger_message.h"
#include "cluster/placement_message.h"
#include "cluster/report_message.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/links.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

Suite *parts_suite(void);

static void turns(int n)
{
	while (n--)
		pair_turn(time(NULL) + 1, "");
}

static enum status submitted;
static char submitted_why[400];

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	submitted = st;
	snprintf(submitted_why, sizeof(submitted_why), "%s", why ? why : "");
}

static void submit(void)
{
	submitted = ST_INTERNAL;
	job->submitted_here = true;
	ck_assert_ptr_nonnull(submitting_new(&d, job, on_submitted, NULL, INT64_MAX));
	placing_send(job, node_now());
}

/* ---- placements ---- */

START_TEST(each_part_is_placed_with_its_ranks)
{
	placing_send(job, node_now());
	UNTIL(there_of(0) && there_of(1) && job->part[0].answered && job->part[1].answered);
	for (uint32_t i = 0; i < PARTS; i++) {
		const struct part_spec *is = job_part(there_of(i)->job);
		ck_assert(is->number == i && is->n_parts == PARTS && is->world == WORLD);
		ck_assert_uint_eq(is->spec->ranks, first_rank[i + 1] - first_rank[i]);
		for (uint32_t k = 0; k < is->spec->ranks; k++)
			ck_assert_uint_eq(part_global(is, k), first_rank[i] + k);
	}
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], PARTS);
	ck_assert_ptr_null(hosted_find(&other, DIVIDED));
}
END_TEST

static void note_window(void)
{
	const uint32_t n_words = (uint32_t)control_words(WORLD, job->spec->max_micro_size);
	struct decided k = { .commit = { .job_id = DIVIDED,
					 .window = 3,
					 .outcome = OUTCOME_APPLIED,
					 .micro_size = 1,
					 .next_micro_size = 1,
					 .next.scale.scale = 1 },
			     .counted = calloc(n_words, sizeof(uint64_t)),
			     .n_words = n_words };
	ck_assert_uint_eq(job->spec->max_micro_size, 64);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		k.counted[rank] = 10 + rank;
	ck_assert(placing_note_window(job, &k));
}

START_TEST(a_part_gets_the_bits_of_its_ranks)
{
	note_window();
	for (uint32_t i = 0; i < PARTS; i++) {
		struct held_placement p;
		char why[320];
		size_t n;
		void *bytes = placing_pack(job, i, &n);
		ck_assert_msg(!placement_unpack(bytes, n, NULL, &p, why, sizeof(why)), "%s", why);
		ck_assert_uint_eq(p.placement.n_windows, 1);
		const struct decided *w = p.placement.window;
		ck_assert_uint_eq(w->n_words, first_rank[i + 1] - first_rank[i]);
		for (uint32_t k = 0; k < w->n_words; k++)
			ck_assert_uint_eq(w->counted[k], 10 + first_rank[i] + k);
		placement_release(&p);
		free(bytes);
	}
	placing_answered(job, 1);
	ck_assert_uint_eq(job->place.n_windows, 1); /* the other one may have to be told again */
	placing_answered(job, 0);
	ck_assert_uint_eq(job->place.n_windows, 0);
}
END_TEST

START_TEST(what_is_lost_is_repeated_for_its_part_alone)
{
	seen.lost_part[1] = true;
	placing_send(job, node_now());
	UNTIL(job->part[0].answered);
	turns(3);
	ck_assert(!job->part[1].answered && !there_of(1));
	seen.lost_part[1] = false;
	UNTIL(job->part[1].answered);
	ck_assert_uint_eq(seen.n[LINK_PLACEMENT], PARTS + 1);
}
END_TEST

START_TEST(the_submitter_waits_for_all_parts)
{
	seen.lost_part[_i] = true;
	submit();
	UNTIL(job->part[1 - _i].ready);
	turns(3);
	ck_assert_int_eq(submitted, ST_INTERNAL);
	seen.lost_part[_i] = false;
	UNTIL(submitted != ST_INTERNAL);
	ck_assert_msg(submitted == ST_OK, "%s", submitted_why);
	ck_assert(job->part[0].ready && job->part[1].ready);
}
END_TEST

static void take_placed(struct placed p, uint32_t part)
{
	size_t n;
	p.job_id = DIVIDED;
	p.epoch = 1;
	void *bytes = placed_pack(&p, &n);
	const struct link_message m = { LINK_PLACED, DIVIDED, part, bytes, n, NULL, false, 0 };
	hosted_take_placed(&d, &m);
	free(bytes);
}

/* The job ends, and its other part gives its memory back. */
START_TEST(one_that_is_refused_ends_all)
{
	const char *reason;
	seen.lost_part[1] = true;
	submit();
	UNTIL(job->part[0].ready);
	ck_assert_uint_gt(other.node.host_bytes, 0);
	take_placed((struct placed){ .part = 1, .refused = true, .status = ST_VERSION_SKEW, .text = "no" }, 1);
	take_placed((struct placed){ .part = 0, .refused = true, .status = ST_INTERNAL, .text = "too late" }, 0);
	UNTIL(hosted_ended(job));
	hosted_state(job, &reason, NULL);
	ck_assert_str_eq(reason, "part 1: no");
	ck_assert_int_eq(submitted, ST_VERSION_SKEW);
	ck_assert_str_eq(submitted_why, "part 1: no");
	UNTIL(there_of(0)->mem.released);
	ck_assert_uint_eq(other.node.host_bytes, 0);
	ck_assert_ptr_null(there_of(1));
}
END_TEST

START_TEST(one_without_memory_is_named)
{
	submit();
	take_placed((struct placed){ .part = 1, .status = ST_RESOURCE_EXHAUSTED, .text = "no memory" }, 1);
	ck_assert_int_eq(submitted, ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(submitted_why, "part 1: no memory");
	UNTIL(hosted_ended(job));
}
END_TEST

START_TEST(all_are_dropped)
{
	placing_send(job, node_now());
	UNTIL(job->part[0].ready && job->part[1].ready);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job) && there_of(0)->mem.released && there_of(1)->mem.released);
	job->part[0].wanted = _i; /* only what was wanted */
	hosted_drop_machines(job);
	UNTIL(!there_of(1) && (!_i || !there_of(0)));
	turns(3);
	ck_assert_int_eq(there_of(0) == NULL, _i);
}
END_TEST

/* ---- what goes to one part, and comes from one ---- */

START_TEST(an_order_reaches_its_part_alone)
{
	placing_send(job, node_now());
	UNTIL(job->part[0].ready && job->part[1].ready);
	const struct order o = { .job_id = DIVIDED,
				 .epoch = 1,
				 .term = d.term,
				 .number = 1000,
				 .want = WANT_END,
				 .end_status = ST_CANCELLED,
				 .end_reason = "by ana" };
	links_send_order(&d, 0, 1, &o);
	UNTIL(job_ended(there_of(1)->job));
	ck_assert(!job_ended(there_of(0)->job));
}
END_TEST

/* What is not placed gets no orders. */
START_TEST(orders_wait_for_the_placement)
{
	coord_resend(job->coord, node_now());
	turns(2);
	ck_assert_uint_eq(seen.n[LINK_ORDER], 0);
	job->part[1].wanted = true;
	coord_resend(job->coord, node_now());
	turns(2);
	ck_assert_uint_eq(seen.n[LINK_ORDER], 1);
}
END_TEST

static const char *last_text(void)
{
	return events_at(&job->events, job->events.n - 1)->message;
}

START_TEST(events_name_their_part)
{
	placing_send(job, node_now());
	UNTIL(job->part[0].ready && job->part[1].ready);
	there_of(1)->ports.event(there_of(1), false, "Said", 3, "by its node");
	UNTIL(!strcmp(events_at(&job->events, job->events.n - 1)->reason, "Said"));
	ck_assert_str_eq(last_text(), "part 1: by its node");
	ck_assert_str_eq(events_at(&job->events, job->events.n - 1)->object, "rank 3");
	job = hosted_find(&d, JOB);
	const struct part_event e = { .job_id = JOB, .epoch = 1, .rank = -1, .reason = "Said", .text = "of the only" };
	hosted_part_event(job, &e);
	ck_assert_str_eq(last_text(), "of the only");
}
END_TEST

static void take_report(struct report r, uint32_t part)
{
	size_t n;
	void *bytes = report_pack(&r, &n);
	const struct link_message m = { LINK_REPORT, DIVIDED, part, bytes, n, NULL, false, 0 };
	hosted_take_report(&d, &m);
	free(bytes);
}

static struct report of_rank(uint32_t part, const struct rank_progress *rank)
{
	return (struct report){ .job_id = DIVIDED,
				.epoch = 1,
				.incarnation = 1,
				.term = d.term,
				.part = part,
				.rank = rank,
				.n_ranks = 1 };
}

START_TEST(messages_that_name_another_part_are_dropped)
{
	const struct rank_progress first = { .rank = 0, .known = true }, second = { .rank = 2, .known = true };
	const struct placed no = { .refused = true, .status = ST_INTERNAL };
	const struct part_event e = { .job_id = DIVIDED, .epoch = 1, .part = 1, .rank = -1, .reason = "Said" };
	uint64_t n_events = job->events.n;
	size_t n;
	void *bytes = event_pack(&e, &n);
	for (uint32_t part = 0; part <= PARTS; part += PARTS) { /* not 1, which they are of; there is no part 2 */
		const struct link_message m = { LINK_EVENT, DIVIDED, part, bytes, n, NULL, false, 0 };
		struct placed of_1 = no;
		of_1.part = part ? PARTS : 1;
		take_placed(of_1, part);
		hosted_take_event(&d, &m);
		take_report(of_rank(part ? PARTS : 1, part ? &second : &first), part);
	}
	ck_assert(!job->place.refused && !job->part[0].answered && !job->part[1].answered);
	ck_assert_uint_eq(job->events.n, n_events);
	take_report(of_rank(1, &first), 1); /* a rank of part 0 */
	ck_assert(!job->part[1].answered);
	take_report(of_rank(1, &second), 1);
	ck_assert(job->part[1].answered && !job->part[0].answered);
	free(bytes);
}
END_TEST

/* Such a report once made the coordinator send nothing more about the job, and say nothing of that. */
START_TEST(a_term_that_is_to_come_is_not_believed)
{
	const struct rank_progress one = { .rank = 2, .known = true };
	struct report r = of_rank(1, &one);
	r.term = d.term + 1;
	take_report(r, 1);
	ck_assert(!job->part[1].answered);
	r.term = d.term;
	take_report(r, 1);
	ck_assert(job->part[1].answered);
}
END_TEST

/* ---- a part speaks of its own ranks ---- */

static bool event_counts(uint32_t part, int64_t rank)
{
	const struct part_event e = { .job_id = DIVIDED, .epoch = 1, .part = part, .rank = rank, .reason = "Said" };
	const uint64_t before = job->events.n;
	size_t n;
	void *bytes = event_pack(&e, &n);
	const struct link_message m = { LINK_EVENT, DIVIDED, part, bytes, n, NULL, false, 0 };
	hosted_take_event(&d, &m);
	free(bytes);
	return job->events.n > before;
}

static bool ledger_counts(uint32_t part, uint64_t window, uint32_t first, uint32_t second)
{
	uint32_t rank[] = { first, second }, micro[] = { 0, 0 };
	double number[] = { 1, 1 };
	uint64_t key[] = { 0, 0 };
	int64_t when[] = { 1, 1 };
	const struct part_ledger l = { DIVIDED, 1,    5,     window, 2,	     2,	  0,	part,
				       2,	rank, micro, number, number, key, when, NULL };
	size_t n;
	void *bytes = ledger_pack(&l, &n);
	const struct link_message m = { LINK_LEDGER, DIVIDED, part, bytes, n, NULL, false, 0 };
	hosted_take_ledger(&d, &m);
	free(bytes);
	const struct hosted_ledger *is = &job->part[part].ledger;
	return is->window == window && is->n == 2;
}

START_TEST(ranks_of_other_parts_are_not_spoken_of)
{
	for (uint32_t part = 0; part < PARTS; part++)
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			const bool own = rank >= first_rank[part] && rank < first_rank[part + 1];
			ck_assert_int_eq(event_counts(part, rank), own);
			ck_assert_int_eq(ledger_counts(part, 1 + rank, first_rank[part], rank), own);
		}
	ck_assert(event_counts(1, -1));
}
END_TEST

Suite *parts_suite(void)
{
	Suite *s = suite_create("parts");
	TCase *t = tcase_create("parts");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, divided_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, each_part_is_placed_with_its_ranks);
	tcase_add_test(t, a_part_gets_the_bits_of_its_ranks);
	tcase_add_test(t, what_is_lost_is_repeated_for_its_part_alone);
	tcase_add_loop_test(t, the_submitter_waits_for_all_parts, 0, PARTS);
	tcase_add_test(t, one_that_is_refused_ends_all);
	tcase_add_test(t, one_without_memory_is_named);
	tcase_add_loop_test(t, all_are_dropped, 0, 2);
	tcase_add_test(t, an_order_reaches_its_part_alone);
	tcase_add_test(t, orders_wait_for_the_placement);
	tcase_add_test(t, events_name_their_part);
	tcase_add_test(t, messages_that_name_another_part_are_dropped);
	tcase_add_test(t, a_term_that_is_to_come_is_not_believed);
	tcase_add_test(t, ranks_of_other_parts_are_not_spoken_of);
	return s;
}

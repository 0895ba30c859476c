/* SPDX-License-Identifier: Apache-2.0 */
/* Reports and orders: every field goes through a message, and what is wrong with one is said, not believed. */
#include "cluster/order_message.h"
#include "cluster/report_message.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"
#include "unit/cluster/fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MICRO = 60, N = 3, WORDS = 3 };
static const uint32_t list[N] = { 2, 5, 9 };
static const struct part_ranks part = { N, list };
static const struct message_bounds bounds = { 12, MAX_MICRO, 5 };

/* ---- structs in which all members are set ---- */

static void fill_text(char *text, size_t n, char with)
{
	memset(text, with, n - 1);
	text[n - 1] = '\0';
}

/* What is left out of the message shows as a difference in some byte of `full_report`. */
static struct report full_report(const struct rank_progress *rank, const uint64_t *words)
{
	struct report r;
	fields_fill(&r, sizeof(r), 11);
	r.phase = WINDOW_PREPARED;
	r.start = START_PARAMS;
	r.complete = r.all_left = r.ended = true;
	r.count = 180;
	r.vote_suspects = 0x1f; /* all of five parts */
	fill_text(r.vote_text, sizeof(r.vote_text), 'f');
	fill_text(r.start_waits, sizeof(r.start_waits), 'a');
	fill_text(r.hindrance, sizeof(r.hindrance), 'b');
	fill_text(r.failed.text, sizeof(r.failed.text), 'c');
	fill_text(r.refusal, sizeof(r.refusal), 'd');
	fill_text(r.params_lost, sizeof(r.params_lost), 'e');
	r.failed.status = ST_NO_MEMORY;
	r.vote_status = ST_ATTEMPT_FAILED;
	r.refused = ST_NOT_READY;
	r.rank = rank;
	r.n_ranks = N;
	r.counted = words;
	r.n_words = WORDS;
	return r;
}

static void fill_ranks(struct rank_progress rank[N])
{
	fields_fill(rank, N * sizeof(*rank), 21);
	for (uint32_t i = 0; i < N; i++) {
		struct rank_progress *p = &rank[i];
		*p = (struct rank_progress){
			list[i],       i,	   10 + i, 20 + i,    30 + i,	   40 + i,
			RANK_LEFT,     true,	   true,   true,      true,	   true,
			p->waiting_ns, p->lost_ns, p->pid, p->weight, p->ready_ns, p->last_push_unix_ns
		};
	}
	rank[1].flushed = RANK_OPEN;
	rank[2].attached = false;
}

static const uint64_t some_words[WORDS] = { 1, UINT64_MAX, 7 };

/* Two reports member by member, all of them: a new one belongs here, too. */
static void expect_same(const struct report *a, const struct report *b)
{
#define SAME(field) ck_assert_msg(!memcmp(&a->field, &b->field, sizeof(a->field)), "%s", #field)
	SAME(job_id), SAME(epoch), SAME(incarnation), SAME(part), SAME(number), SAME(term), SAME(order), SAME(window);
	SAME(phase), SAME(start), SAME(start_waits), SAME(complete), SAME(all_left), SAME(hindrance);
	SAME(failed.status), SAME(failed.text), SAME(connected), SAME(pieces), SAME(ended);
	SAME(count), SAME(sum_weight), SAME(sum_loss), SAME(lr), SAME(lr_rank);
	SAME(vote_term), SAME(vote_attempt), SAME(vote_status), SAME(sumsq), SAME(nonfinite), SAME(digest);
	SAME(refused), SAME(refusal), SAME(params_digest), SAME(params_lost), SAME(armed), SAME(n_ranks), SAME(n_words);
	SAME(life), SAME(comm), SAME(vote_text), SAME(vote_suspects);
#undef SAME
	ck_assert(!a->n_words || !memcmp(a->counted, b->counted, a->n_words * sizeof(*a->counted)));
	for (uint32_t i = 0; i < a->n_ranks; i++) {
		const struct rank_progress *p = &a->rank[i], *q = &b->rank[i];
#define SAME(field) ck_assert_msg(p->field == q->field, "rank %u: %s", i, #field)
		SAME(rank), SAME(counted), SAME(voided), SAME(first_void), SAME(nonfinite), SAME(first_nonfinite);
		SAME(flushed), SAME(attached), SAME(lost), SAME(known), SAME(unwatched), SAME(silent);
		SAME(waiting_ns), SAME(lost_ns), SAME(pid), SAME(weight), SAME(ready_ns), SAME(last_push_unix_ns);
#undef SAME
	}
}
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct rank_progress) == 80, "compared above");
_Static_assert(sizeof(struct report) == 912 + 2 * REPORT_TEXT, "compared above");
_Static_assert(sizeof(struct late_rank) == 40, "compared below");
_Static_assert(sizeof(struct order) == 680, "compared below");

static struct order full_order(const struct late_rank *late, uint32_t n_late)
{
	struct order o = { .job_id = 101,
			   .epoch = 102,
			   .term = 103,
			   .window = 104,
			   .number = 105,
			   .uuid_high = 108,
			   .uuid_low = 110,
			   .want = WANT_COMMIT,
			   .attempt = 106,
			   .norms = true,
			   .run = true,
			   .end_status = ST_CANCELLED,
			   .late = late,
			   .n_late = n_late,
			   .paused = true,
			   .armed = 109,
			   .comm = 105,
			   .join_ms = 107,
			   .fill_part = 5 };
	fields_fill(&o.commit, sizeof(o.commit), 31);
	o.commit.job_id = 101;
	o.commit.window = 104;
	o.commit.outcome = OUTCOME_APPLIED;
	o.commit.skip_reason = SKIP_NONE;
	o.commit.micro_size = o.commit.next_micro_size = 4;
	o.commit.micro_count = 40;
	o.commit.last_rank = 11;
	o.commit.final = 1;
	fill_text(o.end_reason, sizeof(o.end_reason), 'z');
	return o;
}

/* ---- reports ---- */

START_TEST(a_report_comes_back)
{
	struct rank_progress rank[N];
	struct report back;
	char why[200];
	size_t n;
	fill_ranks(rank);
	struct report r = full_report(rank, some_words);
	void *bytes = report_pack(&r, &n);
	ck_assert_msg(!report_unpack(bytes, n, &part, &bounds, &back, why, sizeof(why)), "%s", why);
	expect_same(&back, &r);
	report_release(&back);
	free(bytes);
}
END_TEST

/* The first of a job's life, and more ranks than the stack has room for. */
START_TEST(reports_with_little_or_much_come_back)
{
	struct report r = { .job_id = 1 }, back;
	struct rank_progress many[100] = { 0 };
	const struct part_ranks whole = { 100, NULL };
	char why[200];
	size_t n;
	void *bytes = report_pack(&r, &n);
	ck_assert_int_eq(report_unpack(bytes, n, &part, &bounds, &back, why, sizeof(why)), ST_OK);
	expect_same(&back, &r);
	report_release(&back);
	free(bytes);
	for (uint32_t i = 0; i < 100; i++)
		many[i] = (struct rank_progress){ .rank = i, .counted = i % 7, .silent = i == 99 };
	r.rank = many;
	r.n_ranks = 100;
	bytes = report_pack(&r, &n);
	ck_assert_msg(!report_unpack(bytes, n, &whole, &bounds, &back, why, sizeof(why)), "%s", why);
	expect_same(&back, &r);
	report_release(&back);
	free(bytes);
}
END_TEST

static void expect_refused(const struct report *r, const char *text)
{
	struct report back;
	char why[200] = "";
	size_t n;
	void *bytes = report_pack(r, &n);
	ck_assert_int_eq(report_unpack(bytes, n, &part, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	free(bytes);
}

static void expect_rank_refused(const struct rank_progress *one, const char *text)
{
	struct rank_progress rank[N];
	fill_ranks(rank);
	rank[1] = *one;
	struct report r = full_report(rank, some_words);
	expect_refused(&r, text);
}

START_TEST(senseless_reports_are_refused)
{
	struct rank_progress rank[N];
	fill_ranks(rank);
	struct report r = full_report(rank, some_words);
	r.phase = WINDOW_APPLYING + 1, expect_refused(&r, "Report.phase is 5"), r = full_report(rank, some_words);
	r.phase = UINT32_MAX, expect_refused(&r, "Report.phase is 0"), r = full_report(rank, some_words);
	r.start = START_PARAMS + 1, expect_refused(&r, "Report.start is 4"), r = full_report(rank, some_words);
	r.n_words = 2, expect_refused(&r, "Report.counted has 2 words, and the part needs 3"),
	r = full_report(rank, some_words);
	r.count = 181, expect_refused(&r, "Report.count is 181, and may be at most 180"),
	r = full_report(rank, some_words);
	r.vote_suspects = 0x20, expect_refused(&r, "Report.vote_suspects is 0x20, and the job has 5 parts");
}
END_TEST

START_TEST(senseless_ranks_are_refused)
{
	const struct rank_progress good = { .rank = 5 };
	struct rank_progress p = good;
	p.rank = 4, expect_rank_refused(&p, "RankProgress.rank has 4"), p = good;
	p.rank = 2, expect_rank_refused(&p, "RankProgress.rank has 2"), p = good;
	p.rank = 12, expect_rank_refused(&p, "RankProgress.rank has 12"), p = good;
	p.counted = 31, p.voided = 30, expect_rank_refused(&p, "counted with voided is 61, and may be at most 60"),
	p = good;
	p.counted = UINT32_MAX, p.voided = 2, expect_rank_refused(&p, "counted with voided is 4294967297"), p = good;
	p.first_void = 61, expect_rank_refused(&p, "first_void or first_nonfinite is 61"), p = good;
	p.first_nonfinite = 99, expect_rank_refused(&p, "first_void or first_nonfinite is 99"), p = good;
	p.nonfinite = 61, expect_rank_refused(&p, "RankProgress.nonfinite is 61"), p = good;
	p.flushed = 3, expect_rank_refused(&p, "RankProgress.flushed is 3"), p = good;
	p.waiting_ns = -1, expect_rank_refused(&p, "rank 5 has an age or a pid below 0"), p = good;
	p.lost_ns = -1, expect_rank_refused(&p, "rank 5 has an age"), p = good;
	p.ready_ns = -1, expect_rank_refused(&p, "rank 5 has an age"), p = good;
	p.pid = -1, expect_rank_refused(&p, "rank 5 has an age");
}
END_TEST

/* Text of others: cut within a character, or none. A peer would refuse the whole message for it. */
START_TEST(any_text_is_sent)
{
	struct report r = { .hindrance = "caf\xc3", .refusal = "\xff ok" }, back;
	char why[200];
	size_t n;
	void *bytes = report_pack(&r, &n);
	ck_assert_int_eq(report_unpack(bytes, n, &part, &bounds, &back, why, sizeof(why)), ST_OK);
	ck_assert_str_eq(back.hindrance, "caf?");
	ck_assert_str_eq(back.refusal, "? ok");
	report_release(&back);
	free(bytes);
}
END_TEST

/* By hand: Report{phase 1, start 1, ranks{}, and one field}. */
static enum status read_with(const char *field, size_t n_field, struct report *out, char *why, size_t n_why)
{
	uint8_t bytes[600] = { 0x48, 1, 0x50, 1, 0x5a, 0 };
	memcpy(bytes + 6, field, n_field);
	return report_unpack(bytes, 6 + n_field, &part, &bounds, out, why, n_why);
}

START_TEST(newer_reports_are_read)
{
	struct report r;
	char why[200];
	ck_assert_int_eq(read_with("\xa2\x1f\x01x", 4, &r, why, sizeof(why)), ST_OK); /* field 500 */
	report_release(&r);
	ck_assert_int_eq(read_with("\xea\x01\x03NEW", 6, &r, why, sizeof(why)), ST_OK); /* vote_status */
	ck_assert_int_eq(r.vote_status, ST_INTERNAL);
	report_release(&r);
	/* hindrance of 300 bytes, all in characters of two: 199 fit, of which the last would be half a character */
	char text[4 + 300];
	memcpy(text, "\x8a\x01\xac\x02", 4);
	for (size_t i = 4; i < sizeof(text); i += 2)
		memcpy(text + i, "\xc3\xa9", 2);
	ck_assert_msg(!read_with(text, sizeof(text), &r, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(strlen(r.hindrance), REPORT_TEXT - 2);
	ck_assert_str_eq(r.hindrance + REPORT_TEXT - 4, "\xc3\xa9");
	report_release(&r);
}
END_TEST

/* A report of a part of three ranks with these bytes as its ranks; NULL: without them. */
static const char *why_refused(const uint8_t *ranks, uint8_t n)
{
	static char why[200];
	uint8_t bytes[100] = { 0x48, 1, 0x50, 1, 0x5a, n }; /* phase and start */
	struct report r;
	if (ranks)
		memcpy(bytes + 6, ranks, n);
	enum status st = report_unpack(bytes, ranks ? 6 + (size_t)n : 4, &part, &bounds, &r, why, sizeof(why));
	ck_assert_int_eq(st, ST_VERSION_SKEW);
	return why;
}
#define WHY(...) why_refused((const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ }))
#define FIXED(n) n, 0, 0, 0

START_TEST(columns_must_fit)
{
	/* n 2, rank [2, 5], counted with three entries */
	ck_assert_str_eq(WHY(0x08, 2, 0x12, 8, FIXED(2), FIXED(5), 0x1a, 12, FIXED(1), FIXED(1), FIXED(1)),
			 "RankProgress.counted has 3 entries for 2 ranks");
	ck_assert_str_eq(WHY(0x08, 3, 0x12, 8, FIXED(2), FIXED(5)), "RankProgress.rank has 2 entries for 3 ranks");
	ck_assert_str_eq(WHY(0x08, 2, 0x1a, 4, FIXED(1)), "RankProgress.rank is missing");
	ck_assert_str_eq(WHY(0x08, 4, 0x12, 4, FIXED(2)), "RankProgress.n is 4, and may be at most 3");
	ck_assert_str_eq(WHY(0x08, 2, 0x12, 4, FIXED(5)),
			 "RankProgress.rank has 6, which is not a rank of the part in its place");
	ck_assert_str_eq(WHY(0x08, 1, 0x12, 4, FIXED(5), 0x4a, 4, FIXED(33)),
			 "RankProgress.flags is 33, and may be at most 31");
	ck_assert_str_eq(why_refused(NULL, 0), "Report.ranks is missing");
}
END_TEST

/* What is the same of all ranks is sent once: so many bytes for each rank, whatever the others are. */
START_TEST(a_column_that_is_the_same_for_all_ranks_is_one_entry)
{
	static struct rank_progress many[1000];
	const struct part_ranks whole = { 1000, NULL };
	struct report r = { .job_id = 1, .rank = many, .n_ranks = 1000 }, back;
	const double weights[] = { 128, -0.0, NAN };
	char why[200];
	size_t n, n_varied;
	for (int k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < 1000; i++)
			many[i] = (struct rank_progress){
				.rank = i, .counted = 7, .known = 1, .weight = weights[k], .waiting_ns = 77
			};
		void *bytes = report_pack(&r, &n);
		ck_assert_uint_lt(n, 100);
		ck_assert_int_eq(report_unpack(bytes, n, &whole, &bounds, &back, why, sizeof(why)), ST_OK);
		ck_assert(k == 2 ? isnan(back.rank[999].weight) : back.rank[999].weight == weights[k]);
		ck_assert_int_eq(back.rank[999].waiting_ns, 77);
		report_release(&back);
		free(bytes);
	}
	many[500].counted = 8;
	free(report_pack(&r, &n_varied));
	ck_assert_uint_lt(n_varied, n + 4 * 1000 + 10);
}
END_TEST

/* ---- orders ---- */

static void expect_same_order(const struct order *a, const struct order *b)
{
#define SAME(field) ck_assert_msg(!memcmp(&a->field, &b->field, sizeof(a->field)), "%s", #field)
	SAME(job_id), SAME(epoch), SAME(term), SAME(window), SAME(number), SAME(want), SAME(attempt), SAME(norms);
	SAME(run), SAME(end_status), SAME(end_reason), SAME(n_late), SAME(paused), SAME(armed), SAME(commit);
	SAME(comm), SAME(join_ms), SAME(fill_part), SAME(uuid_high), SAME(uuid_low);
	for (uint32_t i = 0; i < a->n_late; i++) {
		SAME(late[i].rank), SAME(late[i].counted), SAME(late[i].micro_size), SAME(late[i].pid);
		SAME(late[i].waiting_ns), SAME(late[i].attached), SAME(late[i].lost), SAME(late[i].known);
	}
#undef SAME
}

START_TEST(orders_come_back)
{
	struct late_rank late[ORDER_MAX_LATE];
	for (uint32_t i = 0; i < ORDER_MAX_LATE; i++)
		late[i] = (struct late_rank){ i % 12, 20 + i, 40 + i, 60 + i, 80 + i, i & 1, i & 2, i & 4 };
	for (int want = WANT_NOTHING; want <= WANT_END; want++) {
		struct order o = full_order(late, want == WANT_GO ? 0 : ORDER_MAX_LATE);
		struct held_order back;
		char why[200];
		size_t n;
		o.want = (enum want)want;
		void *bytes = order_pack(&o, &n);
		ck_assert_msg(!order_unpack(bytes, n, &bounds, &back, why, sizeof(why)), "%s", why);
		if (want != WANT_COMMIT) /* it is left out */
			o.commit = (struct commit){ 0 };
		expect_same_order(&back.order, &o);
		free(bytes);
	}
}
END_TEST

static void expect_order_refused(const struct order *o, const char *text)
{
	struct held_order back;
	char why[200] = "";
	size_t n;
	void *bytes = order_pack(o, &n);
	ck_assert_int_eq(order_unpack(bytes, n, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	free(bytes);
}

START_TEST(senseless_orders_are_refused)
{
	const struct late_rank late = { .rank = 12 };
	const uint8_t no_commit[] = { 0x30, 4 };
	struct order o = full_order(NULL, 0);
	struct held_order back;
	char why[200];
	o.want = WANT_END + 1, expect_order_refused(&o, "Order.want is 6"), o = full_order(NULL, 0);
	o.commit.outcome = 9, expect_order_refused(&o, "Commit.outcome is 9"), o = full_order(NULL, 0);
	o.commit.last_rank = 12, expect_order_refused(&o, "Commit.last_rank is 12, and the job has 12"),
	o = full_order(NULL, 0);
	o.fill_part = 6, expect_order_refused(&o, "Order.fill_part is 6, with the communicator 105 of 5 parts"),
	o = full_order(NULL, 0);
	o.comm = 0, expect_order_refused(&o, "Order.fill_part is 5, with the communicator 0 of 5 parts"),
	o = full_order(NULL, 0);
	o.want = WANT_GO, o.comm = 107, expect_order_refused(&o, "Order.comm is 107, after attempt 106"),
	o = full_order(NULL, 0);
	o.window = 105, expect_order_refused(&o, "Order.commit is of window 104 of job 101"), o = full_order(NULL, 0);
	o.job_id = 7, expect_order_refused(&o, "Order.commit is of window 104 of job 101"), o = full_order(&late, 1);
	expect_order_refused(&o, "LateRank.rank is 12, and the job has 12 ranks");
	ck_assert_int_eq(order_unpack(no_commit, 2, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Order.commit is missing");
	ck_assert_int_eq(order_unpack(no_commit, 0, &bounds, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_str_eq(why, "Order.want is 0");
}
END_TEST

/* ---- any bytes ---- */

/* Whatever they are: refused with a sentence, or something that keeps the rules. */
static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct held_order order;
	struct report r;
	unsigned accepted = 0;
	char why[200] = "";
	enum status st = report_unpack(bytes, n, &part, &bounds, &r, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st) {
		ck_assert(r.n_ranks <= N && (!r.n_words || r.n_words == WORDS) && r.phase <= WINDOW_APPLYING);
		ck_assert_uint_lt(r.vote_suspects, 1u << 5);
		for (uint32_t i = 0; i < r.n_ranks; i++)
			ck_assert(r.rank[i].rank < 12 && r.rank[i].counted <= MAX_MICRO);
		report_release(&r);
	}
	accepted += !st;
	*why = '\0';
	st = order_unpack(bytes, n, &bounds, &order, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (order.order.n_late <= ORDER_MAX_LATE && order.order.want <= WANT_END));
	ck_assert(st || (order.order.fill_part <= 5 && (order.order.comm || !order.order.fill_part)));
	accepted += !st;
	return accepted;
}

START_TEST(any_bytes_are_read_or_refused)
{
	const struct late_rank late = { 3, 4, 5, 6, 7, true, true, true };
	struct rank_progress rank[N];
	size_t n;
	fill_ranks(rank);
	struct report r = full_report(rank, some_words);
	r.start_waits[20] = r.hindrance[20] = r.failed.text[20] = r.refusal[20] = r.params_lost[20] = '\0';
	void *bytes = report_pack(&r, &n);
	altered_try(bytes, n, 4000, try_bytes);
	free(bytes);
	struct order o = full_order(&late, 1);
	bytes = order_pack(&o, &n);
	altered_try(bytes, n, 4000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("link messages");
	TCase *c = tcase_create("link messages");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_report_comes_back);
	tcase_add_test(c, reports_with_little_or_much_come_back);
	tcase_add_test(c, senseless_reports_are_refused);
	tcase_add_test(c, senseless_ranks_are_refused);
	tcase_add_test(c, any_text_is_sent);
	tcase_add_test(c, newer_reports_are_read);
	tcase_add_test(c, columns_must_fit);
	tcase_add_test(c, a_column_that_is_the_same_for_all_ranks_is_one_entry);
	tcase_add_test(c, orders_come_back);
	tcase_add_test(c, senseless_orders_are_refused);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}

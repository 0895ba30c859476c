/* SPDX-License-Identifier: Apache-2.0 */
/* Reports and orders of one gaccd on its link to itself: whom they reach, and what is dropped. The daemon is a loop, a
 * node without memory or engines, and the link. */
#include "edge/links.h"

#include "base/log.h"
#include "cluster/board_message.h"
#include "cluster/link.h"
#include "coll/coll.h"
#include "cluster/order_message.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/part_ports.h"
#include "edge/parts.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HERE = 7, ELSEWHERE = 8, UNKNOWN = 99, RANKS = 3 };

static struct daemon d;
static struct hosted *hosted; /* of job HERE: coordinator and part are here */
static struct part *own;      /* that one */
static struct part *part;     /* of job ELSEWHERE: the part alone */
static uint32_t n_reports;
static struct report last; /* of that part */

/* ---- ports of a part whose coordinator is on another machine ---- */

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
}

static void on_report(void *ctx, const struct report *r)
{
	n_reports++;
	last = *r;
}

static void on_event(void *ctx, bool warning, const char *reason, int64_t rank, const char *text)
{
}

/* ---- a board on its way to its part ---- */

static uint32_t n_boards[2];

static void take_board(struct daemon *to, const struct link_message *m)
{
	n_boards[m->part]++;
	part_take_board(to, m);
}

/* ---- the daemon ---- */

static struct prepared *prepare(void)
{
	Gacc__V1__JobSpec spec = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__Optimizer sgd = GACC__V1__OPTIMIZER__INIT;
	char name[] = "links";
	sgd.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD;
	sgd.lr = 0.5;
	spec.name = name;
	spec.ranks = RANKS;
	spec.micro_size = 2;
	spec.optimizer = &sgd;
	return prepared_new(&spec);
}

static void setup(void)
{
	static const struct part_ports elsewhere = { .reply = on_reply, .report = on_report, .event = on_event };
	static char kernels[] = "auto", name[] = "a";
	static struct conf conf;
	log_init("test", LOG_TEXT, LOG_INFO);
	conf.engine.kernels = kernels;
	conf.node.name = name;
	d.node.conf = &conf;
	d.node.incarnation = d.term = 1;
	d.posted_tail = &d.posted;
	ck_assert_int_eq(uv_loop_init(&d.node.loop), 0);
	uv_idle_init(&d.node.loop, &d.idle);
	d.idle.data = &d;
	static links_take *const takes[LINK_KINDS] = {
		[LINK_REPORT] = hosted_take_report, [LINK_ORDER] = part_take_order, [LINK_PLACED] = hosted_take_placed,
		[LINK_DROP] = parts_take_drop,	    [LINK_BLOB] = hosted_take_blob, [LINK_BOARD] = take_board
	};
	ck_assert_int_eq(links_new(&d, takes), ST_OK);
	struct prepared *p = prepare();
	ck_assert_int_eq(hosted_new(&d, HERE, getuid(), "ana", p, &hosted), ST_OK);
	ck_assert_int_eq(hosted_add(&d, hosted), ST_OK);
	prepared_free(p);
	hosted->part[0].wanted = true;
	const struct part_origin here = {
		.job = HERE, .epoch = 1, .uid = getuid(), .user = "ana", .n_parts = 1, .text = hosted->text
	};
	ck_assert_int_eq(part_new(&d.node, &here, part_ports(), &own), ST_OK);
	ck_assert_int_eq(part_publish(own), ST_OK);
	p = prepare();
	struct specification *text = specification_new(p);
	prepared_free(p);
	const struct part_origin o = {
		.job = ELSEWHERE, .epoch = 1, .n_parts = 1, .uid = getuid(), .user = "ana", .text = text
	};
	ck_assert_int_eq(part_new(&d.node, &o, &elsewhere, &part), ST_OK);
	specification_drop(text);
	ck_assert_int_eq(part_publish(part), ST_OK);
}

static void teardown(void)
{
	hosted_free_all(&d);
	d.node.stopping = true;
	parts_free_all(&d);
	daemon_drop_posted(&d);
	links_free(&d);
	ck_assert_ptr_null(d.link);
	uv_close((uv_handle_t *)&d.idle, NULL);
	uv_run(&d.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&d.node.loop), 0);
	free(d.node.part);
}

/* Turns of the loop, until nothing is left to do. */
static void run(void)
{
	uv_run(&d.node.loop, UV_RUN_DEFAULT);
	ck_assert(link_is_empty(d.link));
}

/* The same; what was logged meanwhile. */
static const char *run_and_read_log(void)
{
	static char text[8192];
	int p[2], old = dup(STDERR_FILENO);
	ck_assert_int_eq(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
	dup2(p[1], STDERR_FILENO);
	run();
	dup2(old, STDERR_FILENO);
	ssize_t n = read(p[0], text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	close(p[0]);
	close(p[1]);
	close(old);
	return text;
}

static struct report report_of(uint64_t job, const struct rank_progress rank[RANKS])
{
	return (struct report){
		.job_id = job, .epoch = 1, .incarnation = 1, .number = 1, .rank = rank, .n_ranks = RANKS
	};
}

static struct order end_of(uint64_t job)
{
	return (struct order){ .job_id = job,
			       .epoch = 1,
			       .term = 1,
			       .number = 4,
			       .want = WANT_END,
			       .end_status = ST_CANCELLED,
			       .end_reason = "by ana" };
}

static const struct rank_progress progress[RANKS] = { { .rank = 0 },
						      { .rank = 1, .attached = 1, .known = 1, .counted = 1 },
						      { .rank = 2 } };

/* ---- reports ---- */

static const struct rank_progress *seen(void)
{
	return &coord_ranks(hosted->coord, &(uint32_t){ 0 })[1];
}

START_TEST(a_report_reaches_the_coordinator)
{
	struct report r = report_of(HERE, progress);
	links_send_report(&d, &r);
	ck_assert_uint_eq(seen()->attached, 0); /* not while its sender is at work */
	run();
	ck_assert_uint_eq(seen()->attached, 1);
	ck_assert_uint_eq(seen()->counted, 1);
}
END_TEST

START_TEST(reports_keep_their_order)
{
	struct rank_progress rank[RANKS];
	memcpy(rank, progress, sizeof(rank));
	for (uint32_t i = 1; i <= 2; i++) {
		struct report r = report_of(HERE, rank);
		r.number = i;
		rank[1].counted = i;
		links_send_report(&d, &r);
		rank[1].counted = 0; /* it is packed: what it pointed to is not looked at any more */
	}
	run();
	ck_assert_uint_eq(seen()->counted, 2);
}
END_TEST

START_TEST(a_report_of_an_unknown_job_is_dropped)
{
	struct report r = report_of(UNKNOWN, progress);
	links_send_report(&d, &r);
	r = report_of(ELSEWHERE, progress); /* its part is here, its coordinator is not */
	links_send_report(&d, &r);
	ck_assert_str_eq(run_and_read_log(), "");
	ck_assert_uint_eq(seen()->attached, 0);
}
END_TEST

START_TEST(a_report_of_a_job_that_is_over_is_dropped)
{
	struct report r = report_of(HERE, progress);
	links_send_report(&d, &r);
	hosted_drop_machines(hosted);
	ck_assert_str_eq(run_and_read_log(), "");
}
END_TEST

/* ---- orders ---- */

START_TEST(an_order_from_elsewhere_reaches_the_part)
{
	struct order o = end_of(ELSEWHERE);
	ck_assert_ptr_null(hosted_find(&d, ELSEWHERE));
	links_send_order(&d, 0, 0, &o);
	ck_assert(!job_ended(part->job));
	run();
	ck_assert(job_ended(part->job));
	ck_assert_uint_eq(n_reports, 1); /* it says so */
	ck_assert(last.ended);
	ck_assert_uint_eq(last.order, 4);
	ck_assert(!job_ended(own->job));
}
END_TEST

/* With its late ranks and its commit, which are not in the struct's own memory. */
START_TEST(an_order_is_whole)
{
	const struct late_rank late[] = { { .rank = 2, .counted = 1, .micro_size = 2, .pid = 55 } };
	struct order o = { .job_id = ELSEWHERE, .epoch = 1, .term = 3, .number = 9, .late = late, .n_late = 1 };
	o.run = o.paused = true;
	links_send_order(&d, 0, 0, &o);
	run();
	ck_assert(part->begun); /* from now on its memory must not be lost */
	ck_assert(job_is_paused(part->job));
	job_tick(part->job, node_now());
	ck_assert_uint_eq(last.term, 3);
	ck_assert_uint_eq(last.order, 9);
}
END_TEST

START_TEST(an_order_for_no_part_is_dropped)
{
	struct order o = end_of(UNKNOWN);
	links_send_order(&d, 0, 0, &o);
	ck_assert_str_eq(run_and_read_log(), "");
	ck_assert(!job_ended(part->job) && !job_ended(own->job));
}
END_TEST

/* The part's answer goes into the same queue, for the next run. */
START_TEST(an_order_is_answered_over_the_link)
{
	struct order o = end_of(HERE);
	links_send_order(&d, 0, 0, &o);
	uv_run(&d.node.loop, UV_RUN_NOWAIT);
	ck_assert(job_ended(own->job));
	ck_assert(!link_is_empty(d.link));
	run();
}
END_TEST

/* ---- addresses ---- */

/* Job HERE has two parts now, whose engines have lives 21 and 22. */
static void make_two_parts(void)
{
	const struct part_ranks parts[2] = { { 2, (const uint32_t[]){ 0, 1 } }, { 1, (const uint32_t[]){ 2 } } };
	const struct coord_ports ports = hosted_coord_ports(hosted);
	coord_free(hosted->coord);
	hosted->text->spec.parts = hosted->n_parts = 2;
	free(hosted->part);
	hosted->part = calloc(2, sizeof(*hosted->part));
	ck_assert_int_eq(coord_new(&hosted->coord, HERE, hosted->spec, 1, 2, parts, &ports), ST_OK);
	ck_assert_int_eq(coord_set_collectives(hosted->coord, INT64_C(1000000000)), ST_OK);
	n_boards[0] = n_boards[1] = 0;
	hosted->part[0].wanted = hosted->part[1].wanted = true;
	for (uint32_t i = 0; i < 2; i++) {
		struct report r = report_of(HERE, progress);
		r.part = i;
		r.n_ranks = 0;
		r.start = START_ALLOCATED;
		r.life = 21 + i;
		links_send_report(&d, &r);
	}
}

static struct part_blob blob_of(uint32_t part_number)
{
	return (struct part_blob){ .job_id = HERE,
				   .epoch = 1,
				   .part = part_number,
				   .term = 1,
				   .comm = 1,
				   .life = 21 + part_number,
				   .bytes = "secret",
				   .n = 6 };
}

START_TEST(addresses_of_all_engines_go_to_all_parts)
{
	make_two_parts();
	for (uint32_t i = 0; i < 2; i++) {
		const struct part_blob b = blob_of(i);
		ck_assert_uint_eq(n_boards[0], 0);
		links_send_blob(&d, &b);
		run();
	}
	ck_assert(n_boards[0] == 1 && n_boards[1] == 1);
}
END_TEST

START_TEST(addresses_of_unknown_jobs_are_dropped)
{
	struct part_blob b = blob_of(0);
	b.job_id = UNKNOWN;
	links_send_blob(&d, &b);
	const struct coll_address address = { 1, "secret", 6 };
	const struct part_board board = { UNKNOWN, 1, 1, 1, 1, &address };
	links_send_board(&d, 0, 0, &board);
	b.job_id = HERE; /* which has one part and forms no communicator */
	links_send_blob(&d, &b);
	ck_assert_str_eq(run_and_read_log(), "");
}
END_TEST

/* ... and nothing of them is shown. */
START_TEST(addresses_beyond_the_jobs_bounds_are_refused)
{
	static const char *const texts[] = {
		"an address about part 0 is dropped: PartBlob.part is another one",
		"an address about part 0 is dropped: PartBlob.part is 2, and the job has 2 parts"
	};
	const char *log;
	size_t n;
	make_two_parts();
	for (uint32_t i = 0; i < 2; i++) {
		struct part_blob b = blob_of(1 + i);
		void *bytes = blob_pack(&b, &n);
		links_send(&d, LINK_BLOB, HERE, 0, bytes, n);
		log = run_and_read_log();
		ck_assert_msg(strstr(log, texts[i]), "%s", log);
		ck_assert_ptr_null(strstr(log, "secret"));
	}
	const struct coll_address address[2] = { { 1, "secret", 6 }, { 2, "secret", 6 } };
	const struct part_board board = { HERE, 1, 1, 1, 2, address };
	links_send_board(&d, 0, 0, &board); /* the part here is the only one, as far as it knows */
	log = run_and_read_log();
	ck_assert_msg(strstr(log, "a board of addresses about part 0 is dropped: PartBoard.part has 2 addresses, and "
				  "the job has 1"),
		      "%s", log);
	ck_assert_ptr_null(strstr(log, "secret"));
}
END_TEST

/* ---- what cannot be read ---- */

static void send_bytes(enum link_kind kind, uint64_t job, uint32_t number, const char *bytes, size_t n)
{
	void *copy = malloc(n);
	memcpy(copy, bytes, n);
	ck_assert(link_send(d.link, kind, job, number, copy, n));
}

START_TEST(malformed_messages_are_logged_and_dropped)
{
	send_bytes(LINK_ORDER, ELSEWHERE, 0, "\xff\xff\xff", 3);
	const char *log = run_and_read_log();
	ck_assert_msg(strstr(log, "ERROR LinkMessage job=8: an order about part 0 is dropped: ") != NULL, "%s", log);
	ck_assert(!job_ended(part->job));
	send_bytes(LINK_REPORT, HERE, 2, "\x0a", 1);
	log = run_and_read_log();
	ck_assert_msg(strstr(log, "ERROR LinkMessage job=7: a report about part 2 is dropped: ") != NULL, "%s", log);
	struct report r = report_of(HERE, progress); /* nothing is stuck behind them */
	links_send_report(&d, &r);
	run();
	ck_assert_uint_eq(seen()->attached, 1);
}
END_TEST

/* It can be unpacked, and is about another job than it says. */
START_TEST(orders_beyond_the_jobs_bounds_are_refused)
{
	const struct late_rank late[] = { { .rank = RANKS, .micro_size = 2 } };
	struct order o = end_of(ELSEWHERE);
	o.late = late;
	o.n_late = 1;
	links_send_order(&d, 0, 0, &o);
	const char *log = run_and_read_log();
	ck_assert_msg(strstr(log, "an order about part 0 is dropped: ") != NULL, "%s", log);
	ck_assert(!job_ended(part->job));
	struct rank_progress rank[RANKS];
	memcpy(rank, progress, sizeof(rank));
	rank[1].counted = 65; /* of at most 64 */
	struct report r = report_of(HERE, rank);
	links_send_report(&d, &r);
	log = run_and_read_log();
	ck_assert_msg(strstr(log, "a report about part 0 is dropped: ") != NULL, "%s", log);
	ck_assert_uint_eq(seen()->attached, 0);
}
END_TEST

/* gaccd ends with messages on their way: their memory is freed (LeakSanitizer). */
START_TEST(messages_on_their_way_at_the_end)
{
	struct report r = report_of(HERE, progress);
	struct order o = end_of(ELSEWHERE);
	links_send_report(&d, &r);
	links_send_order(&d, 0, 0, &o);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("links");
	TCase *t = tcase_create("links");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, addresses_of_all_engines_go_to_all_parts);
	tcase_add_test(t, addresses_of_unknown_jobs_are_dropped);
	tcase_add_test(t, addresses_beyond_the_jobs_bounds_are_refused);
	tcase_add_test(t, a_report_reaches_the_coordinator);
	tcase_add_test(t, reports_keep_their_order);
	tcase_add_test(t, a_report_of_an_unknown_job_is_dropped);
	tcase_add_test(t, a_report_of_a_job_that_is_over_is_dropped);
	tcase_add_test(t, an_order_from_elsewhere_reaches_the_part);
	tcase_add_test(t, an_order_is_whole);
	tcase_add_test(t, an_order_for_no_part_is_dropped);
	tcase_add_test(t, an_order_is_answered_over_the_link);
	tcase_add_test(t, malformed_messages_are_logged_and_dropped);
	tcase_add_test(t, orders_beyond_the_jobs_bounds_are_refused);
	tcase_add_test(t, messages_on_their_way_at_the_end);
	return suite_run(s);
}

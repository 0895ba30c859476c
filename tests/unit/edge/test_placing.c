/* SPDX-License-Identifier: Apache-2.0 */
/* Two gaccds in one process: the rig's coordinates jobs and has no part of them, the other has the parts and
 * coordinates nothing. What they tell each other are the messages of the links, carried from one to the other; the
 * engine is real. And placements that are wrong. */
#include "edge_rig.h"

#include "base/log.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/links.h"
#include "edge/part_ports.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "edge/submitting.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "gacc/v1/common.pb-c.h"
#include "host/process.h"
#include "rpc/pool.h"
#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { JOB = 7, RANKS = 2, MICROS = 2, CALLS = 32, PATIENCE_S = 60 };

static struct daemon other; /* the node */
static struct part_ports ports;
static struct hosted *job; /* at the coordinator */
static struct {
	uint32_t calls;
	bool answered[CALLS];
	struct reply reply[CALLS];
	struct placed placed; /* the node's last answer */
	uint32_t n_placed, n_placements, n_reports;
	bool deaf; /* the node hears nothing */
	bool deaf_coordinator;
} seen;

/* ---- the two gaccds ---- */

static void placement_to_node(struct daemon *from, const struct link_message *m)
{
	seen.n_placements++;
	if (!seen.deaf)
		parts_take_placement(&other, m);
}

static void order_to_node(struct daemon *from, const struct link_message *m)
{
	part_take_order(&other, m);
}

static void drop_to_node(struct daemon *from, const struct link_message *m)
{
	parts_take_drop(&other, m);
}

static void report_to_coordinator(struct daemon *from, const struct link_message *m)
{
	seen.n_reports++;
	hosted_take_report(&d, m);
}

static void placed_to_coordinator(struct daemon *from, const struct link_message *m)
{
	char why[200];
	seen.n_placed++;
	ck_assert_msg(!placed_unpack(m->bytes, m->n, &seen.placed, why, sizeof(why)), "%s", why);
	if (!seen.deaf_coordinator)
		hosted_take_placed(&d, m);
}

static links_take *const of_coordinator[LINK_KINDS] = {
	[LINK_PLACEMENT] = placement_to_node, [LINK_ORDER] = order_to_node, [LINK_DROP] = drop_to_node
};
static void event_to_coordinator(struct daemon *from, const struct link_message *m)
{
	hosted_take_event(&d, m);
}

static links_take *const of_node[LINK_KINDS] = { [LINK_REPORT] = report_to_coordinator,
						 [LINK_PLACED] = placed_to_coordinator,
						 [LINK_EVENT] = event_to_coordinator };

static void on_reply(void *part, uint64_t call, const struct reply *r)
{
	ck_assert_uint_lt(call, CALLS);
	seen.answered[call] = true;
	seen.reply[call] = *r;
}

static void setup(void)
{
	rig_open();
	d.link_takes = of_coordinator;
	conf->engine.threads = 1;
	conf->log.level = LOG_ERROR;
	memset(&seen, 0, sizeof(seen));
	ports = *part_ports();
	ports.reply = on_reply;
	other = (struct daemon){ .node = { .conf = conf, .incarnation = 1 }, .ports = &ports };
	other.posted_tail = &other.posted;
	ck_assert_int_eq(uv_loop_init(&other.node.loop), 0);
	ck_assert_int_eq(fdstore_open(&other.node.fdstore, &other.node.stored, &other.node.n_stored), ST_OK);
	ck_assert_int_eq(fdstore_start(other.node.fdstore, &other.node.loop), ST_OK);
	ck_assert_int_eq(rpc_pool_new(&other.node.loop, &other.node.pool), ST_OK);
	uv_idle_init(&other.node.loop, &other.idle);
	other.idle.data = &other;
	ck_assert_int_eq(links_new(&other, of_node), ST_OK);
	job = rig_job(JOB, getuid(), "ana", NULL);
}

static void teardown(void)
{
	other.node.stopping = true;
	while (rpc_pool_busy(other.node.pool))
		uv_run(&other.node.loop, UV_RUN_ONCE);
	ck_assert_ptr_null(other.arriving);
	daemon_drop_posted(&other);
	links_free(&other);
	parts_free_all(&other);
	rpc_pool_free(other.node.pool);
	fdstore_close(other.node.fdstore);
	uv_close((uv_handle_t *)&other.idle, NULL);
	uv_run(&other.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&other.node.loop), 0);
	free(other.node.stored);
	free(other.node.part);
	rig_close();
}

static void turn(time_t end, const char *what)
{
	const char *reason = "";
	const struct timespec ms = { .tv_nsec = 1000000 };
	if (time(NULL) > end)
		hosted_state(job, &reason, NULL);
	ck_assert_msg(time(NULL) <= end, "waited %d s for: %s; %s; %s", PATIENCE_S, what, reason, seen.placed.text);
	uv_run(&d.node.loop, UV_RUN_NOWAIT);
	uv_run(&other.node.loop, UV_RUN_NOWAIT);
	hosted_tick(job, node_now());
	parts_tick(&other, node_now());
	nanosleep(&ms, NULL);
}

#define UNTIL(condition)                                                                                               \
	do {                                                                                                           \
		time_t end = time(NULL) + PATIENCE_S;                                                                  \
		while (!(condition))                                                                                   \
			turn(end, #condition);                                                                         \
	} while (0)

static struct part *there(void)
{
	return part_find(&other.node, JOB);
}

/* ---- trainers of the node ---- */

static struct session_key attach(uint32_t rank)
{
	uint64_t call = seen.calls++;
	const struct attach_args a = { .rank = rank,
				       .world_size = RANKS,
				       .uid = getuid(),
				       .pid = getpid(),
				       .start_time = process_start_time(getpid()),
				       .nonce = { (uint8_t)(rank + 1) },
				       .shared_memory = true };
	struct session_key key = { .rank = rank, .uid = getuid(), .pid = getpid() };
	job_attach(there()->job, call, &a, node_now());
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
	memcpy(key.token, seen.reply[call].attach.token, sizeof(key.token));
	job_on_mapped(there()->job, rank, seen.reply[call].attach.generation);
	return key;
}

static void push(const struct session_key *key, uint32_t micro, float value)
{
	uint64_t call = seen.calls++;
	struct part *p = there();
	uint32_t n, slot = job_session_slots(p->job, key->rank, &n) + micro % 2;
	float *data = part_map(p, SEG_SLOT, slot, true);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < RIG_ELEMENTS; i++)
		data[i] = value;
	const struct push_args a = { .window = job_window(p->job), .micro = micro, .slot = micro % 2, .weight = 1 };
	job_push(p->job, call, key, &a, node_now());
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
	ck_assert_uint_eq(seen.reply[call].push.result, PUSH_COUNTED);
}

/* ---- a job whose part is elsewhere ---- */

START_TEST(a_job_runs_where_it_is_not_coordinated)
{
	struct session_key key[RANKS];
	uint32_t n;
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_ptr_null(hosted_find(&other, JOB)); /* a part without its coordinator */
	ck_assert_ptr_null(part_find(&d.node, JOB));  /* a coordinator without a part */
	ck_assert_ptr_null(hosted_part(job));
	ck_assert_uint_eq(d.node.host_bytes, 0);
	ck_assert_uint_gt(other.node.host_bytes, 0);
	ck_assert(seen.n_placed && !seen.placed.refused && !seen.placed.status);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = attach(rank);
	push(&key[0], 0, 1);
	UNTIL(coord_ranks(job->coord, &n)[0].counted == 1);
	ck_assert_uint_eq(coord_ranks(job->coord, &n)[1].attached, 1);
	push(&key[1], 0, 2);
	push(&key[0], 1, 3);
	push(&key[1], 1, 4);
	UNTIL(job_window(there()->job) == 1 && coord_applied_step(job->coord) == 1);
	ck_assert_uint_eq(coord_last_commit(job->coord)->micro_count, 4);
	const float *params = part_map(there(), SEG_PARAMS, 0, false);
	ck_assert_float_eq(params[RIG_ELEMENTS - 1], 1 - 0.5F * 2.5F);
	ck_assert_uint_eq(seen.n_placements, 1);
}
END_TEST

START_TEST(its_part_ends_with_it)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job) && there()->mem.released);
	ck_assert_uint_eq(other.node.host_bytes, 0);
	part_hold(there());
	hosted_drop_machines(job);
	UNTIL(there()->dropped);
	for (int i = 0; i < 5; i++)
		turn(time(NULL) + 1, "");
	ck_assert_ptr_nonnull(there()); /* somebody uses it */
	part_drop(there());
	UNTIL(!there());
}
END_TEST

START_TEST(a_lost_placement_is_repeated)
{
	struct now now = node_now();
	seen.deaf = true;
	placing_send(job, now);
	UNTIL(seen.n_placements == 1);
	seen.deaf = false;
	now.mono_ns += 900000000;
	placing_tick(job, now);
	now.mono_ns += 200000000;
	placing_tick(job, now);
	UNTIL(there());
	ck_assert_uint_eq(seen.n_placements, 2);
	UNTIL(job->place.answered);
	now.mono_ns += INT64_C(3000000000);
	placing_tick(job, now);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n_placements, 2);
	ck_assert_uint_eq(there()->engine.starts, 1);
}
END_TEST

static void with_a_long_label(Gacc__V1__JobSpec *spec)
{
	static char key[] = "long", text[80 << 10];
	static Gacc__V1__Label label, *list[] = { &label };
	gacc__v1__label__init(&label);
	memset(text, 'x', sizeof(text) - 1);
	label.key = key;
	label.value = text;
	spec->labels = list;
	spec->n_labels = 1;
}

START_TEST(a_large_specification_is_read_in_the_pool)
{
	job = rig_job(JOB + 1, getuid(), "ana", with_a_long_label);
	size_t n;
	void *bytes = placing_pack(job, &n);
	const struct link_message m = { LINK_PLACEMENT, JOB + 1, 0, bytes, n };
	parts_take_placement(&other, &m);
	ck_assert_ptr_nonnull(other.arriving);
	ck_assert_ptr_null(part_find(&other.node, JOB + 1));
	UNTIL(part_find(&other.node, JOB + 1));
	ck_assert_ptr_null(other.arriving);
	free(bytes);
}
END_TEST

START_TEST(a_drop_overtakes_a_placement_that_is_read)
{
	job = rig_job(JOB + 1, getuid(), "ana", with_a_long_label);
	size_t n, n_drop;
	void *bytes = placing_pack(job, &n), *drop = drop_pack(&(struct drop){ JOB + 1, 1, 0 }, &n_drop);
	const struct link_message m[] = { { LINK_PLACEMENT, JOB + 1, 0, bytes, n },
					  { LINK_DROP, JOB + 1, 0, drop, n_drop } };
	parts_take_placement(&other, &m[0]);
	parts_take_drop(&other, &m[1]);
	UNTIL(!other.arriving);
	ck_assert_uint_eq(other.node.n_parts, 0);
	free(bytes);
	free(drop);
}
END_TEST

static enum status submitted;
static char submitted_why[400];

static void on_submitted(void *arg, struct hosted *h, bool existed, enum status st, const char *why, const char *field)
{
	submitted = st;
	snprintf(submitted_why, sizeof(submitted_why), "%s", why ? why : "");
}

/* The submitter hears what the node says. */
START_TEST(a_node_without_room_says_so)
{
	submitted = ST_INTERNAL;
	ck_assert_ptr_nonnull(submitting_new(&d, job, on_submitted, NULL));
	conf->limits.host_memory = 1000;
	placing_send(job, node_now());
	UNTIL(submitted != ST_INTERNAL);
	ck_assert_int_eq(submitted, ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(submitted_why, "limits.host_memory is 1000 B") != NULL, "%s", submitted_why);
	UNTIL(hosted_ended(job));
	ck_assert_int_gt(hosted_history_when(job, "AllocationFailed"), 0); /* the node's event */
}
END_TEST

static void note(uint64_t window)
{
	struct decided k = { .commit.window = window, .counted = calloc(2, sizeof(uint64_t)), .n_words = 2 };
	ck_assert(placing_note_window(job, &k));
}

/* The last sixteen, behind one that the journal lacks. */
START_TEST(windows_of_a_placement_follow_each_other)
{
	const struct hosted_place *p = &job->place;
	for (uint64_t i = 3; i < 8; i++)
		note(i);
	ck_assert_uint_eq(p->n_windows, 5);
	note(9);
	ck_assert_uint_eq(p->n_windows, 1);
	for (uint64_t i = 10; i < 30; i++)
		note(i);
	ck_assert_uint_eq(p->n_windows, PLACEMENT_MAX_WINDOWS);
	for (uint32_t i = 0; i < PLACEMENT_MAX_WINDOWS; i++)
		ck_assert_uint_eq(p->window[i].commit.window, 14 + i);
	placing_answered(job);
	ck_assert_uint_eq(p->n_windows, 0);
	ck_assert_ptr_null(p->window);
}
END_TEST

/* ---- wrong placements ---- */

static const uint32_t all[RANKS] = { 0, 1 }, one[] = { 1 };
static struct held_placement right;

static struct placement good(void)
{
	return right.placement;
}

/* The node says why, has no part, and goes on. */
static void expect_refused(const struct placement *p, uint64_t sent_for, const char *text)
{
	size_t n;
	void *bytes = placement_pack(p, &n);
	const struct link_message m = { LINK_PLACEMENT, sent_for, 0, bytes, n };
	uint32_t before = seen.n_placed;
	parts_take_placement(&other, &m);
	free(bytes);
	UNTIL(seen.n_placed > before);
	ck_assert(seen.placed.refused);
	ck_assert_uint_eq(seen.placed.job_id, sent_for);
	ck_assert_int_eq(seen.placed.status, ST_VERSION_SKEW);
	ck_assert_msg(strstr(seen.placed.text, text) != NULL, "%s, not: %s", seen.placed.text, text);
	ck_assert_uint_eq(other.node.n_parts, 0);
}

START_TEST(wrong_placements_are_refused)
{
	char why[320];
	size_t n;
	void *bytes = placing_pack(job, &n);
	ck_assert_int_eq(placement_unpack(bytes, n, &right, why, sizeof(why)), ST_OK);
	struct placement p = good();
	uint64_t bits[2] = { 0 };
	struct decided window = { .counted = bits, .n_words = 2 };
	seen.deaf_coordinator = true;
#define REFUSED(change, text) change, expect_refused(&p, JOB, text), p = good()
	expect_refused(&p, JOB + 1, "Placement.job_id is 7, and it was sent for job 8");
	REFUSED(p.job_id = 0, "Placement.job_id is missing");
	REFUSED(p.cluster[15] = 1, "Placement.cluster is set, and this node is in no cluster");
	REFUSED(p.epoch = 0, "Placement.epoch is missing");
	REFUSED(p.term = 0, "Placement.term is missing");
	REFUSED(p.user = "", "Placement.user is missing");
	REFUSED(p.part = 1, "Placement.part is 1 and heal_from 0, and the job has 1 parts");
	REFUSED(p.n_parts = 2, "Placement.part is one of 2");
	REFUSED(p.node = "elsewhere", "Placement.node is \"elsewhere\", and this is ");
	REFUSED((p.rank = one, p.n_ranks = 1), "with 1 of 2 ranks");
	REFUSED((p.rank = all, p.ranks = 3), "with 2 of 3 ranks");
	REFUSED(p.max_micro_size = 65, "max_micro_size 65, and its specification has 2 and 64");
	REFUSED(p.spec.n = 0, "Placement.spec is missing");
	REFUSED(p.spec.n--, "Placement.spec: ");
	REFUSED(p.tensors = ((struct placement_bytes){ "x", 1 }), "Placement.tensors has 1 bytes");
	REFUSED(p.begin = PLACEMENT_RESTORE, "Placement.begin is RESTORE, and its specification names no checkpoint");
	REFUSED(p.begin = PLACEMENT_HEAL, "Placement.begin is HEAL");
	REFUSED(p.begin = 0, "Placement.begin is 0");
	REFUSED(p.heal_from = 1, "heal_from 1");
	REFUSED((p.window = &window, p.n_windows = 1), "Commit");
	placement_release(&right);
	const struct link_message garbage = { LINK_PLACEMENT, JOB, 0, "\xff\xff", 2 };
	parts_take_placement(&other, &garbage);
	ck_assert_uint_eq(other.node.n_parts, 0);
	const struct link_message m = { LINK_PLACEMENT, JOB, 0, bytes, n }; /* nothing is in the way of a good one */
	parts_take_placement(&other, &m);
	ck_assert_ptr_nonnull(there());
	free(bytes);
}
END_TEST

/* A new job ends with the node's reason; one of an earlier gaccd is set aside, and nothing of it is lost. */
START_TEST(a_refusal_ends_or_sets_aside)
{
	struct placed no = { .job_id = JOB,
			     .epoch = 1,
			     .refused = true,
			     .status = ST_VERSION_SKEW,
			     .text = "Placement.tensors: they are of no use" };
	const char *reason;
	size_t n;
	job->submitted_here = _i;
	job->place.wanted = true;
	void *bytes = placed_pack(&no, &n);
	const struct link_message m = { LINK_PLACED, JOB, 0, bytes, n };
	hosted_take_placed(&d, &m);
	UNTIL(hosted_ended(job));
	ck_assert_int_eq(hosted_state(job, &reason, NULL), JOB_FAILED);
	ck_assert_int_eq(job->aside, !_i);
	ck_assert_msg(strstr(reason, _i ? "Placement.tensors: they are of no use"
					: "cannot read its record TENSORS in the journal: they are of no use") != NULL,
		      "%s", reason);
	hosted_take_placed(&d, &m); /* it is over */
	free(bytes);
}
END_TEST

START_TEST(answers_of_other_epochs_are_dropped)
{
	const struct placed old = { .job_id = JOB, .epoch = 2, .refused = true, .status = ST_INTERNAL };
	size_t n;
	void *bytes = placed_pack(&old, &n);
	const struct link_message m = { LINK_PLACED, JOB, 0, bytes, n };
	hosted_take_placed(&d, &m);
	ck_assert(!job->place.answered && !job->place.refused);
	free(bytes);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--engine")) {
		signal(SIGPIPE, SIG_IGN);
		log_init("engine", LOG_TEXT, LOG_ERROR);
		return engine_main(ENGINE_CHANNEL_FD);
	}
	Suite *s = suite_create("placing");
	TCase *t = tcase_create("placing");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, a_job_runs_where_it_is_not_coordinated);
	tcase_add_test(t, its_part_ends_with_it);
	tcase_add_test(t, a_lost_placement_is_repeated);
	tcase_add_test(t, a_large_specification_is_read_in_the_pool);
	tcase_add_test(t, a_drop_overtakes_a_placement_that_is_read);
	tcase_add_test(t, a_node_without_room_says_so);
	tcase_add_test(t, windows_of_a_placement_follow_each_other);
	tcase_add_test(t, wrong_placements_are_refused);
	tcase_add_loop_test(t, a_refusal_ends_or_sets_aside, 0, 2);
	tcase_add_test(t, answers_of_other_epochs_are_dropped);
	return suite_run(s);
}

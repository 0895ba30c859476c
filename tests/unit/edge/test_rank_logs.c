/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of logs that other nodes have: how many questions are on their way, which answers are believed, and what
 * readers hear of nodes that do not answer; and what a node reads for its coordinator. The test plays the link and the
 * callers. */
#include "edge/rank_logs.h"

#include "control/members.h"
#include "edge/links.h"
#include "edge/node_serve.h"
#include "edge_rig.h"
#include "fake_launcher.h"
#include "gacc/v1/common.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/path.h"
#include "rpc/pool.h"
#include "support/suite.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOB = 5, CALLS = RANK_LOGS_MOST + 8, NODES = 3 }; /* a, b and c, of which a is this one */
#define S INT64_C(1000000000)

static struct hosted *h;

/* ---- callers, in place of the RPC server's ---- */

struct caller {
	bool waits, gone;
	uint32_t n_answers;
	enum status status;
	char text[300];
	char data[16]; /* of the piece */
	uint32_t n_data;
	bool missing, more;
};

static struct caller caller[CALLS];
static uint32_t n_callers;

uint64_t __wrap_rpc_id(const struct rpc_call *call);
struct rpc_call *__wrap_rpc_find(struct rpc_server *server, uint64_t id);
void __wrap_rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void __wrap_rpc_finish(struct rpc_call *call, const struct ProtobufCMessage *reply);

uint64_t __wrap_rpc_id(const struct rpc_call *call)
{
	return (uint64_t)((const struct caller *)call - caller) + 1;
}

struct rpc_call *__wrap_rpc_find(struct rpc_server *server, uint64_t id)
{
	struct caller *c = &caller[id - 1];
	return c->waits && !c->gone ? (struct rpc_call *)c : NULL;
}

void __wrap_rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...)
{
	struct caller *c = (struct caller *)call;
	va_list args;
	va_start(args, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, args);
	va_end(args);
	c->status = status;
	c->waits = false;
	c->n_answers++;
}

void __wrap_rpc_finish(struct rpc_call *call, const struct ProtobufCMessage *reply)
{
	const Gacc__V1__ReadLogResponse *r = (const Gacc__V1__ReadLogResponse *)reply;
	struct caller *c = (struct caller *)call;
	c->waits = false;
	c->n_answers++;
	c->n_data = (uint32_t)r->data.len;
	if (r->data.len)
		memcpy(c->data, r->data.data, r->data.len < sizeof(c->data) ? r->data.len : sizeof(c->data) - 1);
	c->missing = r->missing;
	c->more = r->more;
}

/* Somebody reads the log of rank 1 at this node. */
static struct caller *reads(const char *node)
{
	const struct log_ask ask = { .rank = 1 };
	ck_assert_uint_lt(n_callers, CALLS);
	struct caller *c = &caller[n_callers++];
	c->waits = true;
	rank_logs_read((struct rpc_call *)c, h, node, ask);
	return c;
}

static void heard(const struct caller *c, enum status status, const char *text)
{
	ck_assert_msg(c->n_answers == 1 && c->status == status && !strcmp(c->text, text), "%u: %s: %s", c->n_answers,
		      status_info(c->status)->name, c->text);
}

/* ---- the link ---- */

static struct log_ask asked[NODES][CALLS]; /* by node number */
static uint32_t n_asked[NODES];
static struct log_piece piece; /* the last one of the node here, without its data */
static uint32_t n_pieces;

bool __wrap_links_send_down(struct daemon *from, uint32_t node, enum link_kind kind, uint64_t job, uint32_t part,
			    void *bytes, size_t n, struct shared *end);
void __wrap_links_send(struct daemon *from, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n);

bool __wrap_links_send_down(struct daemon *from, uint32_t node, enum link_kind kind, uint64_t job, uint32_t part,
			    void *bytes, size_t n, struct shared *end)
{
	char why[200];
	if (kind == LINK_LOG_ASK) {
		ck_assert(job == JOB && node && node < NODES);
		ck_assert_msg(!log_ask_unpack(bytes, n, &asked[node][n_asked[node]++], why, sizeof(why)), "%s", why);
	}
	free(bytes);
	return true;
}

void __wrap_links_send(struct daemon *from, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n)
{
	char why[200];
	struct log_piece p;
	if (kind == LINK_LOG_PIECE) {
		n_pieces++;
		ck_assert_msg(!log_piece_unpack(bytes, n, &p, why, sizeof(why)), "%s", why);
		piece = p;
		log_piece_release(&p);
	}
	free(bytes);
}

static uint32_t number_of(const char *node)
{
	for (uint32_t i = 0; i < members_n(d.members); i++)
		if (!strcmp(members_at(d.members, i)->facts.node, node))
			return i + 1;
	ck_abort_msg("%s", node);
}

/* An answer to a question, from this node. */
static void answers(uint32_t node, const struct log_ask *a, const char *data)
{
	const struct log_piece p = { .job_id = a->job_id,
				     .number = a->number,
				     .file = 9,
				     .offset = strlen(data),
				     .data = (const uint8_t *)data,
				     .n = (uint32_t)strlen(data) };
	size_t n;
	void *bytes = log_piece_pack(&p, &n);
	const struct link_message m = { LINK_LOG_PIECE, JOB, 0, bytes, n, NULL, false, node };
	rank_logs_take_piece(&d, &m);
	free(bytes);
}

static void link_nodes(bool yes)
{
	for (uint32_t i = 1; i < d.n_node_links; i++)
		d.node_link[i] = yes ? (struct peer_link *)caller : NULL; /* nobody looks into it */
}

static void hello(const char *name)
{
	struct member_facts facts = {
		.boot_id = { 1 }, .incarnation = 1, .protocol_min = 1, .protocol_max = 1, .cpus = 1
	};
	uint64_t link;
	uint32_t index;
	char why[200] = "";
	snprintf(facts.node, sizeof(facts.node), "%s", name);
	snprintf(facts.data_address, sizeof(facts.data_address), "10.0.0.7");
	snprintf(facts.coll, sizeof(facts.coll), "gloo/1");
	ck_assert_msg(!members_hello(d.members, &facts, daemon_now(&d), &link, &index, why, sizeof(why)), "%s", why);
}

static void on_c(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "c", none[] = "";
	with_launch(spec);
	spec->nodes = nodes;
	spec->log_dir = none;
}

static void setup(void)
{
	memset(caller, 0, sizeof(caller));
	memset(n_asked, 0, sizeof(n_asked));
	n_callers = n_pieces = 0;
	rig_open();
	free(conf->node.name);
	conf->node.name = strdup("a");
	ck_assert_int_eq(node_serve_new(&d), ST_OK);
	hello("b");
	hello("c");
	h = rig_job(JOB, getuid(), "ana", on_c);
	d.node_link = calloc(NODES, sizeof(*d.node_link));
	d.n_node_links = d.node_links_capacity = NODES;
	link_nodes(true);
}

static void teardown(void)
{
	link_nodes(false);
	rank_logs_free(&d);
	ck_assert(!d.log_call && !d.n_log_calls);
	rig_close();
	node_serve_free(&d);
}

static void tick_in(int64_t ns)
{
	struct now now = daemon_now(&d);
	now.mono_ns += ns;
	rank_logs_tick(&d, now);
}

/* What the pool has to read is read. */
static void wait_for_pool(void)
{
	while (rpc_pool_busy(d.node.pool))
		uv_run(&d.node.loop, UV_RUN_ONCE);
	rig_run();
}

/* ---- the coordinator ---- */

START_TEST(two_questions_are_on_their_way_to_each_node)
{
	const uint32_t b = number_of("b"), c = number_of("c");
	struct caller *of[6];
	for (int i = 0; i < 6; i++)
		of[i] = reads(i % 3 == 2 ? "c" : "b");
	ck_assert(n_asked[b] == RANK_LOGS_ON_THE_WAY && n_asked[c] == 2);
	ck_assert(asked[b][0].rank == 1 && asked[b][0].job_id == JOB && !memcmp(asked[b][0].uuid, h->uuid, 16));
	answers(b, &asked[b][1], "second");
	ck_assert(n_asked[b] == 3 && n_asked[c] == 2);
	ck_assert(of[1]->n_answers == 1 && !strcmp(of[1]->data, "second") && !of[0]->n_answers);
	answers(b, &asked[b][0], "first");
	answers(b, &asked[b][2], "third");
	ck_assert_str_eq(of[0]->data, "first");
	ck_assert_str_eq(of[3]->data, "third");
	ck_assert_uint_eq(n_asked[b], 4);
}
END_TEST

/* Each question has one answer, by the node that was asked. */
START_TEST(other_answers_are_not_believed)
{
	const uint32_t b = number_of("b"), c = number_of("c");
	struct caller *of[3];
	for (int i = 0; i < 3; i++)
		of[i] = reads("b");
	struct log_ask wrong = asked[b][0];
	answers(c, &wrong, "from another node");
	answers(0, &wrong, "from here");
	wrong.job_id++;
	answers(b, &wrong, "of another job");
	wrong = asked[b][0];
	wrong.number = asked[b][1].number + 1;
	answers(b, &wrong, "to a question that was not asked yet");
	const struct link_message m = { LINK_LOG_PIECE, JOB, 0, "\x0a", 1, NULL, false, b };
	rank_logs_take_piece(&d, &m);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(of[i]->n_answers, 0);
	answers(b, &asked[b][0], "once");
	answers(b, &asked[b][0], "twice");
	ck_assert(of[0]->n_answers == 1 && !strcmp(of[0]->data, "once"));
	ck_assert(!of[1]->n_answers && n_asked[b] == 3);
}
END_TEST

/* The node is there, or is not any more. */
START_TEST(readers_hear_that_a_node_does_not_answer)
{
	struct caller *of[4];
	for (int i = 0; i < 4; i++)
		of[i] = reads(i == 3 ? "c" : "b");
	tick_in(4 * S);
	ck_assert_uint_eq(d.n_log_calls, 4);
	if (_i)
		d.node_link[number_of("b")] = NULL;
	tick_in(_i ? 0 : 6 * S);
	for (int i = 0; i < 3; i++)
		heard(of[i], ST_UNAVAILABLE,
		      _i ? "node b is not linked to the coordinator now" : "node b has not answered for 5 s");
	if (_i)
		ck_assert(d.n_log_calls == 1 && !of[3]->n_answers);
	else
		heard(of[3], ST_UNAVAILABLE, "node c has not answered for 5 s");
	answers(number_of("b"), &asked[number_of("b")][0], "late");
	ck_assert_uint_eq(of[0]->n_answers, 1);
}
END_TEST

START_TEST(a_reader_who_has_gone_makes_room)
{
	const uint32_t b = number_of("b");
	struct caller *of[3];
	for (int i = 0; i < 3; i++)
		of[i] = reads("b");
	of[0]->gone = true;
	answers(b, &asked[b][0], "for nobody");
	ck_assert(!of[0]->n_answers && n_asked[b] == 3 && d.n_log_calls == 2);
}
END_TEST

START_TEST(waiting_readers_have_a_bound)
{
	for (int i = 0; i < RANK_LOGS_MOST; i++)
		reads("b");
	ck_assert_uint_eq(n_asked[number_of("b")], RANK_LOGS_ON_THE_WAY);
	heard(reads("c"), ST_RESOURCE_EXHAUSTED, "256 readers of logs wait for other nodes already");
	answers(number_of("b"), &asked[number_of("b")][0], "one");
	ck_assert_uint_eq(reads("c")->n_answers, 0);
}
END_TEST

START_TEST(nodes_must_be_there)
{
	heard(reads("z"), ST_INVALID_ARGUMENT, "the cluster has no node \"z\"");
	d.node_link[number_of("b")] = NULL;
	heard(reads("b"), ST_UNAVAILABLE, "node b is not linked to the coordinator now");
	ck_assert_uint_eq(d.n_log_calls, 0);
}
END_TEST

START_TEST(what_a_node_cannot_read_is_said)
{
	const struct caller *c = reads("b");
	const struct log_ask *a = &asked[number_of("b")][0];
	struct log_piece p = { .job_id = JOB, .number = a->number, .status = ST_PERMISSION_DENIED, .text = "no" };
	size_t n;
	void *bytes = log_piece_pack(&p, &n);
	const struct link_message m = { LINK_LOG_PIECE, JOB, 0, bytes, n, NULL, false, number_of("b") };
	rank_logs_take_piece(&d, &m);
	free(bytes);
	heard(c, ST_PERMISSION_DENIED, "no");
}
END_TEST

/* ---- the node ---- */

#define LOG_BYTES (LOG_PIECE_BYTES + 7000)

/* In the folder that gaccd makes for the job's logs. */
static void write_log(void)
{
	char path[SCRATCH_PATH + 200], uuid[UUID_TEXT];
	uuid_text(h->uuid, uuid);
	snprintf(path, sizeof(path), "%s/logs", rig_state);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/logs/%d-%s", rig_state, JOB, uuid);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/logs/%d-%s/worker_1.log", rig_state, JOB, uuid);
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	for (int i = 0; i < LOG_BYTES; i++)
		fputc('x', f);
	ck_assert_int_eq(fclose(f), 0);
}

static struct log_ask question(void)
{
	struct log_ask a = { .job_id = JOB, .number = 77, .rank = 1 };
	memcpy(a.uuid, h->uuid, sizeof(a.uuid));
	return a;
}

static void is_asked(const struct log_ask *a, bool away)
{
	size_t n;
	void *bytes = log_ask_pack(a, &n);
	const struct link_message m = { LINK_LOG_ASK, JOB, 0, bytes, n, NULL, away, 0 };
	rank_logs_take_ask(&d, &m);
	free(bytes);
}

START_TEST(a_node_answers_with_one_piece)
{
	struct log_ask a = question();
	write_log();
	is_asked(&a, true);
	wait_for_pool();
	ck_assert(n_pieces == 1 && !piece.status && piece.job_id == JOB && piece.number == 77);
	ck_assert(piece.n == LOG_PIECE_BYTES && piece.more && piece.offset == LOG_PIECE_BYTES && !piece.missing);
	a.file = piece.file;
	a.offset = piece.offset;
	is_asked(&a, true);
	wait_for_pool();
	ck_assert(n_pieces == 2 && piece.n == LOG_BYTES - LOG_PIECE_BYTES && !piece.more);
	a = question();
	a.uuid[0] ^= 1; /* another job of this id */
	is_asked(&a, true);
	wait_for_pool();
	ck_assert(n_pieces == 3 && piece.missing && !piece.n);
}
END_TEST

START_TEST(a_node_reads_few_pieces_at_a_time)
{
	const struct log_ask a = question();
	write_log();
	for (int i = 0; i < 3 * RANK_LOGS_ON_THE_WAY; i++)
		is_asked(&a, true);
	wait_for_pool();
	ck_assert_uint_eq(n_pieces, 2 * RANK_LOGS_ON_THE_WAY);
	is_asked(&a, true);
	wait_for_pool();
	ck_assert_uint_eq(n_pieces, 2 * RANK_LOGS_ON_THE_WAY + 1);
}
END_TEST

START_TEST(a_node_answers_its_coordinator_alone)
{
	struct log_ask a = question();
	write_log();
	is_asked(&a, false);
	a.job_id++;
	is_asked(&a, true);
	wait_for_pool();
	ck_assert_uint_eq(n_pieces, 0);
}
END_TEST

START_TEST(the_coordinator_reads_its_own)
{
	write_log();
	const struct caller *of[] = { reads("a"), reads("") };
	wait_for_pool();
	for (int i = 0; i < 2; i++)
		ck_assert(of[i]->n_answers == 1 && of[i]->n_data == LOG_PIECE_BYTES && of[i]->more);
	ck_assert(!n_pieces && !d.n_log_reads && !d.n_log_calls);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rank_logs");
	TCase *c = tcase_create("rank_logs");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, two_questions_are_on_their_way_to_each_node);
	tcase_add_test(c, other_answers_are_not_believed);
	tcase_add_loop_test(c, readers_hear_that_a_node_does_not_answer, 0, 2);
	tcase_add_test(c, a_reader_who_has_gone_makes_room);
	tcase_add_test(c, waiting_readers_have_a_bound);
	tcase_add_test(c, nodes_must_be_there);
	tcase_add_test(c, what_a_node_cannot_read_is_said);
	tcase_add_test(c, a_node_answers_with_one_piece);
	tcase_add_test(c, a_node_reads_few_pieces_at_a_time);
	tcase_add_test(c, a_node_answers_its_coordinator_alone);
	tcase_add_test(c, the_coordinator_reads_its_own);
	return suite_run(s);
}

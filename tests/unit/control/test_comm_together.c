/* SPDX-License-Identifier: Apache-2.0 */
/* A real coordinator and three real parts, whose fake engines form communicators, fill parameters over them, sum and
 * die; messages are lost, and coordinators follow each other. By seeds: after the faults every job gets on. */
#include "comm_engines.h"

#include "coll/coll.h"
#include "control/coordinator.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOWS = 6, SEEDS = 300, MAX_QUEUED = 4096 };
#define STALL (2 * SECOND)
#define FAULTS_NS (40 * SECOND)
#define END_NS (120 * SECOND)

/* ---- the world ---- */

/* A message or an answer on its way. */
struct queued {
	enum { REPORT, ORDER, BLOB, BOARD, COMMAND, PERSISTED } kind;
	uint32_t part;
	uint64_t term; /* of the coordinator */
	struct report report;
	struct order order;
	struct part_blob blob;
	struct part_board board;
	struct coll_address address[D];
	struct engine_command command;
	char bytes[D][24];
};

static struct job_spec whole, own[D];
struct job *job[D];
struct engine engine[D];
static struct coord *coord;
static uint64_t term, seed, n_lives;
static struct commit stored, writing;
static bool has_stored;
struct now now;
static struct queued *queue[MAX_QUEUED];
static unsigned first_queued, end_queued;
static uint64_t n_forms, newest_k;
static uint32_t kill_each, stop_each, lose_each, replace_each; /* of so many messages, on average */
static char ended[300];

static uint32_t draw(uint32_t below)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % below;
}

static bool has_faults(void)
{
	return now.mono_ns < FAULTS_NS;
}

static struct queued *put(int kind, uint32_t part)
{
	struct queued *q = calloc(1, sizeof(*q));
	ck_assert(q && end_queued - first_queued < MAX_QUEUED);
	q->kind = kind;
	q->part = part;
	q->term = term;
	queue[end_queued++ % MAX_QUEUED] = q;
	return q;
}

static uint32_t part_of(void *ctx)
{
	return (uint32_t)((struct engine *)ctx - engine);
}

/* ---- ports ---- */

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
}
static bool on_send(void *ctx, uint64_t id, const struct engine_command *c, const void *present)
{
	uint32_t i = part_of(ctx);
	if (!engine[i].up || (has_faults() && draw(50) == 0))
		return false;
	put(COMMAND, i)->command = *c;
	return true;
}
static void on_report(void *ctx, const struct report *r)
{
	put(REPORT, part_of(ctx))->report = *r;
}
static void on_blob(void *ctx, const struct part_blob *b)
{
	struct queued *q = put(BLOB, part_of(ctx));
	ck_assert_uint_le(b->n, sizeof(q->bytes[0]));
	q->blob = *b;
	memcpy(q->bytes[0], b->bytes, b->n);
	q->blob.bytes = q->bytes[0];
}
static void on_allocate(void *ctx, uint64_t id)
{
}
static void on_event(void *ctx, uint64_t id, bool warning, const char *reason, int64_t rank, const char *text)
{
}
static bool is_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return true;
}
static void on_random(void *ctx, uint8_t out[16])
{
	memset(out, 0x5a, 16);
}

static const struct job_ports job_ports = { .reply = on_reply,
					    .engine_send = on_send,
					    .report = on_report,
					    .blob = on_blob,
					    .allocate = on_allocate,
					    .event = on_event,
					    .process_alive = is_alive,
					    .random16 = on_random };

/* Trainers never see parameters that differ. */
static void check_run(void)
{
	for (uint32_t i = 0; i < D && !has_stored; i++) {
		const struct control_record *r = &engine[i].record.r;
		ck_assert_msg(r->params_ready && r->params_digest == engine[0].record.r.params_digest,
			      "it runs, and part %u has %llx", i, (unsigned long long)r->params_digest);
	}
}

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	if (o->run && o->want != WANT_END)
		check_run();
	n_forms += o->comm > newest_k;
	newest_k = o->comm > newest_k ? o->comm : newest_k;
	put(ORDER, part)->order = *o;
}
static void on_board(void *ctx, uint32_t part, const struct part_board *b)
{
	struct queued *q = put(BOARD, part);
	q->board = *b;
	q->board.address = q->address;
	for (uint32_t i = 0; i < D; i++) {
		q->address[i] = b->address[i];
		memcpy(q->bytes[i], b->address[i].blob, b->address[i].n_blob);
		q->address[i].blob = q->bytes[i];
	}
}
static void store(void)
{
	stored = writing;
	has_stored = true;
}

static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	writing = *k;
	put(PERSISTED, 0);
	if (draw(2)) /* it is durable before anybody knows */
		store();
}
static void on_end(void *ctx, uint64_t id, enum status st, const char *reason)
{
	snprintf(ended, sizeof(ended), "%s: %s", status_info(st)->name, reason);
}
static void on_changed(void *ctx, uint64_t id)
{
}

static const struct coord_ports coord_ports = { .order = on_order,
						.board = on_board,
						.persist_commit = on_persist,
						.persist_end = on_end,
						.event = on_event,
						.changed = on_changed };

/* ---- lives ---- */

static void start_engine(uint32_t i)
{
	struct engine *e = &engine[i];
	e->up = true;
	e->life = 1000 + ++n_lives;
	e->term = e->k = 0;
	e->is = OUT;
	e->has_go = e->has_fill = false;
	e->n_held = 0;
	e->stopped_ns = 0;
	ck_assert_int_eq(job_on_engine_up(job[i], &e->record, e->life, now), ST_OK);
}

static void kill_engine(uint32_t i)
{
	struct engine *e = &engine[i];
	if (!e->up)
		return;
	e->up = e->has_go = e->has_fill = false;
	e->up_ns = now.mono_ns + draw(30) * SECOND / 10;
	for (unsigned q = first_queued; q != end_queued; q++)
		if (queue[q % MAX_QUEUED]->kind == COMMAND && queue[q % MAX_QUEUED]->part == i)
			queue[q % MAX_QUEUED]->part = D; /* it died with it */
	job_on_engine_down(job[i], now);
	engine_broken(i);
}

static void start_coord(void)
{
	const struct part_ranks ranks[D] = { { 1, (const uint32_t[]){ 0 } },
					     { 1, (const uint32_t[]){ 1 } },
					     { 1, (const uint32_t[]){ 2 } } };
	coord_free(coord);
	newest_k = 0;
	ck_assert_int_eq(coord_new(&coord, 1, &whole, ++term, D, ranks, &coord_ports), ST_OK);
	ck_assert_int_eq(coord_set_collectives(coord, STALL), ST_OK);
	if (has_stored)
		coord_restore(coord, &stored);
}

static void make_spec(struct job_spec *s, uint32_t ranks)
{
	const char *field;
	char why[200];
	*s = (struct job_spec){ .name = "t", .ranks = ranks, .micro_size = 2, .master_f32 = true };
	s->optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	s->stall_abort_ns = s->abandoned_ns = 10000 * SECOND;
	s->stall_warn_ns = 5000 * SECOND;
	ck_assert_msg(!job_spec_check(s, &field, why, sizeof(why)), "%s", why);
}

static void make_part(uint32_t i)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	static const uint32_t global[D] = { 0, 1, 2 };
	char why[200];
	struct job_ports ports = job_ports;
	ports.ctx = &engine[i];
	make_spec(&own[i], 1);
	const struct part_spec p = {
		.number = i, .n_parts = D, .world = D, .epoch = 1, .spec = &own[i], .global = &global[i]
	};
	ck_assert_int_eq(job_new(&job[i], 1, p, 7, 1, &ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job[i], &tensor, 1, why, sizeof(why)), ST_OK);
	engine[i] = (struct engine){ .up = false };
	ck_assert_int_eq(control_state_init(&engine[i].record, 1, own[i].max_micro_size), ST_OK);
	struct control_record *r = &engine[i].record.r;
	r->epoch = 1;
	r->micro_size = 2;
	r->loss_scale = 1;
	r->params_ready = i == 1 || draw(2);
	r->params_digest = 10 + draw(2);
}

/* ---- one run ---- */

static void deliver(struct queued *q)
{
	bool lost = q->kind <= BOARD && has_faults() && draw(lose_each) == 0;
	if (lost || q->part >= D)
		return;
	switch (q->kind) {
	case REPORT:
		coord_on_report(coord, &q->report, now);
		break;
	case ORDER:
		job_on_order(job[q->part], &q->order, now);
		break;
	case BLOB:
		coord_on_blob(coord, &q->blob, now);
		break;
	case BOARD:
		job_on_board(job[q->part], &q->board, now);
		break;
	case COMMAND:
		if (engine[q->part].up)
			engine_take(q->part, &q->command);
		break;
	case PERSISTED: /* the log takes nothing of an earlier term */
		if (q->term != term)
			break;
		store();
		coord_on_persisted(coord, writing.window, ST_OK, now);
		break;
	}
}

static void drain(void)
{
	while (first_queued != end_queued) {
		struct queued *q = queue[first_queued++ % MAX_QUEUED];
		deliver(q);
		free(q);
		if (has_faults() && draw(kill_each) == 0)
			kill_engine(draw(D));
		if (has_faults() && draw(stop_each) == 0)
			engine[draw(D)].stopped_ns = now.mono_ns + draw(80) * SECOND / 10;
		if (has_faults() && draw(replace_each) == 0)
			start_coord();
	}
}

static void tick(void)
{
	uint64_t window;
	now.mono_ns += SECOND / 10;
	now.unix_ns += SECOND / 10;
	for (uint32_t i = 0; i < D; i++) {
		struct engine *e = &engine[i];
		if (!e->up && now.mono_ns >= e->up_ns)
			start_engine(i);
		engine_tick(i, STALL);
		job_tick(job[i], now);
		drain();
	}
	coord_tick(coord, now);
	if (coord_phase(coord) == COORD_COLLECT && draw(3) == 0)
		coord_flush(coord, &window, now);
	drain();
}

START_TEST(every_job_gets_on_when_the_faults_are_over)
{
	seed = (uint64_t)_i * 77 + 1;
	now = (struct now){ SECOND, SECOND };
	kill_each = 15 + draw(300);
	stop_each = 100 + draw(1000);
	lose_each = 2 + draw(20);
	replace_each = 100 + draw(2000);
	term = n_lives = n_forms = 0;
	has_stored = false;
	stored.window = 0;
	ended[0] = '\0';
	make_spec(&whole, D);
	for (uint32_t i = 0; i < D; i++)
		make_part(i);
	start_coord();
	uint64_t window = 0;
	while (now.mono_ns < END_NS && !*ended && (has_faults() || stored.window < window + WINDOWS)) {
		tick();
		window = has_faults() ? stored.window : window;
	}
	ck_assert_msg(!*ended, "%s", ended);
	ck_assert_msg(now.mono_ns < END_NS, "seed %d: window %llu, phase %d, comm %llu, engines %d %d %d", _i,
		      (unsigned long long)coord_window(coord), coord_phase(coord), (unsigned long long)newest_k,
		      engine[0].is, engine[1].is, engine[2].is);
	ck_assert_uint_gt(n_forms, 0);
	for (uint32_t i = 0; i < D; i++) {
		job_free(job[i]);
		control_state_fini(&engine[i].record);
	}
	coord_free(coord);
	coord = NULL;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("comm_together");
	TCase *t = tcase_create("comm_together");
	suite_add_tcase(s, t);
	tcase_add_loop_test(t, every_job_gets_on_when_the_faults_are_over, 0, SEEDS);
	return suite_run(s);
}

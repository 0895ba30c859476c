/* SPDX-License-Identifier: Apache-2.0 */
/* The crowd of crowd.h. Messages between job and coordinator are copied and delivered when their sender has returned,
 * as gaccd does it. */
#include "support/crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_PUSH = 1, CALL_WAIT, CALL_OTHER };

struct message {
	struct message *next;
	bool is_report, is_persist;
	struct report report;
	struct order order;
	uint64_t window;
};

struct crowd {
	struct job_spec spec;
	struct job *job;
	struct coord *coord;
	struct now now;
	struct message *first, **last;
	struct engine_command *add;	/* [ranks]: the push of each that is not answered; id 0: none */
	uint32_t next_rank, next_micro; /* whose turn it is */
	struct engine_command command;	/* the newest that is no ADD; op 0: answered */
	struct engine_command armed;	/* a GO that waits for the last push; op 0: none */
	uint64_t n_reports, n_counted, n_stepped;
	double sum_weight;
};

static void need(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "crowd: %s\n", what);
	abort();
}

static void post(struct crowd *c, struct message *m)
{
	m->next = NULL;
	*c->last = m;
	c->last = &m->next;
}

/* ---- ports ---- */

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	struct crowd *c = ctx;
	if (r->status)
		fprintf(stderr, "crowd: call %llu: %s\n", (unsigned long long)call, r->text);
	need(r->status == ST_OK, "a call failed");
	c->n_counted += call == CALL_PUSH;
	c->n_stepped += call == CALL_WAIT;
}

static bool on_engine_send(void *ctx, uint64_t job, const struct engine_command *k, const void *present)
{
	struct crowd *c = ctx;
	if (k->op == ENGINE_ADD) {
		need(!c->add[k->rank].id, "a rank pushes twice at once");
		c->add[k->rank] = *k;
	} else if (k->op == ENGINE_GO && k->armed) {
		need(!c->armed.op, "two armed GOs at once");
		c->armed = *k;
	} else {
		need(!c->command.op, "two commands at once");
		c->command = *k;
	}
	return true;
}

static void on_report(void *ctx, const struct report *r)
{
	struct crowd *c = ctx;
	size_t n_rank = r->n_ranks * sizeof(*r->rank), n_map = r->counted ? r->n_words * sizeof(*r->counted) : 0;
	struct message *m = malloc(sizeof(*m) + n_rank + n_map);
	need(m, "no memory");
	char *at = (char *)(m + 1);
	*m = (struct message){ .is_report = true, .report = *r };
	m->report.rank = memcpy(at, r->rank, n_rank);
	if (n_map)
		m->report.counted = memcpy(at + n_rank, r->counted, n_map);
	c->n_reports++;
	post(c, m);
}

static void on_order(void *ctx, uint32_t node, const struct order *o)
{
	struct message *m = malloc(sizeof(*m));
	need(m, "no memory");
	*m = (struct message){ .order = *o };
	m->order.late = NULL;
	m->order.n_late = 0;
	post(ctx, m);
}

static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct message *m = malloc(sizeof(*m));
	need(m, "no memory");
	*m = (struct message){ .is_persist = true, .window = k->window };
	post(ctx, m);
}

static void on_persist_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	need(false, reason);
}

static void on_allocate(void *ctx, uint64_t job)
{
}

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
}

static void on_norms(void *ctx, const struct commit *k)
{
}

static void on_changed(void *ctx, uint64_t job)
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

/* ---- a turn ---- */

static struct engine_answer answer_to(const struct crowd *c, const struct engine_command *k)
{
	return (struct engine_answer){ .op = k->op,
				       .id = k->id,
				       .rank = k->rank,
				       .window = k->window,
				       .attempt = k->attempt,
				       .result = PUSH_COUNTED,
				       .count = c->n_counted,
				       .sum_weight = c->sum_weight,
				       .sumsq = 1 };
}

static void deliver(struct crowd *c)
{
	while (c->first) {
		struct message *m = c->first;
		c->first = m->next;
		if (!c->first)
			c->last = &c->first;
		if (m->is_report)
			coord_on_report(c->coord, &m->report, c->now);
		else if (m->is_persist)
			coord_on_persisted(c->coord, m->window, ST_OK, c->now);
		else
			job_on_order(c->job, &m->order, c->now);
		free(m);
	}
	c->now.mono_ns += 1000;
	c->now.unix_ns += 1000;
}

static void answer_command(struct crowd *c)
{
	while (c->command.op) {
		struct engine_answer a = answer_to(c, &c->command);
		c->command.op = 0;
		job_on_answer(c->job, &a, c->now);
		deliver(c);
	}
}

static struct session_key key_of(uint32_t rank)
{
	struct session_key k = { .rank = rank, .uid = 1000 };
	memset(k.token, 0x5a, 16);
	return k;
}

void crowd_push(struct crowd *c, uint32_t rank, uint32_t micro)
{
	struct session_key k = key_of(rank);
	struct push_args a = { .window = job_window(c->job), .micro = micro, .weight = 1, .data_key = 1 + micro };
	job_push(c->job, CALL_PUSH, &k, &a, c->now);
	deliver(c);
}

void crowd_gone(struct crowd *c, uint32_t rank)
{
	job_on_call_gone(c->job, CALL_PUSH, rank);
	deliver(c);
}

void crowd_link(struct crowd *c, uint32_t rank, bool up)
{
	job_on_link(c->job, rank, job_generation(c->job, rank), up, c->now);
	deliver(c);
}

bool crowd_waits(const struct crowd *c, uint32_t rank)
{
	return c->add[rank].id != 0;
}

void crowd_answer(struct crowd *c)
{
	for (;;) {
		struct engine_command k = c->add[c->next_rank];
		if (!k.id || k.micro != c->next_micro)
			return;
		c->add[c->next_rank].id = 0;
		if (++c->next_rank == c->spec.ranks) {
			c->next_rank = 0;
			c->next_micro++;
		}
		c->sum_weight += k.weight;
		struct engine_answer a = answer_to(c, &k);
		job_on_answer(c->job, &a, c->now);
		deliver(c);
	}
}

void crowd_window(struct crowd *c, enum crowd_order order)
{
	uint64_t window = job_window(c->job), pushes = (uint64_t)c->spec.ranks * c->spec.micro_size;
	c->n_counted = c->n_stepped = 0;
	c->sum_weight = 0;
	c->next_rank = c->next_micro = 0;
	for (uint32_t m = 0; m < c->spec.micro_size; m++)
		for (uint32_t i = 0; i < c->spec.ranks; i++) {
			uint32_t rank = order == CROWD_BACKWARDS ? c->spec.ranks - 1 - i : i;
			bool last = m + 1 == c->spec.micro_size && i + 1 == c->spec.ranks;
			crowd_push(c, rank, m);
			for (uint32_t r = 0; last && r < c->spec.ranks; r++) {
				struct session_key k = key_of(r);
				job_wait_step(c->job, CALL_WAIT, &k, window, 0, c->now);
				deliver(c);
			}
			crowd_answer(c);
		}
	need(!c->command.op && c->armed.op, "the window is closed by an order");
	c->command = c->armed;
	c->armed.op = 0;
	answer_command(c);
	need(c->n_counted == pushes, "a push has no answer");
	need(c->n_stepped == c->spec.ranks && job_window(c->job) == window + 1, "the window has no outcome");
}

/* ---- life ---- */

static void start(struct crowd *c)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	struct control_state record;
	char why[200];
	need(!job_set_tensors(c->job, &tensor, 1, why, sizeof(why)), "no tensors");
	need(!control_state_init(&record, c->spec.ranks, c->spec.max_micro_size), "no memory");
	record.r.micro_size = c->spec.micro_size;
	record.r.loss_scale = 1;
	record.r.params_ready = 1;
	need(!job_on_engine_up(c->job, &record, 0, c->now), "the record is refused");
	control_state_fini(&record);
	deliver(c);
	for (uint32_t r = 0; r < c->spec.ranks; r++) {
		struct attach_args a = { .rank = r,
					 .world_size = c->spec.ranks,
					 .uid = 1000,
					 .pid = 1 + r,
					 .start_time = 1,
					 .shared_memory = true };
		job_attach(c->job, CALL_OTHER, &a, c->now);
		answer_command(c);
		job_on_mapped(c->job, a.rank, job_generation(c->job, a.rank));
	}
}

struct crowd *crowd_new(uint32_t ranks, uint32_t micro_size)
{
	struct crowd *c = calloc(1, sizeof(*c));
	const char *field;
	char why[200];
	need(c, "no memory");
	c->last = &c->first;
	c->now = (struct now){ 1000, 1000 };
	c->spec = (struct job_spec){ .name = "crowd", .ranks = ranks, .micro_size = micro_size, .master_f32 = true };
	c->spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	need(!job_spec_check(&c->spec, &field, why, sizeof(why)), why);
	c->add = calloc(ranks, sizeof(*c->add));
	need(c->add, "no memory");
	struct job_ports ports = { .ctx = c,
				   .reply = on_reply,
				   .engine_send = on_engine_send,
				   .report = on_report,
				   .allocate = on_allocate,
				   .event = on_event,
				   .process_alive = is_alive,
				   .random16 = on_random };
	struct coord_ports coord_ports = { .ctx = c,
					   .order = on_order,
					   .persist_commit = on_persist,
					   .persist_end = on_persist_end,
					   .event = on_event,
					   .norms = on_norms,
					   .changed = on_changed };
	need(!job_new(&c->job, 1, part_whole(&c->spec), 1000, 1, &ports), "no memory");
	need(!coord_new(&c->coord, 1, &c->spec, 1, 1, NULL, &coord_ports), "no memory");
	start(c);
	return c;
}

void crowd_free(struct crowd *c)
{
	while (c->first) {
		struct message *m = c->first;
		c->first = m->next;
		free(m);
	}
	coord_free(c->coord);
	job_free(c->job);
	free(c->add);
	free(c);
}

struct job *crowd_job(struct crowd *c)
{
	return c->job;
}

struct coord *crowd_coord(struct crowd *c)
{
	return c->coord;
}

uint64_t crowd_reports(const struct crowd *c)
{
	return c->n_reports;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulations of one node and of many have in common: chance, time, events in their order, and what a seed
 * makes of a job. */
#include "sim.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- chance and time ---- */

/* Which has them: the part of a job asks the whole. */
static struct sim *world(struct sim *s)
{
	return s->whole ? s->whole : s;
}

uint64_t sim_random(struct sim *s, uint64_t below)
{
	s = world(s);
	/* splitmix64 (Steele, Lea, Flood 2014) */
	uint64_t z = s->rng += UINT64_C(0x9E3779B97F4A7C15);
	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return below ? (z ^ z >> 31) % below : 0;
}

bool sim_chance(struct sim *s, int per_mille)
{
	return sim_random(s, 1000) < (uint64_t)per_mille;
}

struct now sim_now(const struct sim *s)
{
	return (struct now){ s->now, s->now + INT64_C(1700000000000000000) };
}

int64_t sim_net_delay(struct sim *s)
{
	return s->faults && sim_chance(s, 50) ? (int64_t)sim_random(s, 800 * MS) : (int64_t)sim_random(s, 4 * MS);
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
	s = world(s);
	if (s->failure[0])
		return;
	int at =
		snprintf(s->failure, sizeof(s->failure), "seed %llu, event %llu, %.3f s: ", (unsigned long long)s->seed,
			 (unsigned long long)s->n_handled, (double)s->now / 1e9);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->failure + at, sizeof(s->failure) - (size_t)at, fmt, ap);
	va_end(ap);
}

/* ---- event heap ---- */

static bool before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->n < b->n;
}

struct event *sim_event_in(struct sim *s, int64_t delay, enum event_type type, size_t bytes)
{
	if (s->n_events == s->events_capacity) {
		s->events_capacity = s->events_capacity ? 2 * s->events_capacity : 256;
		s->heap = realloc(s->heap, s->events_capacity * sizeof(*s->heap));
	}
	struct event *e = calloc(1, bytes);
	e->at = s->now + delay;
	e->n = s->n_created++;
	e->type = type;
	uint32_t i = s->n_events++;
	while (i && before(e, s->heap[(i - 1) / 2])) {
		s->heap[i] = s->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->heap[i] = e;
	return e;
}

struct event *sim_pop(struct sim *s)
{
	struct event *top = s->heap[0], *last = s->heap[--s->n_events];
	uint32_t i = 0;
	for (;;) {
		uint32_t c = 2 * i + 1;
		if (c >= s->n_events)
			break;
		if (c + 1 < s->n_events && before(s->heap[c + 1], s->heap[c]))
			c++;
		if (!before(s->heap[c], last))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	s->heap[i] = last;
	return top;
}

/* ---- the job ---- */

/* Numbers at the ends of what a spec may say; those that it may not are drawn anew. */
static void draw_extremes(struct sim *s)
{
	static const double some[] = { 0, 1, 5e-324, 1e-310, 1.2e-38, 1e-30, 1e30, 3.4e38, 1e39, 1e308 };
	struct job_spec *k = &s->spec;
	const char *field;
	char why[256];
	s->extreme = true;
	k->nonfinite = NONFINITE_SKIP_STEP;
	do {
		double n[6];
		for (int i = 0; i < 6; i++)
			n[i] = some[sim_random(s, sizeof(some) / sizeof(*some))];
		k->optim.lr = n[0];
		k->loss_scale = n[1];
		k->clip_norm = n[2];
		k->clip_value = n[3];
		k->schedule =
			(struct schedule){ .type = SCHEDULE_STEP, .step_size = 1 + sim_random(s, 3), .gamma = n[4] };
		k->reduction = REDUCE_WEIGHTED_MEAN + (enum reduction)sim_random(s, 4);
		k->fixed_divisor = k->reduction == REDUCE_FIXED ? n[5] : 0;
	} while (job_spec_check(k, &field, why, sizeof(why)));
}

void sim_setup(struct sim *s, uint32_t ranks)
{
	struct job_spec *k = &s->spec;
	const char *field;
	char why[128];
	snprintf(k->name, sizeof(k->name), "sim");
	k->ranks = ranks;
	k->micro_size = 1 + (uint32_t)sim_random(s, SIM_MAX_MICRO);
	k->steps = sim_chance(s, 500) ? 3 + sim_random(s, 6) : 0;
	k->nonfinite = sim_chance(s, 300)   ? NONFINITE_REJECT_MICRO
		       : sim_chance(s, 100) ? NONFINITE_ERROR
					    : NONFINITE_SKIP_STEP;
	k->uneven = sim_chance(s, 200) ? UNEVEN_DROP : sim_chance(s, 100) ? UNEVEN_ERROR : UNEVEN_FLUSH;
	k->optim = (struct optim_config){ .type = sim_chance(s, 200) ? OPTIM_CLIENT : OPTIM_SGD, .lr = 0.1 };
	k->abandoned_ns = 5000 * MS; /* longer than faults keep all ranks away */
	k->stall_warn_ns = 2000 * MS;
	k->stall_abort_ns = 30000 * MS; /* longer than stopped trainers hold the job up */
	k->ordering = sim_chance(s, 200) ? ORDER_ARRIVAL : ORDER_CANONICAL;
	k->slots_per_rank = sim_chance(s, 200) ? 1 : 2;
	s->lost_window = sim_chance(s, 100) && k->optim.type != OPTIM_CLIENT ? sim_random(s, 6) : UINT64_MAX;
	s->operators = sim_chance(s, 300);
	s->restless = sim_chance(s, 500);
	if (sim_chance(s, 200))
		draw_extremes(s);
	else if (k->nonfinite != NONFINITE_ERROR && sim_chance(s, 400)) {
		k->dynamic_loss_scale =
			(struct loss_scale_rules){ .enabled = true, .growth_interval = 2, .min = 4, .max = 64 };
		k->dynamic_loss_scale.hysteresis = 1 + (uint32_t)sim_random(s, 2);
		k->loss_scale = 16;
	}
	if (sim_chance(s, 300))
		k->outlier_skip = (struct outlier_skip){ .factor = 5,
							 .decay = 0.5,
							 .warmup_steps = 1 + (uint32_t)sim_random(s, 3) };
	s->level_window = sim_chance(s, 300) ? 1 + sim_random(s, 4) : UINT64_MAX;
	s->init_rule = (struct spec_init){ (char *)"*", { INIT_ZEROS, 0, 0 } };
	k->init = &s->init_rule;
	k->n_init = 1;
	if (job_spec_check(k, &field, why, sizeof(why)))
		sim_fail(s, "spec: %s", why);
	s->deserted = sim_chance(s, 50);
	s->serial.scale = k->loss_scale;
	s->serial.allowance = k->dynamic_loss_scale.hysteresis;
}

void sim_draw_update(struct sim *s, uint64_t window, struct update *u)
{
	*u = (struct update){ .set = 1 + (uint32_t)sim_random(s, 15), .window = 0 };
	u->to = (struct values){ 1 + (uint32_t)sim_random(s, SIM_MAX_MICRO), (double)sim_random(s, 100) / 100,
				 (double)sim_random(s, 3), (double)sim_random(s, 3) };
	if (sim_chance(s, 500))
		u->window = window + sim_random(s, 5);
	if (s->spec.optim.type == OPTIM_CLIENT)
		u->set = u->set & ~(uint32_t)VALUE_LR ? u->set & ~(uint32_t)VALUE_LR : VALUE_MICRO_SIZE;
}

/* ---- what a job and a coordinator ask of the world ---- */

static bool port_engine_send(void *ctx, uint64_t job, const struct engine_command *c, const void *present)
{
	return engine_take(ctx, c, present);
}

static void port_reply(void *ctx, uint64_t call, const struct reply *r)
{
	if ((call & 255) == SIM_PUT)
		sim_check_put(ctx, r);
	else
		trainer_reply(ctx, call, r);
}

static void port_allocate(void *ctx, uint64_t job)
{
	engine_start(ctx);
}

static bool port_process_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	const struct sim *s = ctx;
	return pid >= 1 && (uint32_t)pid <= s->n_procs && s->proc[pid - 1].state != PROC_DEAD &&
	       s->proc[pid - 1].state != PROC_DONE;
}

static void port_random16(void *ctx, uint8_t out[16])
{
	for (int i = 0; i < 16; i++)
		out[i] = (uint8_t)sim_random(ctx, 256);
}

enum status sim_job_new(struct sim *s, void (*report)(void *, const struct report *),
			void (*event)(void *, uint64_t, bool, const char *, int64_t, const char *))
{
	static const struct tensor_spec tensor = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 8 } };
	const struct job_ports ports = { .ctx = s,
					 .reply = port_reply,
					 .engine_send = port_engine_send,
					 .report = report,
					 .blob = sim_port_blob,
					 .allocate = port_allocate,
					 .event = event,
					 .process_alive = port_process_alive,
					 .random16 = port_random16,
					 .record = sim_port_record,
					 .mailbox_over = sim_port_mailbox_over };
	s->looked = UINT64_MAX;
	s->complete_said = 0;
	s->complete_since = 0;
	char why[128];
	enum status st = job_new(&s->job, 1, s->part, 1000, s->gaccd_life, &ports);
	return st ? st : job_set_tensors(s->job, &tensor, 1, why, sizeof(why));
}

void sim_port_changed(void *ctx, uint64_t job)
{
}

void sim_port_norms(void *ctx, const struct commit *k)
{
}

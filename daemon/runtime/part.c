/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees a part of a job, keeps the node's sorted list of them, and connects the part's state machine
 * (control/job.h) with its engine, its memory and the ports that edge gives it. Loop thread. */
#include "base/array.h"
#include "host/process.h"
#include "runtime/part_states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- ports of control/job.h; ctx is the part ---- */

static void on_allocate(void *ctx, uint64_t job)
{
	part_allocate(ctx);
}

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	struct part *p = ctx;
	p->ports.event(p, warning, reason, rank, text);
}

static bool on_process_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return start_time && process_start_time(pid) == start_time;
}

void part_random16(void *ctx, uint8_t out[16])
{
	if (getrandom(out, 16, 0) != 16)
		abort(); /* Linux always has these */
}

/* ---- life ---- */

/* What the state machine has to know, with the part's own copies behind it. false: no memory. */
static bool take_ranks(struct part *p, const struct part_origin *o, struct part_spec *out)
{
	*out = part_whole(p->spec); /* the world is read before the part has its own number of ranks */
	out->epoch = o->epoch;
	assert(o->n_parts && o->part < o->n_parts);
	if (o->n_parts == 1)
		return true;
	p->rank = malloc(o->n_ranks * sizeof(*p->rank));
	if (!p->rank)
		return false;
	memcpy(p->rank, o->rank, o->n_ranks * sizeof(*p->rank));
	p->own.ranks = o->n_ranks;
	out->number = o->part;
	out->n_parts = o->n_parts;
	out->global = p->rank;
	return true;
}

enum status part_new(struct node *node, const struct part_origin *o, const struct part_ports *ports, struct part **out)
{
	struct part *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	*p = (struct part){ .node = node,
			    .id = o->job,
			    .number = o->part,
			    .n_parts = o->n_parts,
			    .uid = o->uid,
			    .user = strdup(o->user),
			    .text = specification_hold(o->text),
			    .own = o->text->spec,
			    .spec = &p->own,
			    .ports = *ports,
			    .mem = { .plan_fd = -1 } };
	memcpy(p->uuid, o->uuid, sizeof(p->uuid));
	struct job_ports jp = { .ctx = p,
				.reply = ports->reply,
				.engine_send = part_engine_send,
				.report = ports->report,
				.blob = ports->blob,
				.allocate = on_allocate,
				.event = on_event,
				.process_alive = on_process_alive,
				.random16 = part_random16,
				.record = part_record,
				.mailbox_over = part_mailbox_over };
	struct part_spec is;
	enum status st = ST_NO_MEMORY;
	if (take_ranks(p, o, &is) && p->user)
		st = job_new(&p->job, p->id, is, p->uid, node->incarnation, &jp);
	if (st)
		part_free(p);
	else
		*out = p;
	return st;
}

/* Where this part is, or would be. */
static uint32_t place_of(const struct node *n, uint64_t job, uint32_t number)
{
	uint32_t lo = 0, hi = n->n_parts;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		const struct part *p = n->part[mid];
		if (p->id < job || (p->id == job && p->number < number))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The one at this place, if it is of this job. */
static struct part *part_at(const struct node *n, uint32_t i, uint64_t job)
{
	return i < n->n_parts && n->part[i]->id == job ? n->part[i] : NULL;
}

struct part *part_first(const struct node *n, uint64_t job)
{
	return part_at(n, place_of(n, job, 0), job);
}

struct part *part_next(const struct part *p)
{
	return part_at(p->node, place_of(p->node, p->id, p->number) + 1, p->id);
}

struct part *part_find(const struct node *n, uint64_t job, uint32_t number)
{
	struct part *p = part_at(n, place_of(n, job, number), job);
	return p && p->number == number ? p : NULL;
}

struct part *part_of_rank(const struct node *n, uint64_t job, uint32_t rank)
{
	struct part *p = part_first(n, job);
	while (p && part_local(job_part(p->job), rank) == PART_NO_RANK)
		p = part_next(p);
	return p;
}

struct part *part_for_rank(const struct node *n, uint64_t job, uint32_t rank)
{
	struct part *p = part_of_rank(n, job, rank), *first = part_first(n, job);
	return p || !first || rank < job_part(first->job)->world ? p : first;
}

enum status part_publish(struct part *p)
{
	struct node *n = p->node;
	uint32_t i = place_of(n, p->id, p->number);
	assert(!part_find(n, p->id, p->number));
	struct part **list = array_grow(n->part, n->n_parts, &n->parts_capacity, sizeof(*list));
	if (!list)
		return ST_NO_MEMORY;
	n->part = list;
	memmove(&list[i + 1], &list[i], (n->n_parts - i) * sizeof(*list));
	list[i] = p;
	n->n_parts++;
	return ST_OK;
}

static void withdraw(struct part *p)
{
	struct node *n = p->node;
	uint32_t i = place_of(n, p->id, p->number);
	if (i == n->n_parts || n->part[i] != p)
		return;
	n->n_parts--;
	memmove(&n->part[i], &n->part[i + 1], (n->n_parts - i) * sizeof(struct part *));
}

void part_free(struct part *p)
{
	if (!p)
		return;
	withdraw(p);
	part_let_go(p);
	part_mailboxes_free(p);
	part_tensors_gone(p);
	job_free(p->job);
	shared_drop(p->tensors.packed);
	free(p->tensors.wrong);
	free(p->restore_path);
	free(p->norms);
	free(p->save);
	part_states_free(p);
	free(p->user);
	free(p->rank);
	specification_drop(p->text);
	free(p);
}

void part_on_order(struct part *p, const struct order *o)
{
	p->begun |= o->run;
	job_on_order(p->job, o, node_now());
}

void part_on_board(struct part *p, const struct part_board *b)
{
	job_on_board(p->job, b, node_now());
}

void part_tick(struct part *p, struct now now)
{
	part_memory_tick(p, now);
	part_engine_tick(p, now);
	part_slots_tick(p);
	job_tick(p->job, now);
	part_saving_look(p);
}

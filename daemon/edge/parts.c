/* SPDX-License-Identifier: Apache-2.0 */
/* Makes parts from placements that have arrived, ticks them, gives their memory back when their job is over and frees
 * them when they are dropped. For links and for the tick. Loop thread; what is large is read and freed in the pool. */
#include "edge/parts.h"

#include "base/log.h"
#include "base/machine.h"
#include "cluster/placed_message.h"
#include "edge/part_ports.h"
#include "edge/part_views.h"
#include "edge/registering.h"
#include "rpc/pool.h"
#include "runtime/part_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_SPEC (64u << 10) /* bytes, packed: its tensors take some milliseconds */
#define RELEASE_AFTER_NS (INT64_C(60) * 1000000000)
#define MAX_WHOLE 16	       /* parts of one user's ended jobs that keep their memory for late trainers */
#define KEPT_BYTES (32u << 20) /* of freed memory: twice main.c's M_TOP_PAD */

/* ---- placements ---- */

/* One that is being read. */
struct arriving {
	struct rpc_work work;
	struct arriving *next;
	struct daemon *d;
	uint64_t job;
	uint32_t part;
	bool dropped; /* the coordinator has changed its mind */
	struct placing placing;
};

static void answer(struct daemon *d, const struct placed *p)
{
	size_t n = 0;
	void *bytes = placed_pack(p, &n);
	links_send(d, LINK_PLACED, p->job_id, p->part, bytes, n);
}

static void refuse(const struct arriving *a, enum status st, const char *why)
{
	uint64_t epoch = a->placing.held.placement.epoch;
	struct placed p = {
		.job_id = a->job, .epoch = epoch ? epoch : 1, .part = a->part, .refused = true, .status = st
	};
	snprintf(p.text, sizeof(p.text), "%s", why);
	log_job(a->job, LOG_NOTICE, "PlacementRefused", "the placement of part %u is refused: %s", a->part, why);
	answer(a->d, &p);
}

/* A part that nothing has to be made for is all there; others say so when their engine is up. */
static void begin(struct daemon *d, struct part *p)
{
	part_begin(p, d->node.starting || p->begun);
	bool bare = !p->mem.allocating && !p->mem.n && !p->tensors.due;
	if (bare && !p->engine.starts && !job_has_tensors(p->job))
		p->ports.placed(p, ST_OK, NULL);
}

/* Without memory nothing is said: the placement is repeated. */
static void take(struct arriving *a)
{
	struct placing *read = &a->placing;
	struct part *p = NULL;
	bool there = part_find(&a->d->node, a->job) != NULL;
	enum status st = read->status;
	if (!st && read->held.placement.job_id != a->job) {
		snprintf(read->why, sizeof(read->why), "Placement.job_id is %llu, and it was sent for job %llu",
			 (unsigned long long)read->held.placement.job_id, (unsigned long long)a->job);
		st = ST_VERSION_SKEW;
	}
	if (!st)
		st = part_place(&a->d->node, read, a->d->ports, &p, read->why, sizeof(read->why));
	if (st && st != ST_NO_MEMORY)
		refuse(a, st, read->why);
	if (!st && !there) {
		begin(a->d, p);
		part_view_send(p);
	}
}

static void arriving_free(struct arriving *a)
{
	struct arriving **at = &a->d->arriving;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	placing_fini(&a->placing);
	free(a);
}

static void read_spec(struct rpc_work *w)
{
	placing_read(&((struct arriving *)w)->placing);
}

static void on_read(struct rpc_work *w)
{
	struct arriving *a = (struct arriving *)w;
	if (!a->dropped && !a->d->node.stopping)
		take(a);
	arriving_free(a);
}

/* A placement is sent again until it is answered, and one that is large is read for long. */
static bool is_being_read(const struct daemon *d, uint64_t job)
{
	for (const struct arriving *a = d->arriving; a; a = a->next)
		if (a->job == job && !a->dropped)
			return true;
	return false;
}

void parts_take_placement(struct daemon *d, const struct link_message *m)
{
	struct arriving *a = is_being_read(d, m->job) ? NULL : calloc(1, sizeof(*a));
	if (!a)
		return;
	a->d = d;
	a->job = m->job;
	a->part = m->part;
	a->next = d->arriving;
	d->arriving = a;
	placing_open(&a->placing, &d->node, m->bytes, m->n, m->end);
	const struct placement *p = &a->placing.held.placement;
	if (!a->placing.status && p->spec.n + (p->tensors ? p->tensors->n : 0) >= LARGE_SPEC && !d->node.starting) {
		rpc_pool_put(d->node.pool, &a->work, p->uid, read_spec, on_read);
		return;
	}
	if (!a->placing.status)
		placing_read(&a->placing);
	take(a);
	arriving_free(a);
}

void parts_take_drop(struct daemon *d, const struct link_message *m)
{
	struct drop drop;
	char why[200];
	enum status st = drop_unpack(m->bytes, m->n, &drop, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return;
	for (struct arriving *a = d->arriving; a; a = a->next)
		a->dropped |= a->job == m->job;
	struct part *p = part_find(&d->node, m->job);
	if (p && drop.job_id == m->job && job_part(p->job)->epoch <= drop.epoch)
		p->dropped = true;
}

/* ---- the tick ---- */

/* A user who submits and cancels jobs would fill the memory with what is kept for late trainers. */
static void hurry_older(const struct node *n, uint32_t uid)
{
	uint32_t found = 0;
	for (uint32_t i = n->n_parts; i--;) {
		struct part *p = n->part[i];
		if (p->uid == uid && p->ended_ns && !p->mem.released && ++found > MAX_WHOLE)
			p->hurried = true;
	}
}

/* Trainers may still read the last parameters: memory is released when all sessions have ended, or after a minute. */
static void end_tick(struct part *p, struct now now)
{
	if (!job_ended(p->job) || p->mem.allocating || p->mem.released)
		return;
	if (!p->ended_ns) {
		p->ended_ns = now.mono_ns;
		hurry_older(p->node, p->uid);
	}
	if (job_idle(p->job) || p->hurried || now.mono_ns - p->ended_ns > RELEASE_AFTER_NS)
		part_release(p);
}

/* Lets the part read the tensor set that it has left packed since the restart. */
static void tensors_tick(struct daemon *d, struct part *p)
{
	if (!p->tensors.due || p->mem.allocating || job_ended(p->job))
		return;
	if (!p->tensors.wrong) {
		part_allocate(p);
		return;
	}
	struct placed wrong = {
		.job_id = p->id, .epoch = job_part(p->job)->epoch, .refused = true, .status = ST_VERSION_SKEW
	};
	snprintf(wrong.text, sizeof(wrong.text), "Placement.tensors: %.280s", p->tensors.wrong);
	answer(d, &wrong);
}

#define ASK_AGAIN_NS (INT64_C(5) * 1000000000) /* the journal may wait for a disk */

static void asking_tick(struct part *p, struct now now)
{
	if (!p->tensors.asked_ns || now.mono_ns - p->tensors.asked_ns < ASK_AGAIN_NS)
		return;
	part_send_tensors(p);
}

/* What a large job has allocated in many small pieces. The pool gives it back to the machine, because that takes
 * time. */
struct dropping {
	struct rpc_work work;
	struct shared *packed;
	struct tensor_set tensors;
};

static void run_drop(struct rpc_work *w)
{
	struct dropping *d = (struct dropping *)w;
	shared_drop(d->packed);
	tensor_set_fini(&d->tensors);
	machine_memory_trim(KEPT_BYTES);
}

static void on_dropped(struct rpc_work *w)
{
	free(w);
}

static void free_part(struct part *p)
{
	struct dropping *w = p->node->stopping ? NULL : calloc(1, sizeof(*w));
	registering_drop(p);
	if (w) {
		w->packed = p->tensors.packed;
		p->tensors.packed = NULL;
		job_give_tensors(p->job, &w->tensors);
		rpc_pool_put(p->node->pool, &w->work, p->uid, run_drop, on_dropped);
	}
	part_free(p);
}

static bool is_free(const struct part *p)
{
	return !p->n_holders && !p->n_links && !p->mem.allocating;
}

void parts_tick(struct daemon *d, struct now now)
{
	for (uint32_t i = d->node.n_parts; i--;) {
		struct part *p = d->node.part[i];
		tensors_tick(d, p);
		asking_tick(p, now);
		registering_tick(p, now);
		part_tick(p, now);
		end_tick(p, now);
		part_view_send(p);
		if (p->dropped && is_free(p))
			free_part(p);
	}
}

void parts_free_all(struct daemon *d)
{
	while (d->node.n_parts)
		free_part(d->node.part[d->node.n_parts - 1]);
}

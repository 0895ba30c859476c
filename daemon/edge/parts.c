/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks the parts, gives their memory back when their job is over and frees them when they are dropped. For links and
 * for the tick. Loop thread; what is large is freed in the pool. */
#include "edge/parts.h"

#include "base/log.h"
#include "base/machine.h"
#include "cluster/placed_message.h"
#include "edge/part_norms.h"
#include "edge/part_ports.h"
#include "edge/part_record.h"
#include "edge/part_views.h"
#include "edge/registering.h"
#include "rpc/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RELEASE_AFTER_NS (INT64_C(60) * 1000000000)
#define MAX_WHOLE 16	       /* parts of one user's ended jobs that keep their memory for late trainers */
#define KEPT_BYTES (32u << 20) /* of freed memory: twice main.c's M_TOP_PAD */

/* ---- their end ---- */

/* This node may have a part of another job with this id, which another coordinator had given to it. */
static bool is_ours(const struct daemon *d, uint64_t job, const struct drop *drop)
{
	const uint8_t *uuid = part_record_uuid(d, job);
	return !uuid || part_record_is_of(uuid, drop->uuid_high, drop->uuid_low);
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
	if (!is_ours(d, m->job, &drop)) {
		links_refuse(m, "Drop.uuid is another job's, which has this id elsewhere");
		return;
	}
	parts_forget_arriving(d, m->job, m->part);
	struct part *p = part_find(&d->node, m->job, m->part);
	if (p && drop.job_id == m->job && job_part(p->job)->epoch <= drop.epoch)
		p->dropped = true;
	struct part_record *r = part_record_find(d, m->job, m->part);
	if (r && drop.job_id == m->job)
		part_record_give_up(d, r);
}

/* ---- the tick ---- */

/* A user who submits and cancels jobs would fill the memory with what is kept for late trainers. */
static void hurry_older(const struct node *n, uint32_t uid)
{
	uint32_t found = 0; /* jobs: their parts stand beside each other */
	uint64_t last = 0;
	for (uint32_t i = n->n_parts; i--;) {
		struct part *p = n->part[i];
		if (p->uid != uid || !p->ended_ns || p->mem.released)
			continue;
		found += p->id != last;
		last = p->id;
		if (found > MAX_WHOLE)
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
	bool due = job_idle(p->job) || p->hurried || now.mono_ns - p->ended_ns > RELEASE_AFTER_NS;
	if (due && part_record_is_gone(p))
		part_release(p);
}

/* Of a job of another coordinator, whose next placement mends it, or is refused. */
static void tell_wrong(struct daemon *d, struct part *p)
{
	char text[500];
	if (p->tensors.told)
		return;
	p->tensors.told = true;
	snprintf(
		text, sizeof(text),
		"part %u of job %llu: gaccd %s cannot read its tensor set in the journal: %.200s. The part's memory is "
		"kept, and the coordinator's set takes its place when it is heard",
		p->number, (unsigned long long)p->id, GACC_VERSION, p->tensors.wrong);
	daemon_event(d, true, "TensorsUnreadable", text);
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
	if (p->away) {
		tell_wrong(d, p);
		return;
	}
	struct placed wrong = { .job_id = p->id,
				.epoch = job_part(p->job)->epoch,
				.part = p->number,
				.refused = true,
				.status = ST_VERSION_SKEW };
	snprintf(wrong.text, sizeof(wrong.text), "Placement.tensors: %.280s", p->tensors.wrong);
	parts_answer(d, &wrong);
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

static bool drop_tensors(struct part *p)
{
	struct dropping *w = p->node->stopping ? NULL : calloc(1, sizeof(*w));
	if (!w)
		return false;
	w->packed = p->tensors.packed;
	p->tensors.packed = NULL;
	job_give_tensors(p->job, &w->tensors);
	rpc_pool_put(p->node->pool, &w->work, p->uid, run_drop, on_dropped);
	return true;
}

static void free_part(struct part *p)
{
	registering_drop(p);
	drop_tensors(p);
	part_free(p);
}

/* The ranks may register again, with those of the other parts. */
static void refused_tick(struct part *p)
{
	if (!p->tensors.refused || p->n_holders || p->mem.allocating || !drop_tensors(p))
		return;
	p->tensors.refused = p->tensors.durable = false;
	p->tensors.asked_ns = 0;
	part_tensors_gone(p);
}

/* Nobody else would tell the manager that it need not keep its memory. */
static void drop_part(struct part *p)
{
	if (p->away && !p->mem.released)
		part_release(p); /* freed with the next tick */
	else
		free_part(p);
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
		refused_tick(p);
		asking_tick(p, now);
		registering_tick(p, now);
		part_tick(p, now);
		end_tick(p, now);
		part_view_send(p);
		part_norms_tick(p, now);
		if (p->dropped && is_free(p) && part_record_is_gone(p))
			drop_part(p);
	}
}

void parts_free_all(struct daemon *d)
{
	parts_free_arriving(d); /* what is being written is written, and is read at the next start */
	while (d->node.n_parts)
		free_part(d->node.part[d->node.n_parts - 1]);
}

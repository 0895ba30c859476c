/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a part: its segments, made anew or adopted, kept by the service manager, given back. Loop thread; plans
 * and pages are made in the pool. */
#include "base/log.h"
#include "control/queue.h"
#include "engine/portions.h"
#include "proto/failpoint.h"
#include "rpc/pool.h"
#include "runtime/engine_proc.h"
#include "runtime/part.h"
#include "runtime/stored.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEEP_TELL_NS (INT64_C(5) * 1000000000)
#define PORTION_BYTES (UINT64_C(256) << 20) /* of memory that is taken in one piece of work: some 0.1 s */

/* ---- what the service manager keeps ---- */

/* Tells the manager that it need not keep this job's memory. */
static void drop_kept(struct part *p)
{
	for (int i = 0; i < p->mem.n && p->mem.kept; i++) {
		char name[FDSTORE_MAX_NAME];
		part_kept_name(p, i, name);
		fdstore_remove(p->node->fdstore, name);
	}
	p->mem.kept = false;
}

static void forget_memory(struct part *p)
{
	if (p->mem.segment)
		segments_release(p->node, p->uid, p->mem.segment, p->mem.n);
	free(p->mem.wanted);
	free(p->mem.other_name);
	free(p->mem.plan);
	if (p->mem.plan_fd >= 0)
		close(p->mem.plan_fd);
	p->mem.segment = NULL;
	p->mem.wanted = NULL;
	p->mem.other_name = NULL;
	p->mem.device = p->mem.making = false;
	p->mem.n_made = 0;
	p->mem.made = (struct part_made){ .is_over = false };
	p->mem.plan = NULL;
	p->mem.plan_fd = -1;
	p->mem.n = 0;
	p->node->host_bytes -= p->mem.bytes;
	p->mem.bytes = p->mem.gpu_bytes = 0;
}

void part_fail_beginning(struct part *p, const char *event, enum status st, const char *why)
{
	p->ports.event(p, st != ST_JOB_ENDED, event, -1, why); /* no fault when it was cancelled meanwhile */
	forget_memory(p);
	p->mem.allocating = false;
	job_on_allocate_failed(p->job, st, why, node_now());
	p->ports.placed(p, st == ST_JOB_ENDED ? ST_OK : st, why); /* there is a job: how it ended is in its state */
}

static void fail_allocation(struct part *p, enum status st, const char *why)
{
	part_fail_beginning(p, "AllocationFailed", st, why);
}

/* ---- adopting what an earlier life stored ---- */

/* There are two of a slot when gaccd ended while another memory took its place. */
static int adopt_one(struct part *p, int i)
{
	char name[FDSTORE_MAX_NAME], other[FDSTORE_MAX_NAME];
	part_kept_name(p, i, name);
	memcpy(other, name, sizeof(other));
	stored_other_name(other);
	int first = stored_take(p->node, name), second = stored_take(p->node, other);
	p->mem.other_name[i] = second >= 0 && (first < 0 || part_slots_second(p, i, first, second));
	if (first >= 0 && second >= 0) {
		fdstore_remove(p->node->fdstore, p->mem.other_name[i] ? name : other);
		close(p->mem.other_name[i] ? first : second);
	}
	return p->mem.other_name[i] ? second : first;
}

static int adopt(struct part *p)
{
	int n = 0;
	for (int i = 0; i < p->mem.n; i++) {
		p->mem.segment[i].fd = adopt_one(p, i);
		n += p->mem.segment[i].fd >= 0;
	}
	p->mem.n_made = n == p->mem.n ? (int)part_device_segments(p) : 0;
	part_slots_adopted(p);
	return n;
}

static void memory_lost(struct part *p, int found)
{
	char why[200];
	snprintf(why, sizeof(why), "the job's memory is gone: %d of %d segments were kept by the service manager",
		 found, p->mem.n);
	job_fail(p->job, ST_SEGMENT_CORRUPT, why, node_now());
}

/* ---- allocating anew ---- */

struct allocation {
	struct rpc_work work;
	struct part *p;
	bool adopted; /* the segments are there */
	struct portions portions;
	enum status status;
	char why[320], unused[256]; /* unused: what spec_match_unused says */
};

static enum status make_plan(struct allocation *a)
{
	struct part *p = a->p;
	struct tensor_set *set = job_tensor_set(p->job);
	struct plan *plan;
	enum status st = tensor_set_match(set, p->spec, a->why, sizeof(a->why));
	const struct plan_place at = part_plan_place(p, p->mem.plan->threads);
	if (!st)
		st = plan_build(p->spec, set, &at, &plan);
	if (st)
		return st;
	spec_match_unused(&set->match, p->spec, a->unused, sizeof(a->unused));
	p->mem.plan_fd = part_plan_fd(plan);
	free(plan);
	return p->mem.plan_fd < 0 ? ST_NO_MEMORY : ST_OK;
}

static bool allocated(const struct allocation *a)
{
	return a->adopted || portions_done(&a->portions);
}

static enum status name_owner(struct allocation *a)
{
	enum status st = ST_OK;
	for (int i = 0; i < a->portions.n && !st; i++)
		st = segment_set_owner(&a->p->mem.segment[i], a->p->uuid, a->why, sizeof(a->why));
	return st;
}

/* In the pool: the next portion. What it touches of the job is nobody else's while p->mem.allocating. */
static void allocate_some(struct rpc_work *w)
{
	struct allocation *a = (struct allocation *)w;
	if (a->p->mem.plan_fd < 0) {
		a->status = a->adopted ? ST_OK : FAILPOINT_ERROR(gaccd_allocate_before);
		if (!a->status)
			a->status = make_plan(a);
	}
	if (!a->status && !a->adopted)
		a->status = portions_take(&a->portions, PORTION_BYTES, a->why, sizeof(a->why));
	if (!a->status && !a->adopted && portions_done(&a->portions))
		a->status = name_owner(a);
}

/* The engine starts when the manager has all descriptors: what a trainer is told to be safe is safe from then on. */
static void on_kept(void *arg, enum status st)
{
	struct part *p = arg;
	if (st && fdstore_active(p->node->fdstore))
		log_job(p->id, LOG_WARN, "NotStored",
			"the service manager does not keep this job's memory: it will not survive gaccd");
	p->mem.kept = true;
	if (!p->engine.restarts.due_ns) /* the one that has made a device's memory may have died meanwhile */
		part_start_engine(p);
}

static void store_then_start(struct part *p)
{
	size_t n = (size_t)p->mem.n;
	struct fdstore_fd *item = calloc(n, sizeof(*item));
	p->mem.allocating = false;
	if (!item) {
		on_kept(p, ST_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		part_kept_name(p, (int)i, item[i].name);
		item[i].fd = p->mem.segment[i].fd;
	}
	p->mem.keeping_since_ns = node_now().mono_ns;
	fdstore_keep(p->node->fdstore, item, n, on_kept, p, &p->mem.keeping);
}

static void keeping_tick(struct part *p, struct now now)
{
	if (!p->mem.keeping || !p->mem.keeping_since_ns || now.mono_ns - p->mem.keeping_since_ns < KEEP_TELL_NS)
		return;
	p->mem.keeping_since_ns = 0; /* once */
	p->ports.event(p, true, "StoreWaits", -1,
		       "the job begins when the service manager has taken its memory's descriptors: it has not read "
		       "its socket for some seconds");
}

/* A job of an earlier gaccd whose plan cannot be made. Without memory it is tried again, as what the job has must not
 * be lost; what else is wrong will be wrong at the next start, too. */
static void fail_plan(struct part *p, enum status st, const char *why)
{
	p->mem.plan_due = st == ST_NO_MEMORY;
	if (p->mem.plan_due)
		return;
	fail_allocation(p, st, why);
	if (p->begun)
		job_fail(p->job, st, why, node_now());
}

static void finish_allocation(struct allocation *a)
{
	struct part *p = a->p;
	const char *why = a->why[0] ? a->why : status_info(a->status)->text;
	if (!a->status && !a->adopted && *a->unused) /* once in a job's life */
		p->ports.event(p, true, "UnusedRules", -1, a->unused);
	if (a->status && a->adopted)
		fail_plan(p, a->status, why);
	else if (a->status)
		fail_allocation(p, a->status, why);
	else if (a->adopted)
		p->mem.allocating = false, part_start_engine(p);
	else if (part_device_missing(p))
		p->mem.allocating = false, p->mem.making = true, part_start_engine(p);
	else
		store_then_start(p);
	free(a);
}

/* The engine has made what is on a device, or has said why it cannot. */
static void take_made(struct part *p)
{
	const struct part_made made = p->mem.made;
	p->mem.making = false;
	p->mem.made = (struct part_made){ .is_over = false };
	if (made.status)
		fail_allocation(p, made.status, made.why);
	else
		store_then_start(p);
}

static void put_allocation(struct allocation *a);

/* Nobody needs the memory of a job that is over, and a gaccd that ends does not wait for it. */
static void on_allocated(struct rpc_work *w)
{
	struct allocation *a = (struct allocation *)w;
	struct part *p = a->p;
	bool more = !a->status && !allocated(a);
	if (more && p->node->stopping) {
		forget_memory(p);
		p->mem.allocating = false;
		free(a);
	} else if (more && !job_ended(p->job)) {
		put_allocation(a);
	} else {
		a->status = more ? ST_JOB_ENDED : a->status;
		finish_allocation(a);
	}
}

/* The pages of many jobs are taken in turns, one portion of each user after the other. */
static void put_allocation(struct allocation *a)
{
	struct part *p = a->p;
	rpc_pool_put_kind(p->node->pool, a->adopted ? RPC_POOL_COMPUTE : RPC_POOL_ALLOCATE, &a->work, p->uid,
			  allocate_some, on_allocated);
}

static void allocate(struct part *p, bool adopted)
{
	struct allocation *a = calloc(1, sizeof(*a));
	if (!a) {
		(adopted ? fail_plan : fail_allocation)(p, ST_NO_MEMORY, "no memory");
		return;
	}
	a->p = p;
	a->adopted = adopted;
	a->portions = (struct portions){ .wanted = p->mem.wanted,
					 .segment = p->mem.segment,
					 .n = plan_host_segments(p->mem.plan),
					 .job_id = p->id,
					 .generation = STORED_GENERATION,
					 .fingerprint = p->mem.plan->fingerprint };
	put_allocation(a);
}

/* Tried again after there was no memory for the plan. */
void part_memory_tick(struct part *p, struct now now)
{
	keeping_tick(p, now);
	if (p->mem.made.is_over && !job_ended(p->job))
		take_made(p);
	if (!p->mem.plan_due)
		return;
	p->mem.plan_due = false;
	allocate(p, true);
}

void part_on_tensors_kept(struct part *p, enum status st)
{
	if (st) {
		p->tensors.refused = st == ST_LAYOUT_MISMATCH;
		fail_allocation(p, st,
				st == ST_JOB_ENDED	   ? status_info(st)->text
				: st == ST_LAYOUT_MISMATCH ? "another part of the job has registered other tensors"
							   : "the tensor set cannot be written to the journal");
		return;
	}
	p->tensors.durable = true;
	allocate(p, false);
}

void part_allocate(struct part *p)
{
	char why[QUEUE_WHY] = "";
	if (p->tensors.due) {
		part_read_tensors(p);
		return;
	}
	p->mem.allocating = true;
	enum status st = part_plan_head(p);
	if (st) {
		fail_allocation(p, st, status_info(st)->text);
		return;
	}
	part_plan_bytes(p);
	p->node->host_bytes += p->mem.bytes;
	FAILPOINT(gaccd_adopt_before);
	int found = adopt(p);
	p->mem.kept = found > 0;
	if (found == p->mem.n) {
		allocate(p, true);
		return;
	}
	if (p->begun) {
		p->mem.allocating = false;
		memory_lost(p, found);
		return;
	}
	for (int i = 0; i < p->mem.n; i++) /* half an allocation: nothing was promised yet */
		segment_close(&p->mem.segment[i]);
	drop_kept(p); /* or the next start would find two of each name */
	memset(p->mem.other_name, 0, (size_t)p->mem.n * sizeof(*p->mem.other_name));
	st = p->ports.fits(p, p->mem.bytes, why, sizeof(why));
	if (!st && p->tensors.durable)
		allocate(p, false);
	else if (!st)
		st = p->ports.keep_tensors(p);
	if (st)
		fail_allocation(p, st, *why ? why : status_info(st)->text);
}

/* ---- the end ---- */

void part_let_go(struct part *p)
{
	fdstore_cancel(p->mem.keeping);
	p->mem.keeping = NULL;
	part_slots_drop(p);
	engine_proc_close(p->engine.proc);
	p->engine.proc = NULL;
	if (p->mem.n)
		forget_memory(p);
}

void part_release(struct part *p)
{
	drop_kept(p);
	if (p->tensors.due)
		stored_release(p->node, p->id, p->number, p->uid);
	part_let_go(p);
	p->mem.released = true;
}

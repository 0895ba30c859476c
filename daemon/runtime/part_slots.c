/* SPDX-License-Identifier: Apache-2.0 */
/* Slots to which the device of a dead process may still write (part_slot_notes.c): gives no other session this memory,
 * but makes another in its place. For edge and part_engine.c. Loop thread; pages are made in the pool, memory on a
 * device by the engine. docs/protocol.md has the table. */
#include "base/log.h"
#include "engine/portions.h"
#include "host/device_holders.h"
#include "rpc/pool.h"
#include "runtime/engine_proc.h"
#include "runtime/part.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 2 /* slots of a session */
#define PORTION_BYTES (UINT64_C(256) << 20)
#define AGAIN_NS INT64_C(1000000000) /* after there was no memory */
#define DEVICE_NODES "/dev/nvidia"

enum stage {
	FRESH_ASKED, /* slots on a device: the engine makes them */
	/* The pool works. Slots on the host: it takes their pages. Slots on a device, for which there was no memory:
	   it looks for the processes that hold the device open */
	FRESH_MADE,
	FRESH_KEPT,   /* the service manager gets the descriptors */
	FRESH_TOLD,   /* the engine gets them; when it has, they are the slots */
	FRESH_REFUSED /* there was no memory */
};

struct fresh_slots {
	struct rpc_work work;
	struct part *p;
	struct node *node; /* the part's, which may go first */
	uint32_t uid;
	enum stage stage;
	bool dropped;	       /* while the pool has it: it goes when it comes back */
	uint32_t rank;	       /* the job's number: of the session that has the slots */
	uint32_t first;	       /* slot */
	int n, at[MOST];       /* segments of the part */
	bool other_name[MOST]; /* what the new ones are kept under */
	struct plan_segment wanted[MOST];
	struct segment segment[MOST];
	struct portions portions;
	struct fdstore_request *keeping;
	uint64_t command; /* 0: the engine has not been sent it */
	int64_t again_ns;
	enum status status;
	char why[256], holders[96];
};

/* ---- the end of what is on its way ---- */

static void fresh_name(const struct fresh_slots *f, int i, char out[FDSTORE_MAX_NAME])
{
	stored_name(f->p->id, f->p->number, f->p->n_parts, &f->wanted[i], out);
	if (f->other_name[i])
		stored_other_name(out);
}

static void close_segments(struct fresh_slots *f)
{
	struct segment *all = calloc((size_t)f->n, sizeof(*all));
	for (int i = 0; i < f->n; i++) {
		if (all)
			all[i] = f->segment[i];
		else
			segment_close(&f->segment[i]);
		f->segment[i] = SEGMENT_NONE;
	}
	if (all)
		segments_release(f->node, f->uid, all, f->n);
}

void part_slots_drop(struct part *p)
{
	struct fresh_slots *f = p->fresh;
	if (!f)
		return;
	p->fresh = NULL;
	if (f->stage == FRESH_MADE) {
		f->dropped = true;
		return;
	}
	fdstore_cancel(f->keeping);
	for (int i = 0; i < f->n && f->stage == FRESH_TOLD; i++) {
		char name[FDSTORE_MAX_NAME];
		fresh_name(f, i, name);
		fdstore_remove(p->node->fdstore, name);
	}
	close_segments(f);
	free(f);
}

/* ---- the engine ---- */

/* Before HELLO it answers NOT_READY, and is sent it again. */
static void tell(struct part *p)
{
	struct fresh_slots *f = p->fresh;
	int fds[MOST];
	const bool asks = f->stage == FRESH_ASKED;
	struct engine_command c = { .op = asks ? ENGINE_MAKE_SLOTS : ENGINE_SLOTS,
				    .id = ++p->slot_commands,
				    .rank = part_local(job_part(p->job), f->rank),
				    .sgen = job_generation(p->job, f->rank),
				    .slot = f->first };
	for (int i = 0; i < f->n; i++)
		fds[i] = f->segment[i].fd;
	if (p->engine.proc && engine_proc_send(p->engine.proc, &c, NULL, fds, asks ? 0 : f->n))
		f->command = c.id;
}

/* The engine has them: the old memory lives from now on only in processes that have it mapped. */
static void take(struct part *p)
{
	struct fresh_slots *f = p->fresh;
	struct segment *old = calloc((size_t)f->n, sizeof(*old));
	for (int i = 0; i < f->n; i++) {
		struct segment *s = &p->mem.segment[f->at[i]];
		char name[FDSTORE_MAX_NAME];
		part_slots_exchanged(p, f->first + (uint32_t)i);
		part_kept_name(p, f->at[i], name);
		fdstore_remove(p->node->fdstore, name);
		p->mem.other_name[f->at[i]] = f->other_name[i];
		if (old)
			old[i] = *s;
		else
			segment_close(s);
		*s = f->segment[i];
	}
	if (old)
		segments_release(p->node, p->uid, old, f->n);
	p->fresh = NULL;
	char text[160];
	snprintf(text, sizeof(text),
		 "the device of an earlier process of its slots may still write to them: it has got other memory");
	p->ports.event(p, false, "SlotsReplaced", f->rank, text);
	free(f);
}

static void keep(struct fresh_slots *f);
static void refuse_made(struct fresh_slots *f, enum status st, const char *why);

bool part_slots_take_fds(struct part *p, const int *fds, int n)
{
	struct fresh_slots *f = p->fresh;
	if (!f || f->stage != FRESH_ASKED || f->command == 0 || n != f->n)
		return false;
	for (int i = 0; i < n; i++) {
		segment_close(&f->segment[i]);
		f->segment[i].fd = fds[i];
	}
	return true;
}

static void on_asked(struct part *p, const struct engine_answer *a)
{
	struct fresh_slots *f = p->fresh;
	if (a->status == ST_NOT_READY)
		return;
	if (a->status == ST_SESSION_FENCED)
		part_slots_drop(p);
	else if (a->status)
		refuse_made(f, (enum status)a->status, *a->text ? a->text : status_info((enum status)a->status)->text);
	else if (f->segment[0].fd < 0)
		refuse_made(f, ST_INTERNAL, "the engine has answered without them");
	else
		keep(f);
}

void part_slots_on_answer(struct part *p, const struct engine_answer *a)
{
	struct fresh_slots *f = p->fresh;
	if (!f || (f->stage != FRESH_TOLD && f->stage != FRESH_ASKED) || f->command != a->id)
		return;
	f->command = 0;
	if (f->stage == FRESH_ASKED) {
		on_asked(p, a);
	} else if (!a->status) {
		take(p);
	} else if (a->status == ST_SESSION_FENCED) {
		part_slots_drop(p); /* the set is no session's, or another one's, which asks for itself */
	} else if (a->status != ST_NOT_READY) {
		log_job(p->id, LOG_ERROR, "SlotsRefused", "rank %u: %s", f->rank, a->text);
		part_slots_drop(p);
		engine_proc_kill(p->engine.proc, "it cannot map the memory of slots"); /* it may have some of them */
	}
}

void part_slots_on_engine_lost(struct part *p)
{
	if (p->fresh)
		p->fresh->command = 0;
}

void part_slots_tick(struct part *p)
{
	struct fresh_slots *f = p->fresh;
	if (f && (f->stage == FRESH_TOLD || f->stage == FRESH_ASKED) && !f->command)
		tell(p);
}

/* ---- making them ---- */

/* Tried again when it is asked for a second later. */
static void refuse(struct fresh_slots *f, enum status st)
{
	close_segments(f);
	f->status = st;
	f->stage = FRESH_REFUSED;
	f->again_ns = node_now().mono_ns + AGAIN_NS;
}

static void on_kept(void *arg, enum status st)
{
	struct fresh_slots *f = arg;
	struct part *p = f->p;
	f->keeping = NULL;
	if (st && fdstore_active(p->node->fdstore)) { /* the old memory is kept, and must not go for one that is not */
		snprintf(f->why, sizeof(f->why), "the service manager does not keep them: %s", status_info(st)->text);
		for (int i = 0; i < f->n; i++) {
			char name[FDSTORE_MAX_NAME];
			fresh_name(f, i, name);
			fdstore_remove(p->node->fdstore, name);
		}
		refuse(f, st);
		return;
	}
	f->stage = FRESH_TOLD;
	tell(p);
}

static void keep(struct fresh_slots *f)
{
	struct fdstore_fd *item = calloc((size_t)f->n, sizeof(*item));
	f->stage = FRESH_KEPT;
	for (int i = 0; item && i < f->n; i++) {
		fresh_name(f, i, item[i].name);
		item[i].fd = f->segment[i].fd;
	}
	if (item)
		fdstore_keep(f->p->node->fdstore, item, (size_t)f->n, on_kept, f, &f->keeping);
	else
		on_kept(f, ST_NO_MEMORY);
}

/* In the pool: the next portion. */
static void make_some(struct rpc_work *w)
{
	struct fresh_slots *f = (struct fresh_slots *)w;
	if (!f->status)
		f->status = portions_take(&f->portions, PORTION_BYTES, f->why, sizeof(f->why));
	for (int i = 0; i < f->n && !f->status && portions_done(&f->portions); i++)
		f->status = segment_set_owner(&f->segment[i], f->p->uuid, f->why, sizeof(f->why));
	if (f->status == ST_NO_MEMORY)
		device_holders(DEVICE_NODES, f->holders, sizeof(f->holders));
}

static void put(struct fresh_slots *f);

static void on_made(struct rpc_work *w)
{
	struct fresh_slots *f = (struct fresh_slots *)w;
	struct part *p = f->p;
	bool goes_on = !f->dropped && !p->node->stopping && !job_ended(p->job);
	if (goes_on && !f->status && !portions_done(&f->portions)) {
		put(f);
		return;
	}
	part_drop(p);
	if (!goes_on) {
		if (!f->dropped)
			p->fresh = NULL;
		close_segments(f);
		free(f);
	} else if (f->status) {
		refuse(f, f->status);
	} else {
		keep(f);
	}
}

/* The engine could not make them. The pool looks for the processes that hold the device open, as that takes long. */
static void refuse_made(struct fresh_slots *f, enum status st, const char *why)
{
	snprintf(f->why, sizeof(f->why), "%s", why);
	f->status = st;
	if (st != ST_NO_MEMORY) {
		refuse(f, st);
		return;
	}
	f->stage = FRESH_MADE;
	part_hold(f->p);
	put(f);
}

static void put(struct fresh_slots *f)
{
	rpc_pool_put_kind(f->p->node->pool, RPC_POOL_ALLOCATE, &f->work, f->p->uid, make_some, on_made);
}

static bool begin(struct part *p, uint32_t rank, uint32_t first, uint32_t n)
{
	struct fresh_slots *f = n <= MOST ? calloc(1, sizeof(*f)) : NULL;
	if (!f)
		return false;
	*f = (struct fresh_slots){ .p = p, .node = p->node, .uid = p->uid, .rank = rank, .first = first, .n = (int)n };
	for (int i = 0; i < f->n; i++) {
		f->at[i] = part_slot_index(p, first + (uint32_t)i);
		f->other_name[i] = !p->mem.other_name[f->at[i]];
		f->wanted[i] = p->mem.wanted[f->at[i]];
		f->segment[i] = SEGMENT_NONE;
	}
	f->portions = (struct portions){ .wanted = f->wanted,
					 .segment = f->segment,
					 .n = f->n,
					 .job_id = p->id,
					 .generation = STORED_GENERATION,
					 .fingerprint = p->mem.plan->fingerprint };
	p->fresh = f;
	if (part_slots_on_device(p)) {
		f->stage = FRESH_ASKED;
		tell(p);
		return true;
	}
	f->stage = FRESH_MADE;
	part_hold(p);
	put(f);
	return true;
}

/* Who may be why there is no memory; "": nobody that gaccd may see. */
static const char *holders(const struct part *p)
{
	return p->fresh ? p->fresh->holders : "";
}

enum status part_slots_ready(struct part *p, uint32_t rank, char *why, size_t n_why)
{
	uint32_t n, first = job_session_slots(p->job, rank, &n);
	const char *reason = "";
	/* Whoever has the memory mapped can write any note; it would get new memory again and again. */
	if (job_is_mapped(p->job, rank) || job_ended(p->job) || !part_slots_foreign(p, rank, first, n))
		return ST_OK;
	struct fresh_slots *f = p->fresh;
	if (f && f->stage == FRESH_REFUSED && node_now().mono_ns >= f->again_ns) {
		part_slots_drop(p);
		f = NULL;
	}
	if (!f && !begin(p, rank, first, n))
		reason = "there is no memory";
	else if (f && f->stage == FRESH_REFUSED)
		reason = *f->why ? f->why : status_info(f->status)->text;
	else if (f && f->first == first)
		f->rank = rank;
	snprintf(why, n_why, "the device of an earlier process of rank %u may still write to these slots, and %s%s%s%s",
		 rank, *reason ? "there are no others: " : "others are being made: repeat the call", reason,
		 *reason && *holders(p) ? "; the device is held open by " : "", *reason ? holders(p) : "");
	return ST_NO_SLOT;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes parts of placements that have arrived, or that this node has recorded before a restart. For links and for the
 * start. Loop thread; what is large is read in the pool, and the journal's thread writes. */
#include "edge/parts.h"

#include "base/log.h"
#include "cluster/placed_message.h"
#include "edge/disk_watch.h"
#include "edge/hosted.h"
#include "edge/part_launch.h"
#include "edge/part_record.h"
#include "edge/part_views.h"
#include "proto/path.h"
#include "rpc/pool.h"
#include "runtime/part_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_SPEC (64u << 10) /* bytes, packed: its tensors take some milliseconds */

/* One that is being read, or written to the journal. */
struct arriving {
	struct rpc_work work;
	struct arriving *next;
	struct daemon *d;
	uint64_t job;
	uint32_t part;
	bool dropped;	      /* the coordinator has changed its mind */
	bool away;	      /* which is in another gaccd */
	bool is_written;      /* its record, or that is under way */
	struct shared *whole; /* away: the message, for the record */
	struct placing placing;
};

void parts_answer(struct daemon *d, const struct placed *p)
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
	parts_answer(a->d, &p);
}

/* A part that nothing has to be made for is all there; others say so when their engine is up. */
static void begin(struct daemon *d, struct part *p)
{
	part_begin(p, d->node.starting || p->begun);
	bool bare = !p->mem.allocating && !p->mem.n && !p->tensors.due;
	if (bare && !p->engine.starts && !job_has_tensors(p->job))
		p->ports.placed(p, ST_OK, NULL);
}

static void arriving_free(struct arriving *a)
{
	struct arriving **at = &a->d->arriving;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	shared_drop(a->whole);
	placing_fini(&a->placing);
	free(a);
}

/* ---- what is in it ---- */

/* It is of the part for which it was sent. */
static enum status check_message(struct arriving *a)
{
	struct placing *read = &a->placing;
	enum status st = read->status;
	if (!st && read->held.placement.job_id != a->job) {
		snprintf(read->why, sizeof(read->why), "Placement.job_id is %llu, and it was sent for job %llu",
			 (unsigned long long)read->held.placement.job_id, (unsigned long long)a->job);
		st = ST_VERSION_SKEW;
	}
	if (!st && read->held.placement.part != a->part) {
		snprintf(read->why, sizeof(read->why), "Placement.part is %u, and it was sent for part %u",
			 read->held.placement.part, a->part);
		st = ST_VERSION_SKEW;
	}
	return st;
}

/* Ids are unique under one coordinator; this node may have had another one, or been one. */
static enum status check_uuid(struct arriving *a)
{
	const struct hosted *h = hosted_find(a->d, a->job);
	const uint8_t *is = h ? h->uuid : part_record_uuid(a->d, a->job), *its = a->placing.held.placement.uuid;
	char mine[UUID_TEXT], other[UUID_TEXT];
	if (!is || (!h && !memcmp(is, its, sizeof(h->uuid))))
		return ST_OK;
	uuid_text(is, mine);
	uuid_text(its, other);
	snprintf(a->placing.why, sizeof(a->placing.why), "Placement.uuid is %s, and job %llu %s here has uuid %s",
		 other, (unsigned long long)a->job, h ? "that is coordinated" : "that has a part", mine);
	return ST_ALREADY_EXISTS;
}

/* It is the first of its job that is being written: its record is durable by now, or will be. */
static bool makes_a_job(const struct arriving *a)
{
	bool first = a->is_written && !a->dropped && !part_first(&a->d->node, a->job);
	for (const struct arriving *b = a->next; b && first; b = b->next)
		first = b->job != a->job || !b->is_written || b->dropped;
	return first;
}

struct n_jobs {
	uint32_t all, of_user;
};

/* Jobs that others coordinate, and that have parts here or will have: other ones than that of `a`. */
static struct n_jobs count_jobs(const struct arriving *a)
{
	const struct daemon *d = a->d;
	const uint32_t uid = a->placing.held.placement.uid;
	struct n_jobs n = { 0, 0 };
	uint64_t last = 0;
	for (uint32_t i = 0; i < d->node.n_parts; i++) { /* parts of a job stand beside each other */
		const struct part *p = d->node.part[i];
		if (!p->away || job_ended(p->job) || p->id == last)
			continue;
		last = p->id;
		n.all++;
		n.of_user += p->uid == uid;
	}
	for (const struct arriving *b = d->arriving; b; b = b->next)
		if (b->job != a->job && makes_a_job(b)) {
			n.all++;
			n.of_user += b->placing.held.placement.uid == uid;
		}
	return n;
}

/* A node has room for as many jobs as may run at once where they are coordinated. One that has begun is not refused. */
static enum status check_room(struct arriving *a)
{
	const struct placement *is = &a->placing.held.placement;
	const struct conf *c = a->d->node.conf;
	if (is->begun || part_record_uuid(a->d, a->job))
		return ST_OK;
	const struct n_jobs n = count_jobs(a);
	if (n.all < c->limits.jobs && n.of_user < c->limits.jobs_per_user)
		return ST_OK;
	snprintf(a->placing.why, sizeof(a->placing.why), "node %.80s has parts of %u jobs, and limits.%s is %u",
		 c->node.name, n.all < c->limits.jobs ? n.of_user : n.all,
		 n.all < c->limits.jobs ? "jobs_per_user" : "jobs",
		 n.all < c->limits.jobs ? c->limits.jobs_per_user : c->limits.jobs);
	return ST_RESOURCE_EXHAUSTED;
}

/* ---- the part ---- */

static void forget_aside(struct daemon *d, uint64_t job, uint32_t part)
{
	struct part_record *r = part_record_find(d, job, part);
	if (r)
		part_record_drop(d, r);
}

/* Another placement of the part, behind this one, has its record by now, or will have. */
static bool is_followed(const struct arriving *a)
{
	bool followed = false;
	for (const struct arriving *b = a->d->arriving; b; b = b->next)
		followed |= b != a && b->job == a->job && b->part == a->part && b->is_written && !b->dropped;
	return followed;
}

static void unwrite(const struct arriving *a)
{
	if (a->is_written && !is_followed(a))
		part_record_remove(a->d, a->job, a->part);
}

/* Without memory nothing is said: the placement is repeated. */
static void make(struct arriving *a, enum status st)
{
	struct placing *read = &a->placing;
	struct part *p = NULL;
	bool there = part_find(&a->d->node, a->job, a->part) != NULL;
	if (!st)
		st = part_place(&a->d->node, read, a->d->ports, &p, read->why, sizeof(read->why));
	if (st && st != ST_NO_MEMORY)
		refuse(a, st, read->why);
	if (st)
		unwrite(a);
	if (!st && !there) {
		p->away = a->away;
		forget_aside(a->d, a->job, a->part);
		begin(a->d, p);
		part_view_send(p);
	} else if (!st) {
		p->dropped = false; /* the coordinator has it again */
	}
	if (!st && there && p->placed) {
		p->ports.placed(p, ST_OK, NULL); /* the answer may be lost */
	}
	arriving_free(a);
}

static void on_written(void *arg, enum status st)
{
	struct arriving *a = arg;
	daemon_check_store(st);
	if (a->d->node.stopping) { /* the next start makes the part */
		arriving_free(a);
		return;
	}
	if (!st && a->job > a->d->last_job)
		a->d->last_job = a->job; /* as in the journal */
	if (st) {
		a->is_written = false;
		snprintf(a->placing.why, sizeof(a->placing.why),
			 "node %.80s cannot write the part's record to its journal: %s", a->d->node.conf->node.name,
			 st == ST_RESOURCE_EXHAUSTED ? DISK_WATCH_NO_ROOM : status_info(st)->text);
		make(a, st);
	} else if (a->dropped) {
		unwrite(a);
		arriving_free(a);
	} else {
		make(a, ST_OK);
	}
}

/* Of a coordinator elsewhere: the part is made when its record is durable. */
static void write_then_make(struct arriving *a)
{
	const struct placement *is = &a->placing.held.placement;
	enum status st = check_uuid(a);
	if (!st)
		st = check_room(a);
	if (!st && !is->begun && a->placing.text->spec.launch_mode == LAUNCH_DAEMON)
		st = part_launch_check(a->d, is->uid, is->user, a->placing.why, sizeof(a->placing.why));
	if (!st)
		st = part_may_place(&a->d->node, is, a->placing.why, sizeof(a->placing.why));
	if (!st)
		st = part_record_write(a->d, a->job, a->part, is->uuid, a->whole, on_written, a);
	a->is_written = !st;
	if (st)
		make(a, st);
}

/* The part is here with a tensor set that cannot be read, in a record that is written anew. */
static bool mends(const struct arriving *a, const struct part *there)
{
	const struct placement *is = &a->placing.held.placement;
	char why[320];
	return there && part_is_mended_by(there, is->tensors) && !part_check_same(there, is, why, sizeof(why));
}

static void write_again(struct arriving *a)
{
	enum status st =
		part_record_write(a->d, a->job, a->part, a->placing.held.placement.uuid, a->whole, on_written, a);
	a->is_written = !st;
	if (st)
		make(a, st);
}

static void take(struct arriving *a)
{
	enum status st = check_message(a);
	const struct part *there = part_find(&a->d->node, a->job, a->part);
	if (a->away && there && there->dropped)
		arriving_free(a); /* it is repeated when the part is gone */
	else if (!st && a->away && !there)
		write_then_make(a);
	else if (!st && a->away && mends(a, there))
		write_again(a);
	else
		make(a, st);
}

/* ---- from the message ---- */

static void read_spec(struct rpc_work *w)
{
	placing_read(&((struct arriving *)w)->placing);
}

static void on_read(struct rpc_work *w)
{
	struct arriving *a = (struct arriving *)w;
	if (!a->dropped && !a->d->node.stopping)
		take(a);
	else
		arriving_free(a);
}

/* With its end, in one piece. */
static struct shared *whole_of(const struct link_message *m)
{
	const size_t n_end = m->end ? m->end->n : 0;
	uint8_t *bytes = malloc(m->n + n_end + 1);
	if (!bytes)
		return NULL;
	memcpy(bytes, m->bytes, m->n);
	if (n_end)
		memcpy(bytes + m->n, m->end->data, n_end);
	struct shared *whole = shared_new(bytes, m->n + n_end);
	if (!whole)
		free(bytes);
	return whole;
}

/* A placement is sent again until it is answered, and one that is large is read for long. */
static bool is_being_read(const struct daemon *d, uint64_t job, uint32_t part)
{
	for (const struct arriving *a = d->arriving; a; a = a->next)
		if (a->job == job && a->part == part && !a->dropped)
			return true;
	return false;
}

void parts_take_placement(struct daemon *d, const struct link_message *m)
{
	struct arriving *a = is_being_read(d, m->job, m->part) ? NULL : calloc(1, sizeof(*a));
	if (!a)
		return;
	a->d = d;
	a->job = m->job;
	a->part = m->part;
	a->next = d->arriving;
	d->arriving = a;
	a->away = m->away;
	if (a->away && !(a->whole = whole_of(m))) {
		arriving_free(a);
		return;
	}
	placing_open(&a->placing, &d->node, m->bytes, m->n, m->end);
	const struct placement *p = &a->placing.held.placement;
	if (!a->placing.status && p->spec.n + (p->tensors ? p->tensors->n : 0) >= LARGE_SPEC && !d->node.starting) {
		rpc_pool_put(d->node.pool, &a->work, p->uid, read_spec, on_read);
		return;
	}
	if (!a->placing.status)
		placing_read(&a->placing);
	take(a);
}

/* ---- from a record ---- */

static enum status check_record(const struct part_record *r, struct placing *from)
{
	const struct placement *is = &from->held.placement;
	if (is->job_id == r->job && is->part == r->part && !memcmp(is->uuid, r->uuid, sizeof(r->uuid)))
		return ST_OK;
	snprintf(from->why, sizeof(from->why), "it has a placement of part %u of job %llu", is->part,
		 (unsigned long long)is->job_id);
	return ST_VERSION_SKEW;
}

static enum status take_record(struct daemon *d, struct part_record *r, struct placing *from)
{
	struct part *p = NULL;
	placing_open(from, &d->node, r->placement->data, r->placement->n, NULL);
	if (!from->status)
		placing_recall(from, r->tensors, r->begun);
	if (!from->status)
		placing_read(from);
	enum status st = from->status;
	if (!st)
		st = check_record(r, from);
	if (!st && hosted_find(d, r->job)) {
		snprintf(from->why, sizeof(from->why), "this gaccd coordinates a job of this id itself");
		st = ST_ALREADY_EXISTS;
	}
	if (!st)
		st = part_place(&d->node, from, d->ports, &p, from->why, sizeof(from->why));
	if (st)
		return st;
	part_record_drop(d, r);
	p->away = true;
	if (p->begun)
		job_run_on(p->job);
	begin(d, p);
	return ST_OK;
}

/* Nobody would end these parts. */
static void warn_of_no_coordinator(struct daemon *d)
{
	char text[200];
	if (d->away || !d->record)
		return;
	snprintf(text, sizeof(text),
		 "the journal has parts of job %llu, and perhaps of others, that another gaccd coordinates, and "
		 "cluster.coordinator is empty: they wait for it",
		 (unsigned long long)d->record->job);
	daemon_event(d, true, "PartsWithoutCoordinator", text);
}

enum status parts_recover(struct daemon *d)
{
	enum status st = ST_OK;
	warn_of_no_coordinator(d);
	for (struct part_record *r = d->record, *next; r && st != ST_NO_MEMORY; r = next) {
		struct placing from = { .status = ST_OK };
		next = r->next;
		fdstore_starting(d->node.fdstore, daemon_now(d).mono_ns); /* each reads a specification */
		st = take_record(d, r, &from);
		if (st && st != ST_NO_MEMORY)
			part_record_set_aside(d, r, from.why[0] ? from.why : status_info(st)->text);
		placing_fini(&from);
	}
	return st == ST_NO_MEMORY ? st : ST_OK;
}

void parts_forget_arriving(struct daemon *d, uint64_t job, uint32_t part)
{
	for (struct arriving *a = d->arriving; a; a = a->next)
		a->dropped |= a->job == job && a->part == part;
}

void parts_free_arriving(struct daemon *d)
{
	while (d->arriving)
		arriving_free(d->arriving);
}

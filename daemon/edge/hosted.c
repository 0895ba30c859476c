/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, finds and frees jobs as the daemon holds them: coordinator, part, events and watchers together; and drives
 * each of them once a tick. For all of edge. Loop thread. */
#include "edge/hosted.h"

#include "base/array.h"
#include "edge/checkpoints.h"
#include "edge/hosted_aside.h"
#include "edge/hosted_past.h"
#include "edge/hosted_waits.h"
#include "edge/part_ports.h"
#include "edge/registering.h"
#include "edge/reply.h"
#include "edge/restoring.h"
#include "gacc/v1/common.pb-c.h"
#include "proto/failpoint.h"
#include "runtime/prepared.h"
#include "runtime/spec_message.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making one ---- */

void hosted_note_step(struct hosted *h, const struct commit *k)
{
	rate_add(&h->rate, k->unix_nanos, k->wait_fraction);
}

enum status hosted_add(struct daemon *d, struct hosted *h)
{
	struct hosted **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	if (h->part && part_publish(h->part))
		return ST_NO_MEMORY;
	d->job[d->n_jobs++] = h;
	return ST_OK;
}

void hosted_drop_machines(struct hosted *h)
{
	if (h->part)
		registering_drop(h->part);
	part_free(h->part);
	coord_free(h->coord);
	h->part = NULL;
	h->coord = NULL;
}

void hosted_free(struct hosted *h)
{
	if (!h)
		return;
	launching_free(h);
	hosted_history_fini(h);
	saving_free(h);
	saved_fini(&h->saved);
	hosted_drop_machines(h);
	specification_drop(h->text);
	free(h->user);
	free(h->end.reason);
	free(h->end.view);
	free(h->end.counted);
	events_fini(&h->events);
	calls_fini(&h->watchers);
	calls_fini(&h->norms_calls);
	free(h);
}

struct hosted *hosted_make(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct specification *text,
			   uint32_t n_events)
{
	struct hosted *h = text ? calloc(1, sizeof(*h)) : NULL;
	if (!h) {
		specification_drop(text);
		return NULL;
	}
	h->text = text;
	h->spec = &text->spec;
	h->d = d;
	h->id = id;
	h->uid = uid;
	h->user = strdup(user);
	if (events_init(&h->events, n_events) && h->user)
		return h;
	hosted_free(h);
	return NULL;
}

enum status hosted_new(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct prepared *p,
		       struct hosted **out)
{
	if (p->status)
		return p->status;
	struct hosted *h = hosted_make(d, id, uid, user, specification_new(p), HOSTED_EVENTS);
	if (!h)
		return ST_NO_MEMORY;
	const struct part_ports pp = part_ports();
	const struct coord_ports cp = hosted_coord_ports(h);
	enum status st = saving_new(h);
	if (!st)
		st = part_new(&d->node, id, uid, h->uuid, h->text, &pp, &h->part);
	if (!st)
		st = coord_new(&h->coord, id, h->spec, d->term, 1, NULL, &cp);
	if (st) {
		hosted_free(h);
		return st;
	}
	h->part->tensors.durable = h->text->pb->n_tensors != 0;
	if (p->set.n)
		job_take_tensors(h->part->job, &p->set);
	*out = h;
	return ST_OK;
}

enum status hosted_declare_spec_tensors(struct hosted *h, char *why, size_t n_why)
{
	struct tensor_spec *t = NULL;
	enum status st = tensors_from_message(h->text->pb->tensors, h->text->pb->n_tensors, &t, why, n_why);
	if (!st)
		st = job_set_tensors(h->part->job, t, h->text->pb->n_tensors, why, n_why);
	free(t);
	return st;
}

void hosted_free_all(struct daemon *d)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		hosted_free(d->job[i]);
	free(d->job);
	d->job = NULL;
	d->n_jobs = 0;
}

/* ---- finding ---- */

struct hosted *hosted_find(const struct daemon *d, uint64_t id)
{
	uint32_t lo = 0, hi = d->n_jobs;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (d->job[mid]->id == id)
			return d->job[mid];
		if (d->job[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

bool hosted_is_of(const struct hosted *h, uint32_t uid)
{
	return uid == 0 || uid == h->uid;
}

/* The newest of this name that has not ended, else the newest. `own`: of this user; else of the others. */
static struct hosted *find_name(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	struct hosted *newest = NULL;
	for (uint32_t i = d->n_jobs; i-- > 0;) {
		struct hosted *h = d->job[i];
		if ((h->uid == uid) != own || strcmp(h->spec->name, name))
			continue;
		if (!hosted_ended(h))
			return h;
		if (!newest)
			newest = h;
	}
	return newest;
}

bool hosted_name_is_id(const char *name, uint64_t *out_id)
{
	const char *digits = !strncmp(name, "job/", 4) ? name + 4 : name;
	char *end;
	errno = 0;
	unsigned long long id = strtoull(digits, &end, 10);
	*out_id = id;
	return !errno && *digits >= '0' && *digits <= '9' && !*end; /* strtoull takes signs and spaces, too */
}

struct hosted *hosted_find_named(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	uint64_t id;
	if (hosted_name_is_id(name, &id)) {
		struct hosted *h = hosted_find(d, id);
		return h && hosted_is_of(h, uid) ? h : NULL;
	}
	struct hosted *h = find_name(d, name, uid, true);
	return h || own || uid ? h : find_name(d, name, uid, false);
}

bool hosted_ended(const struct hosted *h)
{
	return !h->coord || coord_phase(h->coord) == COORD_ENDED;
}

enum job_state hosted_state(const struct hosted *h, const char **out_reason, int64_t *out_since_unix_ns)
{
	if (h->coord)
		return coord_state(h->coord, out_reason, out_since_unix_ns);
	if (out_reason)
		*out_reason = h->end.reason ? h->end.reason : "";
	if (out_since_unix_ns)
		*out_since_unix_ns = h->ended_unix_ns;
	return h->end.state;
}

void hosted_user_name(uint32_t uid, char *out, size_t n)
{
	struct passwd p, *found = NULL;
	char buf[4096];
	if (!getpwuid_r(uid, &p, buf, sizeof(buf), &found) && found)
		snprintf(out, n, "%s", p.pw_name);
	else
		snprintf(out, n, "%u", uid);
}

/* ---- watchers, time ---- */

uint64_t hosted_host_bytes(const struct hosted *h)
{
	return h->part ? h->part->mem.bytes : h->kept_bytes;
}

/* Nothing uses its state machines. */
static bool is_free(const struct hosted *h)
{
	return coord_phase(h->coord) < COORD_ENDING && !h->n_holders && !h->watchers.n && !h->part->n_holders &&
	       !h->part->n_links && !h->waits && !h->norms_calls.n && !saving_busy(h);
}

/* Lets a part read the tensor set that it has left packed since the restart. true: the set cannot be read, and the
 * job has been set aside. */
static bool tensors_tick(struct hosted *h)
{
	const struct part_tensors *t = &h->part->tensors;
	if (!t->due || h->part->mem.allocating || h->admission.queued || coord_phase(h->coord) >= COORD_ENDING)
		return false;
	if (!t->wrong) {
		part_allocate(h->part);
		return false;
	}
	if (!is_free(h) || hosted_set_aside(h, "TENSORS", t->wrong))
		return false;
	launching_free(h);
	return true;
}

void hosted_tick(struct hosted *h, struct now now)
{
	launching_tick(h, now);
	if (!h->coord) {
		hosted_past_tick(h, now);
		return;
	}
	if (tensors_tick(h))
		return;
	registering_tick(h->part, now);
	part_tick(h->part, now);
	saving_tick(h);
	coord_tick(h->coord, now);
	if (hosted_ended(h))
		hosted_submit_done(h, ST_OK, NULL); /* it has ended before its memory was there: its state says how */
	if (h->norms_calls.n && hosted_ended(h))
		hosted_fail_norms(h, ST_JOB_ENDED, "it has ended");
	hosted_tell(h, now);
	hosted_waits(h, now);
	hosted_end_tick(h, now);
}

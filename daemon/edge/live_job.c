/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/live_job.h"

#include "base/array.h"
#include "edge/live_aside.h"
#include "edge/live_past.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "edge/part_ports.h"
#include "edge/registering.h"
#include "edge/reply.h"
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

void live_note_step(struct live_job *l, const struct commit *k)
{
	rate_add(&l->rate, k->unix_nanos, k->wait_fraction);
}

enum status live_add(struct daemon *d, struct live_job *l)
{
	struct live_job **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	if (l->part && part_publish(l->part))
		return ST_NO_MEMORY;
	d->job[d->n_jobs++] = l;
	return ST_OK;
}

void live_drop_machines(struct live_job *l)
{
	if (l->part)
		registering_drop(l->part);
	part_free(l->part);
	coord_free(l->coord);
	l->part = NULL;
	l->coord = NULL;
}

void live_free(struct live_job *l)
{
	if (!l)
		return;
	live_launch_free(l);
	live_history_fini(l);
	saving_free(l);
	saved_fini(&l->saved);
	live_drop_machines(l);
	specification_drop(l->text);
	free(l->user);
	free(l->end.reason);
	free(l->end.view);
	free(l->end.counted);
	events_fini(&l->events);
	calls_fini(&l->watchers);
	calls_fini(&l->norms_calls);
	free(l);
}

struct live_job *live_make(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct specification *text,
			   uint32_t n_events)
{
	struct live_job *l = text ? calloc(1, sizeof(*l)) : NULL;
	if (!l) {
		specification_drop(text);
		return NULL;
	}
	l->text = text;
	l->spec = &text->spec;
	l->d = d;
	l->id = id;
	l->uid = uid;
	l->user = strdup(user);
	if (events_init(&l->events, n_events) && l->user)
		return l;
	live_free(l);
	return NULL;
}

enum status live_new(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct prepared *p,
		     struct live_job **out)
{
	if (p->status)
		return p->status;
	struct live_job *l = live_make(d, id, uid, user, specification_new(p), LIVE_EVENTS);
	if (!l)
		return ST_NO_MEMORY;
	const struct part_ports pp = part_ports();
	const struct coord_ports cp = live_coord_ports(l);
	enum status st = saving_new(l);
	if (!st)
		st = part_new(&d->node, id, uid, l->uuid, l->text, &pp, &l->part);
	if (!st)
		st = coord_new(&l->coord, id, l->spec, d->term, 1, NULL, &cp);
	if (st) {
		live_free(l);
		return st;
	}
	l->part->tensors.durable = l->text->pb->n_tensors != 0;
	if (p->set.n)
		job_take_tensors(l->part->job, &p->set);
	*out = l;
	return ST_OK;
}

enum status live_declare_spec_tensors(struct live_job *l, char *why, size_t n_why)
{
	struct tensor_spec *t = NULL;
	enum status st = tensors_from_message(l->text->pb->tensors, l->text->pb->n_tensors, &t, why, n_why);
	if (!st)
		st = job_set_tensors(l->part->job, t, l->text->pb->n_tensors, why, n_why);
	free(t);
	return st;
}

void live_free_all(struct daemon *d)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		live_free(d->job[i]);
	free(d->job);
	d->job = NULL;
	d->n_jobs = 0;
}

/* ---- finding ---- */

struct live_job *live_find(const struct daemon *d, uint64_t id)
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

bool live_is_of(const struct live_job *l, uint32_t uid)
{
	return uid == 0 || uid == l->uid;
}

/* The newest of this name that has not ended, else the newest. `own`: of this user; else of the others. */
static struct live_job *find_name(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	struct live_job *newest = NULL;
	for (uint32_t i = d->n_jobs; i-- > 0;) {
		struct live_job *l = d->job[i];
		if ((l->uid == uid) != own || strcmp(l->spec->name, name))
			continue;
		if (!live_ended(l))
			return l;
		if (!newest)
			newest = l;
	}
	return newest;
}

bool live_name_is_id(const char *name, uint64_t *out_id)
{
	const char *digits = !strncmp(name, "job/", 4) ? name + 4 : name;
	char *end;
	errno = 0;
	unsigned long long id = strtoull(digits, &end, 10);
	*out_id = id;
	return !errno && *digits >= '0' && *digits <= '9' && !*end; /* strtoull takes signs and spaces, too */
}

struct live_job *live_find_named(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	uint64_t id;
	if (live_name_is_id(name, &id)) {
		struct live_job *l = live_find(d, id);
		return l && live_is_of(l, uid) ? l : NULL;
	}
	struct live_job *l = find_name(d, name, uid, true);
	return l || own || uid ? l : find_name(d, name, uid, false);
}

bool live_ended(const struct live_job *l)
{
	return !l->coord || coord_phase(l->coord) == COORD_ENDED;
}

enum job_state live_state(const struct live_job *l, const char **out_reason, int64_t *out_since_unix_ns)
{
	if (l->coord)
		return coord_state(l->coord, out_reason, out_since_unix_ns);
	if (out_reason)
		*out_reason = l->end.reason ? l->end.reason : "";
	if (out_since_unix_ns)
		*out_since_unix_ns = l->ended_unix_ns;
	return l->end.state;
}

void live_user_name(uint32_t uid, char *out, size_t n)
{
	struct passwd p, *found = NULL;
	char buf[4096];
	if (!getpwuid_r(uid, &p, buf, sizeof(buf), &found) && found)
		snprintf(out, n, "%s", p.pw_name);
	else
		snprintf(out, n, "%u", uid);
}

/* ---- watchers, time ---- */

uint64_t live_host_bytes(const struct live_job *l)
{
	return l->part ? l->part->mem.bytes : l->kept_bytes;
}

/* Nobody holds on to its machines. */
static bool is_free(const struct live_job *l)
{
	return coord_phase(l->coord) < COORD_ENDING && !l->n_holders && !l->watchers.n && !l->part->n_holders &&
	       !l->part->n_links && !l->waits && !l->norms_calls.n && !saving_busy(l);
}

/* A tensor set of the journal that is yet to be read. true: it cannot be, and the job has been set aside. */
static bool tensors_tick(struct live_job *l)
{
	const struct part_tensors *t = &l->part->tensors;
	if (!t->due || l->part->mem.allocating || l->admission.queued || coord_phase(l->coord) >= COORD_ENDING)
		return false;
	if (!t->wrong) {
		part_allocate(l->part);
		return false;
	}
	if (!is_free(l) || live_set_aside(l, "TENSORS", t->wrong))
		return false;
	live_launch_free(l);
	return true;
}

void live_tick(struct live_job *l, struct now now)
{
	live_launch_tick(l, now);
	if (!l->coord) {
		live_past_tick(l, now);
		return;
	}
	if (tensors_tick(l))
		return;
	registering_tick(l->part, now);
	part_tick(l->part, now);
	saving_tick(l);
	coord_tick(l->coord, now);
	if (live_ended(l))
		live_submit_done(l, ST_OK, NULL); /* it has ended before its memory was there: its state says how */
	if (l->norms_calls.n && live_ended(l))
		live_fail_norms(l, ST_JOB_ENDED, "it has ended");
	live_tell(l, now);
	live_waits(l, now);
	live_end_tick(l, now);
}

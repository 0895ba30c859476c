/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/live_job.h"

#include "base/array.h"
#include "base/log.h"
#include "edge/live_past.h"
#include "edge/live_saving.h"
#include "edge/live_tensors.h"
#include "runtime/prepared.h"
#include "edge/reply.h"
#include "gacc/v1/common.pb-c.h"
#include "host/process.h"
#include "proto/failpoint.h"
#include "runtime/engine_proc.h"
#include "runtime/spec_message.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	live_event(ctx, warning, reason, rank, text);
}

/* ---- reports and orders: delivered when the sender has returned ---- */

struct posted_report {
	struct posted post;
	struct live_job *l;
	struct report report;
};

static void deliver_report(struct posted *p)
{
	struct posted_report *r = (struct posted_report *)p;
	live_drop(r->l);
	coord_on_report(r->l->coord, 0, &r->report, daemon_now(r->l->d));
	free(r);
}

static void on_report(void *ctx, const struct report *r)
{
	struct live_job *l = ctx;
	size_t n_rank = r->n_ranks * sizeof(*r->rank), n_map = r->counted ? r->n_words * sizeof(*r->counted) : 0;
	struct posted_report *p = FAILPOINT_ERROR(gaccd_report_before) ? NULL : malloc(sizeof(*p) + n_rank + n_map);
	if (!p)
		return; /* the tick reports again */
	char *at = (char *)(p + 1);
	p->l = l;
	p->report = *r;
	p->report.rank = memcpy(at, r->rank, n_rank);
	if (n_map)
		p->report.counted = memcpy(at + n_rank, r->counted, n_map);
	live_hold(l);
	daemon_post(l->d, &p->post, deliver_report);
}

struct posted_order {
	struct posted post;
	struct live_job *l;
	struct order order;
};

static void deliver_order(struct posted *p)
{
	struct posted_order *o = (struct posted_order *)p;
	live_drop(o->l);
	job_on_order(o->l->job, &o->order, daemon_now(o->l->d));
	FAILPOINT(coord_order_after);
	free(o);
}

static void on_params_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	l->params_noted = false;
	l->params_durable = st == ST_OK;
	if (l->params_durable && l->coord)
		coord_resend(l->coord, daemon_now(l->d));
}

/* The journal knows that the job has its parameters. If its memory is lost before that, it begins anew, as no push can
 * have been acknowledged. */
static bool params_are_durable(struct live_job *l)
{
	struct journal_record r = { .kind = JOURNAL_PARAMS_READY, .params_ready = { l->id } };
	if (!l->params_durable && !l->params_noted)
		l->params_noted = persist_put(l->d->persist, &r, on_params_durable, l) == ST_OK;
	return l->params_durable;
}

static void on_order(void *ctx, uint32_t node, const struct order *o)
{
	struct live_job *l = ctx;
	if (o->run && o->want != WANT_END && !params_are_durable(l))
		return; /* sent again when they are */
	size_t n_late = o->n_late * sizeof(*o->late);
	struct posted_order *p = FAILPOINT_ERROR(coord_order_before) ? NULL : malloc(sizeof(*p) + n_late);
	if (!p)
		return; /* the tick orders again */
	p->l = l;
	p->order = *o;
	if (n_late)
		p->order.late = memcpy(p + 1, o->late, n_late);
	live_hold(l);
	daemon_post(l->d, &p->post, deliver_order);
}

/* ---- other ports ---- */

void live_note_step(struct live_job *l, const struct commit *k)
{
	rate_add(&l->rate, k->unix_nanos, k->wait_fraction);
}

static void on_changed(void *ctx, uint64_t job)
{
	struct live_job *l = ctx;
	l->changed = true;
	live_history_applied(l);
	const struct commit *k = coord_last_commit(l->coord);
	if (k && coord_phase(l->coord) == COORD_COLLECT && k->window + 1 == coord_window(l->coord))
		live_note_step(l, k);
}

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	struct live_job *l = ctx;
	reply_send(l, call, r);
}

static bool on_engine_send(void *ctx, uint64_t job, const struct engine_command *c, const void *present)
{
	return live_engine_send(ctx, c, present);
}

static void on_allocate(void *ctx, uint64_t job)
{
	live_allocate(ctx);
}

static bool on_process_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return start_time && process_start_time(pid) == start_time;
}

void live_random16(void *ctx, uint8_t out[16])
{
	if (getrandom(out, 16, 0) != 16)
		abort(); /* Linux always has these */
}

/* ---- making one ---- */

enum status live_add(struct daemon *d, struct live_job *l)
{
	struct live_job **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	d->job[d->n_jobs++] = l;
	return ST_OK;
}

void live_free(struct live_job *l)
{
	if (!l)
		return;
	live_let_go(l);
	registering_drop(l);
	registering_set_gone(l);
	live_launch_free(l);
	live_history_fini(l);
	saving_free(l);
	saved_fini(&l->saved);
	job_free(l->job);
	coord_free(l->coord);
	job_spec_fini(&l->spec);
	if (l->spec_pb)
		gacc__v1__job_spec__free_unpacked(l->spec_pb, NULL);
	free(l->spec_field);
	shared_drop(l->tensors_packed);
	free(l->tensors_wrong);
	free(l->user);
	free(l->end_reason);
	free(l->end_view);
	free(l->end_counted);
	events_fini(&l->events);
	free(l->watcher);
	free(l->norms_call);
	free(l);
}

struct live_job *live_make(struct daemon *d, uint64_t id, uint32_t uid, const char *user, uint32_t n_events)
{
	struct live_job *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->d = d;
	l->id = id;
	l->uid = uid;
	l->plan_fd = -1;
	l->user = strdup(user);
	if (events_init(&l->events, n_events) && l->user)
		return l;
	live_free(l);
	return NULL;
}

#define LARGE_SPEC (16u << 10) /* bytes: what is packed again in no time */

/* A large specification is part of many answers: then it only has to be copied. */
static bool keep_packed(struct live_job *l, const struct prepared *p)
{
	if (p->n < LARGE_SPEC)
		return true;
	l->spec_field = malloc(p->n + 10);
	if (!l->spec_field)
		return false;
	uint64_t left = p->n;
	for (; left >= 0x80; left >>= 7)
		l->spec_field[l->spec_at++] = (uint8_t)(left | 0x80);
	l->spec_field[l->spec_at++] = (uint8_t)left;
	memcpy(l->spec_field + l->spec_at, p->bytes, p->n);
	l->n_spec_field = l->spec_at + p->n;
	return true;
}

static void on_saved(void *ctx, char *text, size_t n)
{
	const struct live_job *l = ctx;
	const struct saved *k = saved_newest(&l->saved);
	if (k)
		snprintf(text, n, "; restore the checkpoint of step %llu: %s", (unsigned long long)k->applied_step,
			 k->path);
	else if (l->spec.restores)
		snprintf(text, n, "; it has no checkpoint of its own, it began with %s", l->spec_pb->restore_from);
	else
		snprintf(text, n, "; there is no checkpoint to restore");
}

enum status live_new(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct prepared *p,
		     struct live_job **out)
{
	if (p->status)
		return p->status;
	struct live_job *l = live_make(d, id, uid, user, LIVE_EVENTS);
	if (!l)
		return ST_NO_MEMORY;
	memcpy(l->spec_sum, p->sum, sizeof(l->spec_sum));
	l->spec_pb = p->pb;
	l->spec = p->spec;
	p->pb = NULL;
	p->spec = (struct job_spec){ 0 };
	struct job_ports jp = { .ctx = l,
				.reply = on_reply,
				.engine_send = on_engine_send,
				.report = on_report,
				.allocate = on_allocate,
				.event = on_event,
				.process_alive = on_process_alive,
				.random16 = live_random16 };
	struct coord_ports cp = { .ctx = l,
				  .order = on_order,
				  .persist_commit = live_persist_commit,
				  .persist_end = live_persist_end,
				  .event = on_event,
				  .changed = on_changed,
				  .norms = live_norms,
				  .saved = on_saved };
	enum status st = keep_packed(l, p) ? saving_new(l) : ST_NO_MEMORY;
	if (!st)
		st = job_new(&l->job, id, &l->spec, uid, d->node.incarnation, &jp);
	if (!st)
		st = coord_new(&l->coord, id, &l->spec, d->term, 1, &cp);
	if (st) {
		live_free(l);
		return st;
	}
	if (p->set.n)
		job_take_tensors(l->job, &p->set);
	*out = l;
	return ST_OK;
}

enum status live_declare_spec_tensors(struct live_job *l, char *why, size_t n_why)
{
	struct tensor_spec *t = NULL;
	enum status st = tensors_from_message(l->spec_pb->tensors, l->spec_pb->n_tensors, &t, why, n_why);
	if (!st)
		st = job_set_tensors(l->job, t, l->spec_pb->n_tensors, why, n_why);
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
		if ((l->uid == uid) != own || strcmp(l->spec.name, name))
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
		*out_reason = l->end_reason ? l->end_reason : "";
	if (out_since_unix_ns)
		*out_since_unix_ns = l->ended_unix_ns;
	return l->end_state;
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

bool live_watch(struct live_job *l, uint64_t call, uint32_t rank)
{
	struct watcher *w = array_grow(l->watcher, l->n_watchers, &l->watchers_capacity, sizeof(*w));
	if (!w)
		return false;
	l->watcher = w;
	l->watcher[l->n_watchers++] = (struct watcher){ call, rank };
	return true;
}

void live_unwatch(struct live_job *l, uint64_t call)
{
	for (uint32_t i = 0; i < l->n_watchers; i++)
		if (l->watcher[i].call == call) {
			l->watcher[i] = l->watcher[--l->n_watchers];
			return;
		}
}

void live_tick(struct live_job *l, struct now now)
{
	live_launch_tick(l, now);
	if (!l->job) {
		live_past_tick(l, now);
		return;
	}
	if (live_tensors_tick(l))
		return;
	registering_tick(l, now);
	live_memory_tick(l);
	live_keeping_tick(l, now);
	live_engine_due(l, now);
	saving_tick(l);
	job_tick(l->job, now);
	coord_tick(l->coord, now);
	if (live_ended(l))
		live_submit_done(l, ST_OK, NULL); /* it has ended before its memory was there: its state says how */
	if (l->n_norms_calls && live_ended(l))
		live_fail_norms(l, ST_JOB_ENDED, "it has ended");
	live_tell(l, now);
	live_waits(l, now);
	live_end_tick(l, now);
}

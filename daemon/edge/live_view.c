/* SPDX-License-Identifier: Apache-2.0 */
/* A job as a protobuf message, and the streams that watch it. */
#include "edge/live_job.h"

#include "edge/convert.h"
#include "edge/live_launch.h"
#include "edge/live_past.h"
#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/bytes.h"
#include "proto/path.h"
#include "proto/utf8.h"
#include "runtime/engine_proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 128

static char *format_uuid(const uint8_t uuid[16])
{
	char *s = malloc(UUID_TEXT);
	if (s)
		uuid_text(uuid, s);
	return s;
}

static Gacc__V1__JobSpec *copy_spec(const Gacc__V1__JobSpec *spec)
{
	return (Gacc__V1__JobSpec *)bytes_clone(&spec->base);
}

/* A spec may have as many tensors as one request can carry; what looks at many jobs, or at one often, does without. */
static Gacc__V1__JobSpec *copy_brief_spec(const Gacc__V1__JobSpec *spec)
{
	Gacc__V1__JobSpec s = *spec;
	s.n_tensors = s.n_param_groups = s.n_init = s.n_labels = 0;
	s.launch_command = NULL;
	return copy_spec(&s);
}

#define SPEC_FIELD_OF_JOB 3

/* As a field that this program does not know, protobuf-c sends it as it is. */
static bool add_packed_spec(const struct live_job *l, Gacc__V1__Job *j)
{
	ProtobufCMessageUnknownField *f = malloc(sizeof(*f));
	uint8_t *data = malloc(l->text->n_field);
	if (!f || !data) {
		free(f);
		free(data);
		return false;
	}
	*f = (ProtobufCMessageUnknownField){ SPEC_FIELD_OF_JOB, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, l->text->n_field,
					     memcpy(data, l->text->field, l->text->n_field) };
	j->base.unknown_fields = f;
	j->base.n_unknown_fields = 1;
	return true;
}

static bool add_spec(const struct live_job *l, unsigned parts, Gacc__V1__Job *j)
{
	if (parts & VIEW_SPEC && l->text->field)
		return add_packed_spec(l, j);
	j->spec = parts & VIEW_SPEC ? copy_spec(l->text->pb) : copy_brief_spec(l->text->pb);
	return j->spec != NULL;
}

static bool add_ranks(const struct live_job *l, Gacc__V1__Job *j, struct now now)
{
	uint32_t n;
	const struct rank_progress *p = coord_ranks(l->coord, &n);
	j->ranks = calloc(n, sizeof(*j->ranks));
	j->missing_ranks = calloc(n, sizeof(*j->missing_ranks));
	if (!j->ranks || !j->missing_ranks)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		Gacc__V1__RankStatus *r = malloc(sizeof(*r));
		char *detail = malloc(DETAIL_BYTES);
		if (!r || !detail) {
			free(r);
			free(detail);
			return false;
		}
		gacc__v1__rank_status__init(r);
		convert_rank(l->coord, &p[i], now, r, detail, DETAIL_BYTES);
		r->node = strdup(l->d->node.conf->node.name);
		j->ranks[j->n_ranks++] = r;
		if (!r->node)
			return false;
		if (coord_phase(l->coord) == COORD_COLLECT && !p[i].flushed && !p[i].waiting_ns)
			j->missing_ranks[j->n_missing_ranks++] = i;
	}
	return true;
}

/* Of a job that had ended when this gaccd started; live_launch_view says what is known of them. */
static bool add_past_ranks(const struct live_job *l, Gacc__V1__Job *j)
{
	if (!l->launch)
		return true;
	j->ranks = calloc(l->spec->ranks, sizeof(*j->ranks));
	if (!j->ranks)
		return false;
	for (uint32_t i = 0; i < l->spec->ranks; i++) {
		Gacc__V1__RankStatus *r = malloc(sizeof(*r));
		if (!r)
			return false;
		gacc__v1__rank_status__init(r);
		r->rank = i;
		r->node = strdup(l->d->node.conf->node.name);
		j->ranks[j->n_ranks++] = r;
		if (!r->node)
			return false;
	}
	return true;
}

static bool add_last(const struct live_job *l, Gacc__V1__Job *j)
{
	const struct commit *k = coord_last_commit(l->coord);
	if (!k)
		return true;
	j->last = malloc(sizeof(*j->last));
	if (!j->last)
		return false;
	gacc__v1__step_result__init(j->last);
	convert_step(k, j->last);
	return true;
}

bool live_add_events(const struct live_job *l, Gacc__V1__Job *j)
{
	const struct events *all = &l->events;
	uint64_t first = events_first(all);
	j->events = calloc(all->n - first + 1, sizeof(*j->events));
	if (!j->events)
		return false;
	for (uint64_t i = first; i < all->n; i++) {
		struct history_event e = live_history_event(l, i);
		Gacc__V1__Event *o = convert_event(&e);
		if (!o)
			return false;
		j->events[j->n_events++] = o;
	}
	return true;
}

void live_fill_counters(const struct counters *c, Gacc__V1__Counters *o)
{
	o->applied = c->applied;
	o->skipped_nonfinite = c->skipped_nonfinite;
	o->skipped_outlier = c->skipped_outlier;
	o->dropped = c->dropped;
	o->empty = c->empty;
	o->rejected_micros = c->rejected_micros;
	o->partial = c->partial;
}

static bool add_counters(const struct counters *c, Gacc__V1__Job *j)
{
	Gacc__V1__Counters *o = malloc(sizeof(*o));
	if (!o)
		return false;
	gacc__v1__counters__init(o);
	live_fill_counters(c, o);
	j->counters = o;
	return true;
}

static Gacc__V1__PendingUpdate *new_update(const struct update *u)
{
	Gacc__V1__PendingUpdate *o = malloc(sizeof(*o));
	Gacc__V1__JobValues *v = malloc(sizeof(*v));
	if (!o || !v) {
		free(o);
		free(v);
		return NULL;
	}
	gacc__v1__pending_update__init(o);
	gacc__v1__job_values__init(v);
	o->window = u->window;
	o->values = v;
	v->micro_size = u->set & VALUE_MICRO_SIZE ? u->to.micro_size : 0;
	if (u->set & VALUE_LR)
		v->lr_value_case = GACC__V1__JOB_VALUES__LR_VALUE_LR;
	if (u->set & VALUE_CLIP_NORM)
		v->clip_norm_value_case = GACC__V1__JOB_VALUES__CLIP_NORM_VALUE_CLIP_NORM;
	if (u->set & VALUE_CLIP_VALUE)
		v->clip_value_value_case = GACC__V1__JOB_VALUES__CLIP_VALUE_VALUE_CLIP_VALUE;
	v->lr = u->to.lr;
	v->clip_norm = u->to.clip_norm;
	v->clip_value = u->to.clip_value;
	return o;
}

static bool add_updates(const struct live_job *l, Gacc__V1__Job *j)
{
	const struct updates *u = coord_updates(l->coord);
	j->updates = u->n ? calloc(u->n, sizeof(*j->updates)) : NULL;
	if (u->n && !j->updates)
		return false;
	for (uint32_t i = 0; i < u->n; i++) {
		Gacc__V1__PendingUpdate *o = new_update(&u->item[i]);
		if (!o)
			return false;
		j->updates[j->n_updates++] = o;
	}
	return true;
}

/* No window is open any more in a job that ends: it is the one behind the last. */
static uint64_t window_of(const struct live_job *l)
{
	const struct commit *k = coord_last_commit(l->coord);
	bool ends = coord_phase(l->coord) >= COORD_ENDING;
	return ends && k ? k->window + 1 : coord_window(l->coord);
}

static bool fill_live(const struct live_job *l, Gacc__V1__Job *j, struct now now)
{
	j->window = window_of(l);
	j->applied_step = coord_applied_step(l->coord);
	j->micro_size = coord_values(l->coord)->micro_size;
	j->queue_position = l->admission.position;
	j->window_opened_unix_nanos = coord_window_opened_unix_ns(l->coord);
	j->epoch = coord_epoch(l->coord);
	j->host_bytes = live_host_bytes(l);
	j->engine_pid = l->part->engine.proc ? engine_proc_pid(l->part->engine.proc) : 0;
	j->engine_restarts = l->part->engine.starts ? l->part->engine.starts - 1 : 0;
	if (job_has_tensors(l->part->job)) {
		const struct arena *a = job_arena(l->part->job);
		j->tensors = a->n_tensors;
		j->parameters = a->n_parameters;
	}
	j->loss_scale = coord_carry(l->coord)->scale.scale;
	j->wait_fraction = rate_wait(&l->rate);
	j->steps_per_second = rate_per_s(&l->rate);
	return add_counters(&coord_carry(l->coord)->counters, j) && add_updates(l, j) && add_last(l, j);
}

static bool fill(const struct live_job *l, Gacc__V1__Job *j, unsigned parts, struct now now)
{
	const char *reason;
	j->id = l->id;
	j->state = (Gacc__V1__JobState)live_state(l, &reason, &j->state_since_unix_nanos);
	j->created_unix_nanos = l->created_unix_ns;
	if (j->state == GACC__V1__JOB_STATE__JOB_STATE_PENDING && !*reason) /* not in the queue, which has its own */
		reason = l->part->mem.allocating || job_has_tensors(l->part->job)
				 ? "its memory is being made"
				 : "waits for a rank to register its tensors";
	if (!j->state_since_unix_nanos) /* it has never changed */
		j->state_since_unix_nanos = l->created_unix_ns;
	j->ended_unix_nanos = l->ended_unix_ns;
	j->uid = l->uid;
	j->window = l->end.window;
	j->applied_step = l->end.step;
	j->host_bytes = live_host_bytes(l);
	j->reason = strdup(reason);
	j->uuid = format_uuid(l->uuid);
	j->user = strdup(l->user);
	if (!j->reason || !j->uuid || !j->user || !add_spec(l, parts, j))
		return false;
	utf8_repair(j->reason);
	return l->coord ? fill_live(l, j, now) : add_counters(&l->end.commit.next.counters, j);
}

/* Of processes that gaccd has not launched no exit status is known. */
static bool fill_processes(const struct live_job *l, Gacc__V1__Job *j)
{
	for (size_t i = 0; i < j->n_ranks; i++)
		j->ranks[i]->exit_status = LAUNCH_NO_STATUS;
	return live_launch_fill(l, j);
}

static bool fill_ranks(const struct live_job *l, Gacc__V1__Job *j, struct now now)
{
	return l->coord ? add_ranks(l, j, now) : add_past_ranks(l, j);
}

/* protobuf-c frees strings that are not its empty default: every text here is malloc'ed. */
static Gacc__V1__Job *new_view(const struct live_job *l, unsigned parts, struct now now)
{
	Gacc__V1__Job *j = malloc(sizeof(*j));
	if (!j)
		return NULL;
	gacc__v1__job__init(j);
	j->log_dir = live_log_dir(l);
	if (j->log_dir && fill(l, j, parts, now) && (!(parts & VIEW_RANKS) || fill_ranks(l, j, now)) &&
	    fill_processes(l, j) && (!(parts & VIEW_EVENTS) || live_add_events(l, j)))
		return j;
	gacc__v1__job__free_unpacked(j, NULL);
	return NULL;
}

Gacc__V1__Job *live_view(const struct live_job *l, unsigned parts, struct now now)
{
	return l->end.view ? live_past_view(l, parts) : new_view(l, parts, now);
}

/* ---- watchers ---- */

/* The message is one for all, but it is packed for each: so much of it goes out with one change. */
static bool fits(uint64_t ranks, uint64_t watchers)
{
	return ranks * watchers <= VIEW_MAX_RANKS;
}

static void tell_job(struct live_job *l, uint32_t n_watchers, struct now now)
{
	Gacc__V1__WatchResponse m = GACC__V1__WATCH_RESPONSE__INIT;
	m.job = live_view(l, fits(l->spec->ranks, n_watchers) ? VIEW_RANKS : 0, now);
	for (uint32_t i = l->watchers.n; i-- > 0;) {
		struct rpc_call *call =
			l->watchers.item[i].rank == RANK_NONE ? rpc_find(l->d->rpc, l->watchers.item[i].call) : NULL;
		if (!call)
			continue; /* its on_end removes it */
		if (m.job)
			rpc_send(call, &m.base); /* a slow reader misses this state and gets the next */
		if (live_ended(l))
			rpc_finish(call, NULL);
	}
	if (m.job)
		gacc__v1__job__free_unpacked(m.job, NULL);
}

static void fill_step(struct live_job *l, Gacc__V1__WatchSessionResponse *m, Gacc__V1__StepResult *step)
{
	convert_step(coord_last_commit(l->coord), step);
	m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STEP;
	m->step = step;
}

/* Moves the late ones of `all`'s ranks to the front and lends them to `out`, as many as `n_watchers` can be told of. */
static void fill_stall(const Gacc__V1__Job *all, uint32_t n_watchers, Gacc__V1__StallWarning *out)
{
	out->window = all->window;
	out->late = all->ranks;
	for (size_t i = 0; i < all->n_ranks; i++) {
		Gacc__V1__RankStatus *late = all->ranks[i];
		if (late->late_ns > out->waiting_ns)
			out->waiting_ns = late->late_ns;
		if (late->late_ns && (!out->n_late || fits(out->n_late + 1, n_watchers))) {
			all->ranks[i] = all->ranks[out->n_late];
			all->ranks[out->n_late++] = late;
		}
	}
}

static void fill_state(enum job_state state, const Gacc__V1__Job *stalled, uint32_t n_watchers,
		       Gacc__V1__WatchSessionResponse *m, Gacc__V1__StallWarning *stall)
{
	if (stalled) {
		m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STALL;
		fill_stall(stalled, n_watchers, stall);
		m->stall = stall;
	} else {
		m->event_case = GACC__V1__WATCH_SESSION_RESPONSE__EVENT_STATE;
		m->state = (Gacc__V1__JobState)state;
	}
}

/* What is not to be told is NULL. */
static void tell_sessions(struct live_job *l, const Gacc__V1__WatchSessionResponse *step,
			  const Gacc__V1__WatchSessionResponse *state)
{
	for (uint32_t i = l->watchers.n; i-- > 0;) {
		struct rpc_call *call =
			l->watchers.item[i].rank != RANK_NONE ? rpc_find(l->d->rpc, l->watchers.item[i].call) : NULL;
		if (call && step)
			rpc_send(call, &step->base);
		if (call && state)
			rpc_send(call, &state->base);
		if (call && state && live_ended(l))
			rpc_finish(call, NULL);
	}
}

static void tell_step_and_state(struct live_job *l, uint32_t n_watchers, bool new_step, struct now now)
{
	Gacc__V1__WatchSessionResponse step = GACC__V1__WATCH_SESSION_RESPONSE__INIT,
				       change = GACC__V1__WATCH_SESSION_RESPONSE__INIT;
	Gacc__V1__StallWarning stall = GACC__V1__STALL_WARNING__INIT;
	Gacc__V1__StepResult result = GACC__V1__STEP_RESULT__INIT;
	Gacc__V1__Job *stalled = NULL;
	const char *reason;
	enum job_state state = live_state(l, &reason, NULL);
	bool new_state = state != l->told_state;
	char text[256];
	if (!new_step && !new_state)
		return;
	if (new_step)
		fill_step(l, &step, &result);
	if (new_state && state == JOB_STALLED)
		stalled = live_view(l, VIEW_RANKS, now);
	fill_state(state, stalled, n_watchers, &change, &stall);
	snprintf(text, sizeof(text), "%s", reason);
	utf8_repair(text);
	change.message = text;
	tell_sessions(l, new_step ? &step : NULL, new_state ? &change : NULL);
	if (stalled)
		gacc__v1__job__free_unpacked(stalled, NULL);
}

void live_tell(struct live_job *l, struct now now)
{
	if (!l->changed)
		return;
	const struct commit *k = coord_last_commit(l->coord);
	bool new_step = k && (!l->told_any || k->window != l->told_window) && coord_phase(l->coord) != COORD_PERSIST;
	uint32_t n_looking = 0;
	for (uint32_t i = 0; i < l->watchers.n; i++)
		n_looking += l->watchers.item[i].rank == RANK_NONE;
	if (n_looking)
		tell_job(l, n_looking, now);
	if (n_looking < l->watchers.n)
		tell_step_and_state(l, l->watchers.n - n_looking, new_step, now);
	if (new_step) {
		l->told_window = k->window;
		l->told_any = true;
	}
	l->told_state = live_state(l, NULL, NULL);
	l->changed = false;
}

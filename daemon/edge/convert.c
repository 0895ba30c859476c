/* SPDX-License-Identifier: Apache-2.0 */
/* Fills in API messages from control's structs: steps, events and ranks of a job. For the views, the history and the
 * answers to calls. No state; loop thread, and events also on the pool thread that reads the history. */
#include "edge/convert.h"

#include "engine/channel.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/saved_list.h"
#include "store/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Control's numbers are shown as they are. */
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)GACC__V1__##theirs, #ours)
SAME(OUTCOME_NONE, STEP_OUTCOME__STEP_OUTCOME_UNSPECIFIED);
SAME(OUTCOME_APPLIED, STEP_OUTCOME__STEP_OUTCOME_APPLIED);
SAME(STEP_APPLIED, STEP_OUTCOME__STEP_OUTCOME_APPLIED);
SAME(OUTCOME_SKIPPED, STEP_OUTCOME__STEP_OUTCOME_SKIPPED);
SAME(OUTCOME_EMPTY, STEP_OUTCOME__STEP_OUTCOME_EMPTY);
SAME(OUTCOME_DROPPED, STEP_OUTCOME__STEP_OUTCOME_DROPPED);
SAME(SKIP_NONE, SKIP_REASON__SKIP_REASON_UNSPECIFIED);
SAME(SKIP_NONFINITE, SKIP_REASON__SKIP_REASON_NONFINITE);
SAME(SKIP_OUTLIER, SKIP_REASON__SKIP_REASON_OUTLIER_NORM);
SAME(JOB_PENDING, JOB_STATE__JOB_STATE_PENDING);
SAME(JOB_STARTING, JOB_STATE__JOB_STATE_STARTING);
SAME(JOB_RUNNING, JOB_STATE__JOB_STATE_RUNNING);
SAME(JOB_STALLED, JOB_STATE__JOB_STATE_STALLED);
SAME(JOB_PAUSED, JOB_STATE__JOB_STATE_PAUSED);
SAME(JOB_COMPLETING, JOB_STATE__JOB_STATE_COMPLETING);
SAME(JOB_COMPLETED, JOB_STATE__JOB_STATE_COMPLETED);
SAME(JOB_FAILED, JOB_STATE__JOB_STATE_FAILED);
SAME(JOB_CANCELLED, JOB_STATE__JOB_STATE_CANCELLED);
SAME(JOB_NODE_FAIL, JOB_STATE__JOB_STATE_NODE_FAIL);

Gacc__V1__Event *convert_event(const struct history_event *e)
{
	Gacc__V1__Event *o = malloc(sizeof(*o));
	if (!o)
		return NULL;
	gacc__v1__event__init(o);
	o->id = e->id;
	o->job = e->job;
	o->unix_nanos = e->unix_ns;
	o->warning = e->warning;
	o->window = e->window;
	o->reason = strdup(e->reason);
	o->object = strdup(e->object);
	o->message = strdup(e->message);
	if (o->reason && o->object && o->message)
		return o;
	gacc__v1__event__free_unpacked(o, NULL);
	return NULL;
}

void convert_step(const struct commit *k, Gacc__V1__StepResult *out)
{
	out->window = k->window;
	out->applied_step = k->applied_step;
	out->outcome = (Gacc__V1__StepOutcome)k->outcome;
	out->total_weight = k->total_weight;
	out->micro_count = k->micro_count;
	out->divisor = k->divisor;
	out->grad_norm = k->grad_norm;
	out->lr = k->lr;
	out->mean_loss = k->mean_loss;
	out->last_rank = k->last_rank;
	out->last_lag_ns = k->last_lag_ns;
	out->params_digest = k->params_digest;
	out->next_loss_scale = k->next.scale.scale;
	out->skip_reason = (Gacc__V1__SkipReason)k->skip_reason;
	out->loss_scale = k->loss_scale;
	out->closed_unix_nanos = k->unix_nanos;
}

static Gacc__V1__RankState rank_state(const struct coord *c, const struct rank_progress *p, int64_t late_ns)
{
	if (p->flushed == RANK_LEFT)
		return GACC__V1__RANK_STATE__RANK_STATE_DONE;
	if (p->lost)
		return GACC__V1__RANK_STATE__RANK_STATE_LOST;
	if (!p->attached)
		return GACC__V1__RANK_STATE__RANK_STATE_ABSENT;
	if (coord_phase(c) == COORD_START)
		return GACC__V1__RANK_STATE__RANK_STATE_ATTACHED;
	if (p->waiting_ns)
		return GACC__V1__RANK_STATE__RANK_STATE_WAITING;
	return late_ns && coord_state(c, NULL, NULL) == JOB_STALLED ? GACC__V1__RANK_STATE__RANK_STATE_LATE
								    : GACC__V1__RANK_STATE__RANK_STATE_COMPUTING;
}

void convert_rank(const struct coord *c, const struct rank_progress *p, struct now now, Gacc__V1__RankStatus *out,
		  char *detail, size_t n)
{
	out->rank = p->rank;
	out->pid = p->pid;
	out->micro_count = p->counted;
	out->void_count = p->voided;
	out->weight = p->weight;
	out->last_push_unix_nanos = p->last_push_unix_ns;
	out->late_ns = coord_rank_late_ns(c, p->rank, now);
	out->flushed = p->flushed != 0;
	out->state = rank_state(c, p, out->late_ns);
	detail[0] = '\0';
	if (out->late_ns)
		snprintf(detail, n, "others wait for it for %.1f s%s", (double)out->late_ns / 1e9,
			 p->lost       ? "; its process is gone"
			 : p->attached ? ""
				       : "; it has not attached");
	out->detail = detail;
	out->exit_status = -1; /* only a launcher knows one */
}

void convert_counters(const struct counters *c, Gacc__V1__Counters *o)
{
	o->applied = c->applied;
	o->skipped_nonfinite = c->skipped_nonfinite;
	o->skipped_outlier = c->skipped_outlier;
	o->dropped = c->dropped;
	o->empty = c->empty;
	o->rejected_micros = c->rejected_micros;
	o->partial = c->partial;
}

void convert_checkpoint(const struct saved *k, Gacc__V1__Checkpoint *out)
{
	static char empty[] = "";
	out->id = k->id;
	out->path = k->path ? k->path : empty;
	out->state = (Gacc__V1__CheckpointState)k->state;
	out->window = k->window;
	out->applied_step = k->applied_step;
	out->carried_micros = k->carried;
	out->bytes = k->bytes;
	out->state_bytes = k->state_bytes;
	out->started_unix_nanos = k->started_unix_ns;
	out->ended_unix_nanos = k->ended_unix_ns;
	out->message = k->message ? k->message : empty;
}

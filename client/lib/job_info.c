/* SPDX-License-Identifier: Apache-2.0 */
/* Converts gacc.v1.Job and Event to the public structs of gacc_admin.h; strings stay in the message. Pure; the
 * calling thread. */
#include "lib/job_info.h"

#include "gacc/v1/job.pb-c.h"
#include "lib/answer.h"
#include "lib/json.h"
#include "proto/bytes.h"
#include "proto/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gacc_job_state is a copy of gacc.v1.JobState. */
_Static_assert((int)GACC_JOB_PENDING == (int)GACC__V1__JOB_STATE__JOB_STATE_PENDING, "as in common.proto");
_Static_assert((int)GACC_JOB_STARTING == (int)GACC__V1__JOB_STATE__JOB_STATE_STARTING, "as in common.proto");
_Static_assert((int)GACC_JOB_RUNNING == (int)GACC__V1__JOB_STATE__JOB_STATE_RUNNING, "as in common.proto");
_Static_assert((int)GACC_JOB_STALLED == (int)GACC__V1__JOB_STATE__JOB_STATE_STALLED, "as in common.proto");
_Static_assert((int)GACC_JOB_PAUSED == (int)GACC__V1__JOB_STATE__JOB_STATE_PAUSED, "as in common.proto");
_Static_assert((int)GACC_JOB_COMPLETING == (int)GACC__V1__JOB_STATE__JOB_STATE_COMPLETING, "as in common.proto");
_Static_assert((int)GACC_JOB_COMPLETED == (int)GACC__V1__JOB_STATE__JOB_STATE_COMPLETED, "as in common.proto");
_Static_assert((int)GACC_JOB_FAILED == (int)GACC__V1__JOB_STATE__JOB_STATE_FAILED, "as in common.proto");
_Static_assert((int)GACC_JOB_CANCELLED == (int)GACC__V1__JOB_STATE__JOB_STATE_CANCELLED, "as in common.proto");
_Static_assert((int)GACC_JOB_NODE_FAIL == (int)GACC__V1__JOB_STATE__JOB_STATE_NODE_FAIL, "as in common.proto");

static void fill_rank(gacc_rank_info *out, const Gacc__V1__RankStatus *r)
{
	*out = (gacc_rank_info){
		.rank = r->rank,
		.node = r->node,
		.pid = r->pid,
		.state = enum_short_name(&gacc__v1__rank_state__descriptor, (int)r->state),
		.micro_count = r->micro_count,
		.void_count = r->void_count,
		.flushed = r->flushed,
		.weight = r->weight,
		.last_push_unix_nanos = r->last_push_unix_nanos,
		.late_ns = r->late_ns,
		.detail = r->detail,
		.exit_status = r->exit_status,
		.restarts = r->restarts,
	};
}

void event_fill(gacc_job_event *out, const struct Gacc__V1__Event *e)
{
	*out = (gacc_job_event){
		.unix_nanos = e->unix_nanos,
		.warning = e->warning,
		.reason = e->reason,
		.object = e->object,
		.message = e->message,
		.window = e->window,
		.id = e->id,
		.job = e->job,
	};
}

/* A specification may leave an enum out; gaccd takes the default that common.proto names. */
static const char *name_or(const ProtobufCEnumDescriptor *type, int value, int otherwise)
{
	return enum_short_name(type, value ? value : otherwise);
}

static void fill_spec(gacc_job_info *out, const Gacc__V1__JobSpec *s)
{
	out->name = s->name;
	out->steps = s->steps;
	out->ranks = s->ranks;
	out->batch = s->batch;
	out->micro_size = s->micro_size;
	out->stall_abort_ms = s->stall_abort_ms;
	out->reduction = name_or(&gacc__v1__reduction__descriptor, (int)s->reduction,
				 GACC__V1__REDUCTION__REDUCTION_WEIGHTED_MEAN);
	out->launch = name_or(&gacc__v1__launch_mode__descriptor, (int)s->launch,
			      GACC__V1__LAUNCH_MODE__LAUNCH_MODE_EXTERNAL);
	if (s->optimizer)
		out->optimizer = enum_short_name(&gacc__v1__optimizer_type__descriptor, (int)s->optimizer->type);
}

static void fill_last(gacc_job_info *out, const Gacc__V1__StepResult *s)
{
	out->has_last = s->outcome != GACC__V1__STEP_OUTCOME__STEP_OUTCOME_UNSPECIFIED;
	out->last_outcome = enum_short_name(&gacc__v1__step_outcome__descriptor, (int)s->outcome);
	out->last_loss = s->mean_loss;
	out->last_grad_norm = s->grad_norm;
	out->last_lr = s->lr;
	out->last_weight = s->total_weight;
	out->last_rank = s->last_rank;
	out->last_lag_ns = s->last_lag_ns;
}

static void fill_counters(gacc_counters *out, const Gacc__V1__Counters *c)
{
	*out = (gacc_counters){
		.applied = c->applied,
		.skipped_nonfinite = c->skipped_nonfinite,
		.skipped_outlier = c->skipped_outlier,
		.dropped = c->dropped,
		.empty = c->empty,
		.rejected_micros = c->rejected_micros,
		.partial = c->partial,
	};
}

static void fill_scalars(gacc_job_info *out, const Gacc__V1__Job *j)
{
	*out = (gacc_job_info){
		.id = j->id,
		.uuid = j->uuid,
		.name = "",
		.state = (gacc_job_state)j->state,
		.state_name = enum_short_name(&gacc__v1__job_state__descriptor, (int)j->state),
		.ended = j->state >= GACC__V1__JOB_STATE__JOB_STATE_COMPLETED,
		.reason = j->reason,
		.window = j->window,
		.applied_step = j->applied_step,
		.optimizer = "",
		.reduction = "",
		.launch = "",
		.last_outcome = "",
		.missing = j->missing_ranks,
		.n_missing = j->n_missing_ranks,
		.created_unix_nanos = j->created_unix_nanos,
		.state_since_unix_nanos = j->state_since_unix_nanos,
		.window_opened_unix_nanos = j->window_opened_unix_nanos,
		.ended_unix_nanos = j->ended_unix_nanos,
		.user = j->user,
		.tensors = j->tensors,
		.parameters = j->parameters,
		.host_bytes = j->host_bytes,
		.steps_per_second = j->steps_per_second,
		.wait_fraction = j->wait_fraction,
		.engine_pid = j->engine_pid,
		.engine_restarts = j->engine_restarts,
		.loss_scale = j->loss_scale,
		.queue_position = j->queue_position,
		.launcher_pid = j->launcher_pid,
		.node = (const char *const *)j->nodes,
		.n_node = j->n_nodes,
		.gpu = j->gpu,
		.gpu_bytes = j->gpu_bytes,
	};
	if (j->counters)
		fill_counters(&out->counters, j->counters);
	if (j->spec)
		fill_spec(out, j->spec);
	if (j->last)
		fill_last(out, j->last);
	if (j->micro_size)
		out->micro_size = j->micro_size;
}

static bool fill_root_cause(gacc_jobs *jobs, gacc_job_info *out, const Gacc__V1__RootCause *c)
{
	gacc_root_cause *cause = answer_items(jobs, 1, sizeof(*cause));

	if (!cause)
		return false;
	*cause = (gacc_root_cause){
		.rank = c->rank,
		.pid = c->pid,
		.exit_status = c->exit_status,
		.unix_nanos = c->unix_nanos,
		.message = c->message,
		.log_line = (const char *const *)c->log_tail,
		.n_log_line = c->n_log_tail,
	};
	out->root_cause = cause;
	return true;
}

static void fill_update(gacc_pending_update *out, const Gacc__V1__PendingUpdate *u)
{
	const Gacc__V1__JobValues *v = u->values;

	out->window = u->window;
	out->values.struct_size = sizeof(out->values);
	if (!v)
		return;
	out->values.micro_size = v->micro_size;
	if (v->lr_value_case == GACC__V1__JOB_VALUES__LR_VALUE_LR)
		out->values.lr = &v->lr;
	if (v->clip_norm_value_case == GACC__V1__JOB_VALUES__CLIP_NORM_VALUE_CLIP_NORM)
		out->values.clip_norm = &v->clip_norm;
	if (v->clip_value_value_case == GACC__V1__JOB_VALUES__CLIP_VALUE_VALUE_CLIP_VALUE)
		out->values.clip_value = &v->clip_value;
}

static bool fill_parts(gacc_jobs *jobs, gacc_job_info *out, const Gacc__V1__Job *j)
{
	gacc_part_info *part = answer_items(jobs, j->n_parts, sizeof(*part));

	for (size_t i = 0; part && i < j->n_parts; i++) {
		const Gacc__V1__JobPart *p = j->parts[i];

		part[i] = (gacc_part_info){
			.number = p->number,
			.first_rank = p->first_rank,
			.ranks = p->n_ranks,
			.node = p->node,
			.engine_pid = p->engine_pid,
			.engine_restarts = p->engine_restarts,
			.host_bytes = p->host_bytes,
			.communicator = p->communicator,
		};
	}
	out->part = part;
	out->n_part = j->n_parts;
	return part != NULL;
}

const gacc_scalar *scalars_logged(void *answer, struct Gacc__V1__Scalar *const *v, size_t n)
{
	gacc_scalar *out = answer_items(answer, n, sizeof(*out));

	for (size_t i = 0; out && i < n; i++)
		out[i] = (gacc_scalar){ v[i]->name, v[i]->value, v[i]->rank, v[i]->window };
	return out;
}

static bool fill_lists(gacc_jobs *jobs, gacc_job_info *out, const Gacc__V1__Job *j)
{
	gacc_rank_info *rank = answer_items(jobs, j->n_ranks, sizeof(*rank));
	gacc_job_event *event = answer_items(jobs, j->n_events, sizeof(*event));
	gacc_pending_update *update = answer_items(jobs, j->n_updates, sizeof(*update));

	out->scalar = scalars_logged(jobs, j->scalars, j->n_scalars);
	out->n_scalar = j->n_scalars;
	if (!rank || !event || !update || !out->scalar)
		return false;
	for (size_t i = 0; i < j->n_ranks; i++)
		fill_rank(&rank[i], j->ranks[i]);
	for (size_t i = 0; i < j->n_events; i++) {
		event_fill(&event[i], j->events[i]);
		event[i].json = answer_json(jobs, &j->events[i]->base);
		if (!event[i].json)
			return false;
	}
	for (size_t i = 0; i < j->n_updates; i++)
		fill_update(&update[i], j->updates[i]);
	out->rank = rank;
	out->n_rank = j->n_ranks;
	out->event = event;
	out->n_event = j->n_events;
	out->update = update;
	out->n_update = j->n_updates;
	return true;
}

/* Older daemons leave the pattern to us. */
static bool fill_log_dir(gacc_jobs *jobs, gacc_job_info *out, const Gacc__V1__Job *j)
{
	out->log_dir = *j->log_dir ? j->log_dir : NULL;
	if (!out->log_dir)
		out->log_dir =
			answer_text(jobs, path_expand(j->spec ? j->spec->log_dir : "", j->id, out->name, j->uuid));
	return out->log_dir != NULL;
}

static bool fill_job(gacc_jobs *jobs, gacc_job_info *out, const Gacc__V1__Job *j)
{
	fill_scalars(out, j);
	out->json = answer_json(jobs, &j->base);
	return out->json && fill_log_dir(jobs, out, j) && fill_lists(jobs, out, j) && fill_parts(jobs, out, j) &&
	       (!j->root_cause || fill_root_cause(jobs, out, j->root_cause));
}

gacc_jobs *jobs_new(struct ProtobufCMessage *owner, struct Gacc__V1__Job *const *job, size_t n)
{
	gacc_jobs *jobs = answer_new(sizeof(*jobs));
	gacc_job_info *info;

	if (!jobs) {
		bytes_free(owner);
		return NULL;
	}
	if (!answer_keep(jobs, owner))
		goto fail;
	info = answer_items(jobs, n, sizeof(*info));
	for (size_t i = 0; i < n; i++)
		if (!info || !fill_job(jobs, &info[i], job[i]))
			goto fail;
	jobs->n = n;
	jobs->job = info;
	return jobs;
fail:
	gacc_jobs_free(jobs);
	return NULL;
}

void gacc_jobs_free(gacc_jobs *jobs)
{
	answer_free(jobs);
}

#include "lib/job_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gacc/v1/job.pb-c.h"
#include "lib/json.h"
#include "proto/bytes.h"

/* What one job needs beside its message. */
struct job_block {
	gacc_rank_info *rank;
	gacc_job_event *event;
	char *json;
	char *log_dir;
};

struct jobs_block {
	gacc_jobs public; /* first: what callers hold */
	struct ProtobufCMessage *owner;
	gacc_job_info *info;
	struct job_block *block;
};

/* %j is the id, %x the name. */
static char *expand_log_dir(const char *pattern, uint64_t id, const char *name)
{
	char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);

	if (!f)
		return NULL;
	for (const char *p = pattern; *p; p++) {
		if (p[0] == '%' && p[1] == 'j')
			fprintf(f, "%llu", (unsigned long long)id);
		else if (p[0] == '%' && p[1] == 'x')
			fputs(name, f);
		else if (p[0] == '%' && p[1] == '%')
			fputc('%', f);
		else {
			fputc(*p, f);
			continue;
		}
		p++;
	}
	return fclose(f) ? (free(out), NULL) : out;
}

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
	};
}

static void fill_event(gacc_job_event *out, const Gacc__V1__Event *e)
{
	*out = (gacc_job_event){ .unix_nanos = e->unix_nanos, .warning = e->warning, .reason = e->reason,
				 .object = e->object, .message = e->message, .window = e->window };
}

static void fill_spec(gacc_job_info *out, const Gacc__V1__JobSpec *s)
{
	out->name = s->name;
	out->steps = s->steps;
	out->ranks = s->ranks;
	out->batch = s->batch;
	out->micro_size = s->micro_size;
	out->stall_abort_ms = s->stall_abort_ms;
	out->reduction = enum_short_name(&gacc__v1__reduction__descriptor, (int)s->reduction);
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
	};
	if (j->spec)
		fill_spec(out, j->spec);
	if (j->last)
		fill_last(out, j->last);
	if (j->micro_size)
		out->micro_size = j->micro_size;
}

static bool fill_job(gacc_job_info *out, struct job_block *b, const Gacc__V1__Job *j)
{
	fill_scalars(out, j);
	b->rank = calloc(j->n_ranks + 1, sizeof(*b->rank));
	b->event = calloc(j->n_events + 1, sizeof(*b->event));
	b->json = json_of(&j->base);
	b->log_dir = expand_log_dir(j->spec ? j->spec->log_dir : "", j->id, out->name);
	if (!b->rank || !b->event || !b->json || !b->log_dir)
		return false;
	for (size_t i = 0; i < j->n_ranks; i++)
		fill_rank(&b->rank[i], j->ranks[i]);
	for (size_t i = 0; i < j->n_events; i++)
		fill_event(&b->event[i], j->events[i]);
	out->rank = b->rank;
	out->n_rank = j->n_ranks;
	out->event = b->event;
	out->n_event = j->n_events;
	out->json = b->json;
	out->log_dir = b->log_dir;
	return true;
}

gacc_jobs *jobs_new(struct ProtobufCMessage *owner, struct Gacc__V1__Job *const *job, size_t n)
{
	struct jobs_block *jobs = calloc(1, sizeof(*jobs));

	if (!jobs) {
		bytes_free(owner);
		return NULL;
	}
	jobs->owner = owner;
	jobs->info = calloc(n + 1, sizeof(*jobs->info));
	jobs->block = calloc(n + 1, sizeof(*jobs->block));
	jobs->public.n = n;
	jobs->public.job = jobs->info;
	for (size_t i = 0; i < n; i++)
		if (!jobs->info || !jobs->block || !fill_job(&jobs->info[i], &jobs->block[i], job[i]))
			goto fail;
	return &jobs->public;
fail:
	gacc_jobs_free(&jobs->public);
	return NULL;
}

void gacc_jobs_free(gacc_jobs *public)
{
	struct jobs_block *jobs = (struct jobs_block *)public;

	if (!jobs)
		return;
	for (size_t i = 0; jobs->block && i < public->n; i++) {
		free(jobs->block[i].rank);
		free(jobs->block[i].event);
		free(jobs->block[i].json);
		free(jobs->block[i].log_dir);
	}
	free(jobs->block);
	free(jobs->info);
	bytes_free(jobs->owner);
	free(jobs);
}

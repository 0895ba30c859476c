/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_attach and gacc_detach: a program becomes a rank of a job and leaves it, and may ask which it is. The job's
 * thread. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "lib/env.h"
#include "gacc/v1/gradient.pb-c.h"
#include "lib/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETUP_TIMEOUT_MS 60000
#define OUTAGE_MS 600000
#define DETACH_TIMEOUT_MS 5000

/* ---- attach ---- */

static gacc_status read_opts(const gacc_attach_opts *in, gacc_attach_opts *o, struct failure *f)
{
	*o = (gacc_attach_opts){ .rank = -1, .world_size = -1 };
	if (in && (in->struct_size < sizeof(in->struct_size) || in->struct_size > 4096))
		return failure_set(f, ST_INVALID_ARGUMENT, NULL, "gacc_attach_opts.struct_size is not set");
	if (in)
		memcpy(o, in, in->struct_size < sizeof(*o) ? in->struct_size : sizeof(*o));
	if (o->world_size <= 0) {
		o->world_size = -1;
		o->rank = -1;
	}
	if (!o->timeout_ms)
		o->timeout_ms = SETUP_TIMEOUT_MS;
	if (!o->outage_ms)
		o->outage_ms = OUTAGE_MS;
	return GACC_OK;
}

static gacc_status read_spec(struct gacc_job *job, const char *yaml, const char **name, struct failure *f)
{
	char why[512];
	enum status st;

	if (!yaml)
		return GACC_OK;
	st = spec_parse(yaml, strlen(yaml), "spec_yaml", &job->create, why, sizeof(why));
	if (st)
		return failure_set(f, st, NULL, "%s", why);
	if (!*name && *job->create->name)
		*name = job->create->name;
	return GACC_OK;
}

/* Fills in the job and rank of this process. */
static gacc_status job_identify(struct gacc_job *job, const gacc_attach_opts *o, struct failure *f)
{
	struct identity id;
	const char *name;
	char why[256];
	gacc_status st;

	if (identity_find(o->job, o->rank, o->world_size, env_process, NULL, &id, why, sizeof(why)))
		return failure_set(f, ST_INVALID_ARGUMENT, NULL, "%s", why);
	name = o->spec_yaml && !(o->job && *o->job) ? NULL : id.job;
	st = read_spec(job, o->spec_yaml, &name, f);
	if (st)
		return st;
	if (!name)
		return failure_set(f, ST_INVALID_ARGUMENT, "set GACC_JOB_ID, or start with \"gaccctl run\"",
				   "no job given");
	job->name = strdup(name);
	if (!job->name)
		return failure_set(f, ST_NO_MEMORY, NULL, "out of memory");
	job->rank = id.rank;
	job->world = id.world;
	if (job->create && job->create->ranks == 1) /* the default; the daemon compares any other number */
		job->create->ranks = (uint32_t)id.world;
	job->rank_source = id.source;
	return GACC_OK;
}

static gacc_status job_start(struct gacc_job *job, struct failure *f)
{
	uint8_t nonce[NONCE_BYTES];
	char what[128];
	gacc_status st;

	if (session_nonce(nonce))
		return failure_set(f, ST_INTERNAL, NULL, "no random numbers");
	snprintf(what, sizeof(what), "attach to job \"%.64s\" as rank %d of %d", job->name, job->rank, job->world);
	st = session_run(job, what, job->timeout_ms, session_attach, nonce);
	if (!st && watcher_new(job, &job->watcher))
		st = failure_set(&job->failure, ST_NO_MEMORY, NULL, "no memory or no thread for events");
	*f = job->failure;
	return st;
}

gacc_status gacc_attach(gacc_client *client, const gacc_attach_opts *opts, gacc_job **out)
{
	struct failure f = { 0 };
	gacc_attach_opts o;
	struct gacc_job *job;
	gacc_status st;

	if (!client || !out || client->pid != getpid())
		return GACC_EINVAL;
	job = calloc(1, sizeof(*job));
	if (!job)
		return GACC_ENOMEM;
	job->client = client;
	job->memory.socket = -1;
	job->held_slot = -1;
	st = read_opts(opts, &o, &f);
	if (!st)
		st = job_identify(job, &o, &f);
	job->wants_memory = !o.no_shared_memory;
	job->timeout_ms = o.timeout_ms;
	job->outage_ms = o.outage_ms;
	if (!st)
		st = job_start(job, &f);
	if (st) {
		gacc_detach(job, 0);
		return client_fail(client, &f);
	}
	*out = job;
	return GACC_OK;
}

/* ---- detach ---- */

static void say_goodbye(struct gacc_job *job, int done)
{
	Gacc__V1__DetachRequest request = GACC__V1__DETACH_REQUEST__INIT;
	struct unary call = { .method = "Detach", .request = &request.base };

	request.session = job->session;
	request.done = done != 0;
	request.device_is_quiet = job->memory.device && (!job->memory.cuda || memory_unpin(&job->memory));
	if (!session_run(job, "detach", DETACH_TIMEOUT_MS, session_unary, &call))
		bytes_free(call.reply);
}

static void job_free(struct gacc_job *job)
{
	sender_free(job->sender);
	while (job->posted.n)
		posted_drop(&job->posted);
	watcher_free(job->watcher);
	memory_unmap(&job->memory);
	window_fini(&job->window);
	free(job->kept_as.present);
	free(job->layout.tensors);
	free(job->session);
	free(job->attach_socket);
	free(job->name);
	spec_free(job->create);
	free(job);
}

void gacc_detach(gacc_job *job, int done)
{
	if (!job || job->client->pid != getpid())
		return;
	job->outage_ms = DETACH_TIMEOUT_MS;
	job->settle_by = now_ms() + DETACH_TIMEOUT_MS;
	__atomic_store_n(&job->ready_by, job->settle_by, __ATOMIC_RELAXED);
	if (job->session && !job->fenced) {
		async_settle(job);
		memset(job->memory.late, 0, sizeof(job->memory.late)); /* no push needs the slots any more */
		say_goodbye(job, done);
	}
	job_free(job);
}

/* ---- what a job knows ---- */

uint64_t gacc_job_id(const gacc_job *job)
{
	return job->id;
}

int gacc_rank(const gacc_job *job)
{
	return job->rank;
}

int gacc_size(const gacc_job *job)
{
	return job->world;
}

const char *gacc_rank_source(const gacc_job *job)
{
	return job->rank_source;
}

const char *gacc_last_error(const gacc_job *job)
{
	return job->failure.text;
}

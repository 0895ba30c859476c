/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a session: attach as a rank, recover after gaccd was restarted, detach. Only the job's thread may
 * replace a session. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "lib/env.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"
#include "proto/version.h"
#include "lib/spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SETUP_TIMEOUT_MS 60000
#define OUTAGE_MS 600000
#define DETACH_TIMEOUT_MS 5000

/* ---- attach ---- */

static Gacc__V1__Session *session_new(void)
{
	Gacc__V1__Session *s = malloc(sizeof(*s) + TOKEN_BYTES);

	if (!s)
		return NULL;
	gacc__v1__session__init(s);
	s->token.data = (uint8_t *)(s + 1);
	return s;
}

static enum status adopt(struct gacc_job *job, const Gacc__V1__AttachResponse *r, struct rpc_failure *f)
{
	char *path;

	if (!r->session || r->session->token.len > TOKEN_BYTES || r->protocol != PROTOCOL_VERSION) {
		snprintf(f->message, sizeof(f->message), "answer without a session of protocol %d", PROTOCOL_VERSION);
		return f->status = ST_MALFORMED;
	}
	path = strdup(r->attach_socket);
	if (!job->session)
		job->session = session_new();
	if (!job->session || !path) {
		free(path);
		return f->status = ST_NO_MEMORY;
	}
	free(job->attach_socket);
	job->attach_socket = path;
	/* in place: requests that are repeated over a recovery point here */
	job->session->id = r->session->id;
	job->session->token.len = r->session->token.len;
	memcpy(job->session->token.data, r->session->token.data, r->session->token.len);
	job->id = r->job_id;
	job->generation = r->generation;
	job->client_optimizer = r->spec && r->spec->optimizer &&
				r->spec->optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT;
	return ST_OK;
}

/* One Attach; `nonce` makes its repetition the same session. */
static enum status attach_once(struct gacc_job *job, void *nonce, int64_t timeout_ms, struct rpc_failure *f)
{
	Gacc__V1__AttachRequest request = GACC__V1__ATTACH_REQUEST__INIT;
	struct ProtobufCMessage *reply;
	enum status st;

	request.job = job->name;
	request.rank = (uint32_t)job->rank;
	request.world_size = (uint32_t)job->world;
	request.pid = getpid();
	request.client_version = (char *)(uintptr_t)gacc_version();
	request.protocol_min = PROTOCOL_VERSION;
	request.protocol_max = PROTOCOL_VERSION;
	request.nonce.data = nonce;
	request.nonce.len = NONCE_BYTES;
	request.create_if_missing = job->create;
	request.wants_shared_memory = job->wants_memory;
	request.resume_generation = job->generation;
	st = FAILPOINT_ERROR(client_attach_before);
	if (!st)
		st = rpc_channel_call(job->client->channel, &gacc__v1__gradient_service__descriptor, "Attach",
				      &request.base, timeout_ms, &reply, f);
	if (st)
		return st;
	st = FAILPOINT_ERROR(client_attach_answered);
	if (!st)
		st = adopt(job, (Gacc__V1__AttachResponse *)reply, f);
	bytes_free(reply);
	return st;
}

static enum status new_nonce(uint8_t nonce[NONCE_BYTES])
{
	return getrandom(nonce, NONCE_BYTES, 0) == NONCE_BYTES ? ST_OK : ST_INTERNAL;
}

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

	if (new_nonce(nonce))
		return failure_set(f, ST_INTERNAL, NULL, "no random numbers");
	snprintf(what, sizeof(what), "attach to job \"%.64s\" as rank %d of %d", job->name, job->rank, job->world);
	st = session_run(job, what, job->timeout_ms, attach_once, nonce);
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

/* ---- recover ---- */

static enum status same_layout(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *f)
{
	Gacc__V1__RegisterTensorsRequest request = GACC__V1__REGISTER_TENSORS_REQUEST__INIT;
	struct unary call = { .method = "RegisterTensors", .request = &request.base };
	const Gacc__V1__RegisterTensorsResponse *r;
	enum status st;

	request.session = job->session;
	request.layout_limit = 1; /* the fingerprint speaks for the rest */
	st = session_unary(job, &call, timeout_ms, f);
	if (st)
		return st;
	r = (Gacc__V1__RegisterTensorsResponse *)call.reply;
	if (r->fingerprint != job->layout.fingerprint || r->slot_bytes != job->layout.slot_bytes ||
	    r->param_bytes != job->layout.param_bytes || r->slots != job->layout.slots) {
		snprintf(f->message, sizeof(f->message), "the job's memory has another layout than before");
		st = ST_LAYOUT_MISMATCH;
	}
	bytes_free(call.reply);
	return st;
}

static enum status ask_position(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *f)
{
	Gacc__V1__WaitReadyRequest request = GACC__V1__WAIT_READY_REQUEST__INIT;
	struct unary call = { .method = "WaitReady", .request = &request.base, .wire_timeout_ms = &request.timeout_ms };
	enum status st;

	request.session = job->session;
	st = session_unary(job, &call, timeout_ms, f);
	if (st)
		return st;
	st = position_adopt(job, (Gacc__V1__WaitReadyResponse *)call.reply);
	bytes_free(call.reply);
	return st;
}

enum status session_recover(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *f)
{
	uint8_t nonce[NONCE_BYTES];
	enum status st = new_nonce(nonce);

	job->lost = true; /* until all of it has come back */
	if (!st)
		st = attach_once(job, nonce, timeout_ms, f);
	if (!st && job->watcher)
		watcher_rebind(job->watcher, job->session);
	if (!st && job->registered) {
		st = same_layout(job, timeout_ms, f);
		if (!st && job->wants_memory && !job->memory.inlined)
			st = memory_map(&job->memory, job, f);
		if (!st && job->running)
			st = ask_position(job, timeout_ms, f);
	}
	if (!st)
		job->lost = false;
	return st;
}

/* ---- detach ---- */

static void say_goodbye(struct gacc_job *job, int done)
{
	Gacc__V1__DetachRequest request = GACC__V1__DETACH_REQUEST__INIT;
	struct unary call = { .method = "Detach", .request = &request.base };

	request.session = job->session;
	request.done = done != 0;
	if (!session_run(job, "detach", DETACH_TIMEOUT_MS, session_unary, &call))
		bytes_free(call.reply);
}

static void job_free(struct gacc_job *job)
{
	sender_free(job->sender);
	watcher_free(job->watcher);
	memory_fini(&job->memory);
	window_fini(&job->window);
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
	if (job->session && !job->fenced) {
		sender_settle(job);
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

size_t gacc_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].slot_offset : 0;
}

size_t gacc_param_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].param_offset : 0;
}

size_t gacc_reduced_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].reduced_offset : 0;
}

gacc_dtype gacc_grad_dtype(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].grad_dtype : GACC_F32;
}

gacc_dtype gacc_reduced_dtype(const gacc_job *job)
{
	return job->layout.accum_dtype;
}

int gacc_params_needed(const gacc_job *job)
{
	return job->layout.params_needed;
}

const char *gacc_last_error(const gacc_job *job)
{
	return job->failure.text;
}

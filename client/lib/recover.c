/* SPDX-License-Identifier: Apache-2.0 */
/* Gets a session for this rank, and after a restart of gaccd another one with all that the old one had: the memory at
 * the same addresses, its place in the window, its events. For gacc_attach and session_run. Only the job's thread may
 * replace a session. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"
#include "proto/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- a session ---- */

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
	job->on_device = r->spec && r->spec->slots_on == GACC__V1__SLOTS_ON__SLOTS_ON_DEVICE;
	job->client_optimizer = r->spec && r->spec->optimizer &&
				r->spec->optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT;
	return ST_OK;
}

enum status session_attach(struct gacc_job *job, void *nonce, int64_t timeout_ms, struct rpc_failure *f)
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

enum status session_nonce(uint8_t nonce[NONCE_BYTES])
{
	return getrandom(nonce, NONCE_BYTES, 0) == NONCE_BYTES ? ST_OK : ST_INTERNAL;
}

/* ---- another one ---- */

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

enum status position_adopt(struct gacc_job *job, const Gacc__V1__WaitReadyResponse *r)
{
	uint32_t queued[2 * SLOTS_MAX];
	size_t n_queued = sender_queued(job->sender, queued);

	n_queued += posted_queued(&job->posted, queued + n_queued);
	if (job->running && r->window < job->window.number)
		return ST_STALE_EPOCH;
	if (job->running && r->window > job->window.number) {
		/* it closed while we were away: what is left is its outcome, which gacc_wait asks for */
		window_give_up(&job->window);
		return ST_OK;
	}
	return window_resume(&job->window, r->window, r->applied_step, r->micro_size, r->loss_scale, r->missing,
			     r->n_missing, queued, n_queued);
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

/* An Attach without an answer may have been taken, and its session would fence another Attach with the old generation:
 * it is repeated until it is answered. */
static enum status attach_again(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *f)
{
	enum status st = job->recovers ? ST_OK : session_nonce(job->nonce);

	if (!st) {
		job->recovers = true;
		st = session_attach(job, job->nonce, timeout_ms, f);
	}
	if (!st)
		job->recovers = false;
	return st;
}

enum status session_recover(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *f)
{
	enum status st;

	job->lost = true;	  /* until all of it has come back */
	sender_hold(job->sender); /* gacc_done does not wait for pushes */
	st = attach_again(job, timeout_ms, f);
	if (!st && job->watcher)
		watcher_rebind(job->watcher, job->session);
	if (!st && job->registered) {
		st = same_layout(job, timeout_ms, f);
		if (!st && job->wants_memory && !job->memory.inlined && (!job->on_device || job->memory.device))
			st = memory_map(&job->memory, job, f);
		if (!st && job->running)
			st = ask_position(job, timeout_ms, f);
	}
	if (!st)
		job->lost = false;
	sender_let_go(job->sender);
	return st;
}

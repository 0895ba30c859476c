/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's commands CHECKPOINT and RESTORE: begins a snapshot, answers when its files are complete, and loads a
 * checkpoint into the memory of a new job. For engine.c; the engine's main thread. */
#include "engine/process.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The path behind a command: the rest of its tail. */
static bool take_path(char *out, size_t n_out, const unsigned char *tail, size_t n)
{
	if (n == 0 || n >= n_out || memchr(tail, '\0', n))
		return false;
	memcpy(out, tail, n);
	out[n] = '\0';
	return true;
}

/* All parts have the parameters: the first one saves them. Each group has the state of the optimizer: the first one
 * saves it, each part its shard. */
static struct snapshot_what what(const struct engine *e, const struct engine_command *c)
{
	const struct plan *p = e->mem.plan;
	return (struct snapshot_what){ .model = !c->own_only,
				       .state = plan_is_sharded(p) ? p->part < p->n_shards : !c->own_only,
				       .window = c->inside_window };
}

void saving_begin(struct engine *e, const struct engine_command *c, const unsigned char *tail)
{
	const struct control_record *r = &e->state.r;
	char path[4096], why[sizeof(e->saved.text)] = "";
	enum status st = ST_INVALID_ARGUMENT;
	if (!take_path(path, sizeof(path), tail, c->n_present))
		snprintf(why, sizeof(why), "no path");
	else if (c->inside_window && e->mem.plan->in_slot)
		snprintf(why, sizeof(why), "the job has no accumulator that could be saved");
	else if (!r->params_ready || r->phase == WINDOW_APPLYING)
		st = ST_NOT_READY;
	else if (r->params_nonfinite) {
		st = ST_NONFINITE;
		snprintf(why, sizeof(why), "the parameters are not finite");
	} else
		st = snapshot_begin(e->snapshot, &e->state, path, what(e, c), why, sizeof(why));
	if (st) {
		engine_reply(e, c, st, why);
		return;
	}
	e->saved = engine_answer_to(e, c, ST_OK);
	e->saved.applied_step = r->applied_step;
	e->saved.loss_scale = r->loss_scale;
	e->saved.micro_size = r->micro_size;
	e->saved.digest = r->params_digest;
}

void saving_end(struct engine *e)
{
	enum status st = snapshot_end(e->snapshot, e->saved.file, &e->saved.dir, e->saved.text, sizeof(e->saved.text));
	if (st == ST_NOT_READY)
		return;
	if (!st && e->saved.window == e->state.r.window) /* else the vote has looked after all was read */
		st = verify_params(e, e->saved.text, sizeof(e->saved.text));
	e->saved.status = st;
	FAILPOINT(engine_save_answer_before);
	engine_send(e, &e->saved);
}

/* A digest numbers chunks by the update's ranges, which follow param_groups: under other groups the same parameters
 * have another one. Their file's SHA-256 has been compared by then. */
static enum status check_digest(const struct engine_restore *r, uint64_t is, char *why, size_t n_why)
{
	if (!r->same_ranges || is == r->params_digest)
		return ST_OK;
	snprintf(why, n_why, "the parameters' digest is %016" PRIx64 ", the manifest says %016" PRIx64, is,
		 r->params_digest);
	return ST_CHECKSUM;
}

void saving_restore(struct engine *e, const struct engine_command *c, const unsigned char *tail)
{
	struct engine_restore r;
	struct arith_params params;
	char path[4096], why[sizeof(((struct engine_answer *)0)->text)] = "";
	if (e->state.r.params_ready) { /* sent again after it was done */
		engine_reply(e, c, ST_OK, NULL);
		return;
	}
	if (step_is_being_filled(e, c))
		return;
	if (c->n_present <= sizeof(r) || !take_path(path, sizeof(path), tail + sizeof(r), c->n_present - sizeof(r))) {
		engine_reply(e, c, ST_INVALID_ARGUMENT, "no path");
		return;
	}
	memcpy(&r, tail, sizeof(r));
	enum status st = snapshot_restore(&e->mem, e->arith, &r, path, &e->state, why, sizeof(why));
	accum_restart(&e->accum);
	if (!st) {
		arith_need("looking at the parameters", e->arith->ops->inspect_params(e->arith, &params));
		st = check_digest(&r, params.digest, why, sizeof(why));
	}
	if (!st) {
		FAILPOINT(engine_load_done);
		st = step_params_ready(e, &params, why, sizeof(why));
	}
	if (!st) {
		engine_show_status(e);
		engine_show_ranks(e);
		window_disarm(e, ST_CANCELLED);
		log_job(e->mem.plan->job_id, LOG_INFO, "Restored",
			"window %" PRIu64 ", applied step %" PRIu64 ", from %s", r.window, r.applied_step, path);
	}
	engine_reply(e, c, st, st && !why[0] ? status_info(st)->text : why);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Notices that something other than the job has written to the parameters: verify_params, of jobs whose trainers hold
 * the GPU's memory of them, which nothing keeps them from writing to. For step.c and saving.c; the engine's main
 * thread.
 *
 * What trainers see after each step is known by its digest. It is looked at before a vote, so before the next step
 * reads it, and when a checkpoint has been read. Not noticed is what is written between the vote and the end of its
 * step. */
#include "engine/process.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t look(struct engine *e)
{
	uint64_t digest = 0;
	arith_need("looking at the parameters", e->arith->ops->digest_seen(e->arith, &digest));
	return digest;
}

void verify_note(struct engine *e)
{
	const struct plan *p = e->mem.plan;
	struct control_record *r = &e->state.r;
	if (p->verify_params) /* without masters what counts is what trainers see */
		r->seen_digest = plan_role_bytes(p, SEG_MASTER) ? look(e) : r->params_digest;
}

enum status verify_params(struct engine *e, char *why, size_t n_why)
{
	struct control_record *r = &e->state.r;
	if (!e->mem.plan->verify_params || !r->params_ready)
		return ST_OK;
	const uint64_t is = r->params_altered ? r->seen_digest : look(e);
	if (!r->params_altered && is == r->seen_digest)
		return ST_OK;
	if (!r->params_altered) {
		log_line(LOG_ERROR, (struct log_fields){ e->mem.plan->job_id, -1, r->window, "ParamsAltered" },
			 "the parameters have the digest %016" PRIx64 ", and step %" PRIu64 " has left %016" PRIx64, is,
			 r->applied_step, r->seen_digest);
		r->params_altered = 1; /* also if the old values come back: trainers have computed with others */
		engine_publish(e);
	}
	snprintf(why, n_why,
		 "the parameters are not what step %" PRIu64 " has left: something else than the job has written to "
		 "them (verify_params)",
		 r->applied_step);
	return ST_PARAMS_ALTERED;
}

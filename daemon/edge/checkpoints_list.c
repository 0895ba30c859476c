/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a job's checkpoints, and the calls that wait for one of them. For checkpoints.c, which makes them, and
 * the checkpoint methods. Loop thread. */
#include "edge/checkpoints_impl.h"

#include "base/array.h"
#include "edge/convert.h"
#include "gacc/v1/job.pb-c.h"

#include <string.h>

/* ---- the list ---- */

const struct saved *saving_of(const struct hosted *h, const uint8_t request_id[16])
{
	for (size_t i = h->saved.n; i-- > 0;)
		if (!memcmp(h->saved.saved[i].request_id, request_id, 16))
			return &h->saved.saved[i];
	return NULL;
}

const struct saved *saving_page(const struct hosted *h, uint64_t before_id, uint32_t limit, size_t *out_n)
{
	size_t first = saved_page(&h->saved, before_id, limit, out_n);
	return *out_n ? &h->saved.saved[first] : NULL;
}

void saving_set_why(struct hosted *h, const char *why)
{
	struct saving *s = h->saving;
	struct saved *k = s->saver.n_wants ? saved_find(&h->saved, s->saver.want[0].id) : NULL;
	if (k)
		saved_set_text(&k->message, why);
}

bool saving_under_way(const struct hosted *h)
{
	return h->saving->saver.state >= SAVER_WRITING && h->saving->saver.state <= SAVER_RECORDING;
}

/* ---- calls that wait ---- */

static void forget_gone_calls(struct hosted *h)
{
	struct saving *s = h->saving;
	for (size_t i = s->n_calls; i-- > 0;)
		if (!rpc_find(h->d->rpc, s->call[i].call))
			s->call[i] = s->call[--s->n_calls];
}

enum status saving_wait(struct hosted *h, uint64_t call, const uint8_t request_id[16], bool wait)
{
	struct saving *s = h->saving;
	if (s->n_calls >= SAVING_MAX_CALLS)
		forget_gone_calls(h);
	if (s->n_calls >= SAVING_MAX_CALLS)
		return ST_RESOURCE_EXHAUSTED;
	struct saving_call *list = array_grow(s->call, s->n_calls, &s->calls_capacity, sizeof(*list));
	if (!list)
		return ST_NO_MEMORY;
	s->call = list;
	struct saving_call *c = &s->call[s->n_calls++];
	*c = (struct saving_call){ .call = call, .wait = wait };
	memcpy(c->request_id, request_id, sizeof(c->request_id));
	return ST_OK;
}

void saving_answer(struct rpc_call *call, const struct saved *k)
{
	Gacc__V1__SaveCheckpointResponse r = GACC__V1__SAVE_CHECKPOINT_RESPONSE__INIT;
	Gacc__V1__Checkpoint m = GACC__V1__CHECKPOINT__INIT;
	convert_checkpoint(k, &m);
	r.checkpoint = &m;
	rpc_finish(call, &r.base);
}

void saving_answer_calls(struct hosted *h, const struct saved *k, bool over)
{
	struct saving *s = h->saving;
	for (size_t i = s->n_calls; i-- > 0;) {
		struct saving_call c = s->call[i];
		if (memcmp(c.request_id, k->request_id, sizeof(c.request_id)) || (c.wait && !over))
			continue;
		s->call[i] = s->call[--s->n_calls];
		struct rpc_call *call = rpc_find(h->d->rpc, c.call);
		if (call)
			saving_answer(call, k);
	}
}

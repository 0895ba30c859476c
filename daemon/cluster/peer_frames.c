/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts messages between two gaccds into frames, and joins frames to messages. For edge/peer_link.c, on the loop thread;
 * the state is in the caller's structs. */
#include "cluster/peer_frames.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sending ---- */

static uint64_t size_of(const struct link_message *m)
{
	return m->n + (m->end ? m->end->n : 0);
}

enum status peer_frames_begin(struct peer_frames *f, const struct link_message *m, char *why, size_t n_why)
{
	assert(m->kind < LINK_KINDS && m->job && size_of(m));
	if (size_of(m) > peer_most(m->kind)) {
		snprintf(why, n_why, "a message of kind %d has %" PRIu64 " bytes, and may have %" PRIu64, (int)m->kind,
			 size_of(m), peer_most(m->kind));
		return ST_RESOURCE_EXHAUSTED;
	}
	*f = (struct peer_frames){ .message = *m };
	return ST_OK;
}

/* A frame ends where the message's end begins: so its bytes are in one place, and nothing is copied. */
bool peer_frames_next(const struct peer_frames *f, struct peer_carried *out)
{
	const struct link_message *m = &f->message;
	const bool is_end = f->n_sent >= m->n;
	const uint64_t total = size_of(m), left = (is_end ? total : m->n) - f->n_sent;
	assert(f->n_sent <= total);
	if (f->n_sent == total)
		return false;
	*out = (struct peer_carried){ .kind = m->kind, .job = m->job, .part = m->part };
	out->bytes =
		is_end ? (const uint8_t *)m->end->data + (f->n_sent - m->n) : (const uint8_t *)m->bytes + f->n_sent;
	out->n = left < PEER_FRAME ? (size_t)left : PEER_FRAME;
	out->rest = total - f->n_sent - out->n;
	return true;
}

void peer_frames_sent(struct peer_frames *f, const struct peer_carried *c)
{
	f->n_sent += c->n;
	assert(f->n_sent + c->rest == size_of(&f->message));
}

/* ---- receiving ---- */

/* Whether the frame goes on with the message that is half there. */
static enum status check_next(const struct peer_carried *before, const struct peer_carried *c, char *why, size_t n_why)
{
	if (c->kind != before->kind)
		snprintf(why, n_why, "Carried.kind is %d in the middle of a message of kind %d", (int)c->kind,
			 (int)before->kind);
	else if (c->job != before->job)
		snprintf(why, n_why, "Carried.job_id is %" PRIu64 " in the middle of a message about job %" PRIu64,
			 c->job, before->job);
	else if (c->part != before->part)
		snprintf(why, n_why, "Carried.part is %u in the middle of a message about part %u", c->part,
			 before->part);
	else if (c->n > before->rest || c->rest != before->rest - c->n)
		snprintf(why, n_why,
			 "Carried.rest is %" PRIu64 " after %zu bytes, where %" PRIu64 " were to come in all", c->rest,
			 c->n, before->rest);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static bool append(struct peer_assembly *a, const struct peer_carried *c)
{
	const uint64_t total = a->n + c->n + c->rest;
	if (a->room - a->n < c->n) {
		uint64_t room = 2 * (a->n + c->n);
		room = room < total ? room : total;
		uint8_t *more = realloc(a->bytes, room);
		if (!more)
			return false;
		a->bytes = more;
		a->room = room;
	}
	memcpy(a->bytes + a->n, c->bytes, c->n);
	a->n += c->n;
	return true;
}

enum status peer_assembly_take(struct peer_assembly *a, const struct peer_carried *c, struct link_message *out,
			       bool *whole, char *why, size_t n_why)
{
	assert(c->kind < LINK_KINDS && c->n && c->n <= PEER_FRAME && c->n + c->rest <= peer_most(c->kind));
	*whole = false;
	if (a->whole)
		peer_assembly_clear(a);
	enum status st = a->n ? check_next(&a->newest, c, why, n_why) : ST_OK;
	if (st)
		return st;
	const bool alone = !a->n && !c->rest; /* most are: no copy */
	if (!alone && !append(a, c))
		return ST_NO_MEMORY;
	a->newest = *c;
	a->newest.bytes = NULL;
	*whole = a->whole = !c->rest;
	if (*whole)
		*out = (struct link_message){ .kind = c->kind,
					      .job = c->job,
					      .part = c->part,
					      .bytes = alone ? c->bytes : a->bytes,
					      .n = alone ? c->n : a->n };
	return ST_OK;
}

void peer_assembly_clear(struct peer_assembly *a)
{
	free(a->bytes);
	*a = (struct peer_assembly){ 0 };
}

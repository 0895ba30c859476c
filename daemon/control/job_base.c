/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of struct job stand on: ranks by their number, parked calls, errors, past windows, commands to the
 * engine. Pure; loop thread. */
#include "control/job_impl.h"

#include "base/array.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct rank *job_rank(const struct job *j, uint32_t global)
{
	uint32_t i = part_local(&j->part, global);
	return i == PART_NO_RANK ? NULL : &j->rank[i];
}

uint32_t job_micro_size(const struct job *j)
{
	return j->engine_seen ? j->mirror.r.micro_size : j->spec->micro_size;
}

uint32_t job_reduced_half(const struct job *j)
{
	return 1 - j->mirror.r.x;
}

/* ---- calls ---- */

void reply_error(struct job *j, uint64_t call, enum status st, const char *hint, const char *fmt, ...)
{
	struct reply r = { .status = st };
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(r.text, sizeof(r.text), fmt, ap);
	va_end(ap);
	snprintf(r.hint, sizeof(r.hint), "%s", hint ? hint : "");
	j->ports.reply(j->ports.ctx, call, &r);
}

struct waiter *waiter_add(struct job *j, uint64_t call, enum waiter_kind kind, uint32_t rank)
{
	struct waiter *w = array_grow(j->waiter, j->n_waiters, &j->waiters_capacity, sizeof(*w));
	if (!w) {
		reply_error(j, call, ST_NO_MEMORY, "repeat the call later", "no memory to park this call");
		return NULL;
	}
	j->waiter = w;
	w = &j->waiter[j->n_waiters++];
	*w = (struct waiter){ .call = call, .kind = kind, .rank = rank };
	j->rank[rank].n_puts += kind == WAIT_PUT;
	return w;
}

void waiter_remove(struct job *j, struct waiter *w)
{
	j->rank[w->rank].n_puts -= w->kind == WAIT_PUT;
	j->rank[w->rank].n_last_puts -= w->last;
	*w = j->waiter[--j->n_waiters];
}

void job_on_call_gone(struct job *j, uint64_t call, uint32_t rank)
{
	for (uint32_t i = j->n_waiters; i-- > 0;)
		if (j->waiter[i].call == call && !j->waiter[i].sent)
			waiter_remove(j, &j->waiter[i]);
	struct rank *r = job_rank(j, rank);
	for (int i = 0; i < RANK_MAX_PUSHES && r; i++)
		r->push[i].gone |= r->push[i].used && r->push[i].call == call;
}

/* ---- windows that are over ---- */

const struct past_window *past_find(const struct job *j, uint64_t window)
{
	for (uint32_t i = 0; i < j->n_past; i++)
		if (j->past[i].commit.window == window)
			return &j->past[i];
	return NULL;
}

bool past_is_due(const struct job *j, uint64_t window)
{
	return j->windows_due && window < j->mirror.r.window && !past_find(j, window);
}

void reply_past_due(struct job *j, uint64_t call, uint64_t window)
{
	reply_error(j, call, ST_ENGINE_DOWN, "repeat the call",
		    "gaccd has started again, and its coordinator has not told it yet what became of window %llu",
		    (unsigned long long)window);
}

bool past_final(const struct job *j)
{
	const struct past_window *p = j->mirror.r.window ? past_find(j, j->mirror.r.window - 1) : NULL;
	return p && p->commit.final;
}

void past_add(struct job *j, const struct commit *k, const uint64_t *counted)
{
	struct past_window *p;
	if (j->n_past == JOB_HISTORY) {
		uint64_t *reuse = j->past[0].counted;
		memmove(&j->past[0], &j->past[1], (JOB_HISTORY - 1) * sizeof(j->past[0]));
		p = &j->past[JOB_HISTORY - 1];
		p->counted = reuse;
	} else {
		p = &j->past[j->n_past++];
	}
	p->commit = *k;
	memcpy(p->counted, counted, j->mirror.n_words * sizeof(*counted));
}

uint32_t rank_counted_in(const struct job *j, const struct rank *r, uint64_t window)
{
	const struct past_window *p = past_find(j, window);
	uint32_t n = 0, size = j->spec->max_micro_size;
	if (window == j->mirror.r.window)
		return j->mirror.rank[r->index].counted;
	for (uint32_t m = 0; p && m < size; m++)
		n += control_bit(p->counted, size, r->index, m);
	return n;
}

/* ---- the engine ---- */

bool job_send(struct job *j, struct engine_command *c, uint64_t *out_id, const void *present)
{
	c->id = ++j->next_command;
	c->job_id = j->id;
	if (!j->ports.engine_send(j->ports.ctx, j->id, c, present))
		return false;
	*out_id = c->id;
	return true;
}

/* ---- whose parameters count ---- */

static bool gives(const struct job *j, struct rank *r)
{
	for (uint32_t i = 0; i < RANK_MAX_SLOTS; i++) {
		const struct stream *s = &r->stream[i];
		if (s->state && s->is_put && s->came.n)
			return true;
	}
	return r->n_puts || (r->given.n && !r->lost && !r->detached);
}

struct rank *puts_giver(const struct job *j)
{
	return j->giver && gives(j, j->giver) ? j->giver : NULL;
}

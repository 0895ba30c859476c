/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of comm_engines.h. An operation is over when all members of a communicator are in it, or fails when one
 * of them is gone. */
#include "comm_engines.h"

#include <check.h>
#include <stdio.h>

static struct engine_answer to(const struct engine_command *c, enum status st, uint64_t suspects)
{
	struct engine_answer a = { .op = c->op, .id = c->id, .window = c->window, .attempt = c->attempt };
	a.status = st;
	a.comm = c->comm;
	a.suspects = suspects;
	if (st)
		snprintf(a.text, sizeof(a.text), "as the test has it");
	return a;
}

static void answer(uint32_t i, const struct engine_command *c, enum status st, uint64_t suspects)
{
	const struct control_record *r = &engine[i].record.r;
	struct engine_answer a = to(c, st, suspects);
	a.result = r->phase;
	a.digest = c->op == ENGINE_FILL || c->op == ENGINE_COMMIT ? r->params_digest : 77;
	if (c->op == ENGINE_COMMIT)
		a.window = r->window;
	job_on_answer(job[i], &a, now);
}

static void say(uint32_t i, uint32_t news, enum status st, uint64_t suspects)
{
	struct engine_answer a = { .op = ENGINE_PROGRESS, .result = PROGRESS_COMM, .comm = engine[i].k, .news = news };
	a.status = st;
	a.suspects = suspects;
	job_on_answer(job[i], &a, now);
}

static bool same_comm(const struct engine *a, const struct engine *b)
{
	return a->up && b->up && a->k && a->k == b->k && a->term == b->term;
}

/* All members are there, each the life that this one knows. */
static bool is_whole(const struct engine *e, enum membership_of is)
{
	for (uint32_t i = 0; i < D; i++)
		if (!same_comm(e, &engine[i]) || engine[i].is != is || e->given[i] != engine[i].life)
			return false;
	return true;
}

static void break_member(uint32_t i, enum status st, uint64_t suspects)
{
	struct engine *e = &engine[i];
	const bool go = e->has_go, fill = e->has_fill, joining = e->is == JOINING;
	e->is = BROKEN;
	e->has_go = e->has_fill = false;
	if (joining)
		say(i, COMM_LOST, st, suspects);
	if (go)
		answer(i, &e->go, st, suspects);
	if (fill)
		answer(i, &e->fill, st, suspects);
}

/* Those who wait for it in an operation notice at once; others with their next. */
void engine_broken(uint32_t i)
{
	for (uint32_t o = 0; o < D; o++)
		if (o != i && engine[o].up && engine[o].k == engine[i].k && engine[o].term == engine[i].term &&
		    engine[o].is == IN && (engine[o].has_go || engine[o].has_fill))
			break_member(o, ST_UNAVAILABLE, UINT64_C(1) << i);
}

static void try_join(const struct engine *e)
{
	if (!is_whole(e, JOINING))
		return;
	for (uint32_t i = 0; i < D; i++)
		engine[i].is = IN;
	for (uint32_t i = 0; i < D; i++)
		say(i, COMM_JOINED, ST_OK, 0);
}

static void try_go(const struct engine *e)
{
	struct engine_command go[D];
	if (!is_whole(e, IN))
		return;
	for (uint32_t i = 0; i < D; i++)
		if (!engine[i].has_go || engine[i].go.attempt != e->go.attempt || engine[i].go.window != e->go.window)
			return;
	for (uint32_t i = 0; i < D; i++) {
		struct control_record *r = &engine[i].record.r;
		go[i] = engine[i].go;
		engine[i].has_go = false;
		r->phase = WINDOW_PREPARED;
		r->prepared_term = go[i].term;
		r->prepared_attempt = go[i].attempt;
		r->prepared_digest = 77;
	}
	for (uint32_t i = 0; i < D; i++)
		answer(i, &go[i], ST_OK, 0);
}

static void try_fill(const struct engine *e)
{
	if (!is_whole(e, IN))
		return;
	const struct control_record *root = &engine[e->fill.slot].record.r;
	ck_assert(root->params_ready);
	for (uint32_t i = 0; i < D; i++)
		if (!engine[i].has_fill || engine[i].fill.slot != e->fill.slot)
			return;
	for (uint32_t i = 0; i < D; i++) {
		engine[i].has_fill = false;
		engine[i].record.r.params_ready = 1;
		engine[i].record.r.params_digest = root->params_digest;
	}
	for (uint32_t i = 0; i < D; i++)
		answer(i, &engine[i].fill, ST_OK, 0);
}

static void take_join(uint32_t i, const struct engine_command *c)
{
	struct engine *e = &engine[i];
	char text[24];
	ck_assert_msg(c->term > e->term || (c->term == e->term && c->comm > e->k), "JOIN of an older one");
	break_member(i, ST_CANCELLED, 0);
	engine_broken(i);
	e->term = c->term;
	e->k = c->comm;
	e->is = OFFERED;
	e->n_given = 0;
	struct engine_answer a = to(c, ST_OK, 0);
	a.n_tail = (uint32_t)snprintf(text, sizeof(text), "%u of %llu", i, (unsigned long long)e->life);
	job_on_joining(job[i], &a, text, now);
}

static void take_address(uint32_t i, const struct engine_command *c)
{
	struct engine *e = &engine[i];
	if (e->is != OFFERED || c->comm != e->k || c->term != e->term) {
		answer(i, c, ST_STALE_ATTEMPT, 0);
		return;
	}
	ck_assert(c->slot == e->n_given && (c->slot != i || c->part_life == e->life));
	e->given[e->n_given++] = c->part_life;
	answer(i, c, ST_OK, 0);
	if (e->n_given < D)
		return;
	e->is = JOINING;
	e->since_ns = now.mono_ns;
	try_join(e);
}

static void take_go(uint32_t i, const struct engine_command *c)
{
	struct engine *e = &engine[i];
	struct control_record *r = &e->record.r;
	if (c->window != r->window) {
		answer(i, c, ST_WINDOW_CLOSED, 0);
	} else if (r->phase == WINDOW_PREPARED && r->prepared_term == c->term && r->prepared_attempt == c->attempt) {
		answer(i, c, ST_OK, 0);
	} else if (c->comm != e->k || c->term != e->term || e->is == BROKEN || e->is == OUT) {
		answer(i, c, ST_UNAVAILABLE, 0);
	} else {
		r->phase = WINDOW_CLOSED;
		r->prepared_term = r->prepared_attempt = 0;
		e->go = *c;
		e->has_go = true;
		e->since_ns = now.mono_ns;
		if (e->is == IN && !is_whole(e, IN))
			break_member(i, ST_UNAVAILABLE, 0);
		else
			try_go(e);
	}
}

static void take_fill(uint32_t i, const struct engine_command *c)
{
	struct engine *e = &engine[i];
	if (c->comm != e->k || c->term != e->term || e->is == BROKEN || e->is == OUT) {
		answer(i, c, ST_UNAVAILABLE, 0);
		return;
	}
	e->fill = *c;
	e->has_fill = true;
	e->since_ns = now.mono_ns;
	if (c->slot != i)
		e->record.r.params_ready = 0;
	if (e->is == IN && !is_whole(e, IN))
		break_member(i, ST_UNAVAILABLE, 0);
	else
		try_fill(e);
}

/* Only what was prepared in one attempt by all becomes durable. */
static void take_commit(uint32_t i, const struct engine_command *c)
{
	struct control_record *r = &engine[i].record.r;
	if (r->window == c->window) {
		ck_assert_int_eq(r->phase, WINDOW_PREPARED);
		ck_assert(r->prepared_term == c->term && r->prepared_attempt == c->attempt);
		r->window++;
		r->phase = WINDOW_OPEN;
		r->prepared_term = r->prepared_attempt = 0;
		r->params_digest = 1000 + r->window;
	}
	answer(i, c, ST_OK, 0);
}

void engine_take(uint32_t i, const struct engine_command *c)
{
	struct engine *e = &engine[i];
	if (now.mono_ns < e->stopped_ns || e->n_held) { /* in their order */
		ck_assert_uint_lt(e->n_held, 64);
		e->held[e->n_held++] = *c;
		return;
	}
	switch (c->op) {
	case ENGINE_JOIN:
		take_join(i, c);
		break;
	case ENGINE_ADDRESS:
		take_address(i, c);
		break;
	case ENGINE_ABORT:
		if (c->comm == e->k && c->term == e->term) {
			break_member(i, ST_CANCELLED, 0);
			engine_broken(i);
		}
		break;
	case ENGINE_FILL:
		take_fill(i, c);
		break;
	case ENGINE_CLOSE:
		if (c->window == e->record.r.window && e->record.r.phase == WINDOW_OPEN)
			e->record.r.phase = WINDOW_CLOSED;
		answer(i, c, ST_OK, 0);
		break;
	case ENGINE_GO:
		take_go(i, c);
		break;
	case ENGINE_COMMIT:
		take_commit(i, c);
		break;
	default:
		ck_abort_msg("operation %u", c->op);
	}
}

void engine_tick(uint32_t i, int64_t stall_ns)
{
	struct engine *e = &engine[i];
	if (!e->up || now.mono_ns < e->stopped_ns)
		return;
	const uint32_t n = e->n_held;
	e->n_held = 0;
	for (uint32_t k = 0; k < n; k++)
		engine_take(i, &e->held[k]);
	if ((e->is == JOINING || e->has_go || e->has_fill) && now.mono_ns - e->since_ns > stall_ns)
		break_member(i, ST_STALLED, 0);
}

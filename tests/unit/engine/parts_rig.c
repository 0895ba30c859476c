/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several parts, and what goes between them and the board; main thread of a test. */
#include "parts_rig.h"

#include "coll/coll_gloo.h"

#include <string.h>

static struct coll_net *open_gloo(const char *address, struct coll_failure *why)
{
	const struct coll_gloo_config c = { .address = address };
	return coll_gloo_new(&c, why);
}

const struct engine_net parts_net = { open_gloo };

static void note_hello(struct parts *p, uint32_t part, const struct engine_answer *hello)
{
	ck_assert(hello->life && !hello->n_tail);
	for (uint32_t s = 0; s < p->n; s++)
		ck_assert_uint_ne(hello->life, p->life[s]);
	p->life[part] = hello->life;
}

void parts_open(struct parts *p, uint32_t n, const struct rig_config *c)
{
	*p = (struct parts){ .n = n, .id = { .job = RIG_JOB, .epoch = 1, .term = 1 } };
	p->stall_ns = p->join_ns = 60000 * MS;
	p->board = board_new();
	ck_assert_ptr_nonnull(p->board);
	for (uint32_t s = 0; s < n; s++) {
		struct rig_config own = *c;
		own.part = s;
		own.n_parts = n;
		rig_open(&p->rig[s], &own);
	}
}

void parts_start(struct parts *p)
{
	for (uint32_t s = 0; s < p->n; s++)
		parts_new_life(p, s);
}

void parts_close(struct parts *p)
{
	for (uint32_t s = 0; s < p->n; s++)
		rig_close(&p->rig[s]);
	board_free(p->board);
}

void parts_new_life(struct parts *p, uint32_t part)
{
	struct rig *r = &p->rig[part];
	if (r->fd >= 0)
		rig_kill(r);
	r->net = r->net ? r->net : &parts_net;
	r->stall_ns = p->stall_ns;
	r->n_progress = 0;
	struct engine_answer hello = rig_start(r);
	note_hello(p, part, &hello);
}

struct engine_command parts_command(const struct parts *p, enum engine_op op)
{
	return (struct engine_command){ .op = op, .term = p->id.term, .comm = p->id.k, .join_ns = p->join_ns };
}

enum status parts_offer(struct parts *p, uint32_t part)
{
	struct rig *r = &p->rig[part];
	struct engine_answer a = rig_call(r, parts_command(p, ENGINE_JOIN));
	if (a.status) {
		ck_assert(!a.n_tail && a.text[0]);
		return (enum status)a.status;
	}
	ck_assert_uint_eq(a.comm, p->id.k);
	ck_assert_uint_eq(a.life, p->life[part]);
	ck_assert_int_eq(board_open(p->board, &p->id, p->n), ST_OK);
	return board_put(p->board, &p->id, part, a.life, r->tail, a.n_tail);
}

void parts_tell(struct parts *p, uint32_t part)
{
	uint32_t n;
	const struct coll_address *all = board_addresses(p->board, &p->id, &n);
	ck_assert_ptr_nonnull(all);
	for (uint32_t s = 0; s < n; s++) {
		struct engine_command c = parts_command(p, ENGINE_ADDRESS);
		struct engine_answer a;
		c.slot = s;
		c.part_life = all[s].life;
		c.n_present = (uint32_t)all[s].n_blob;
		uint64_t id = rig_send_with(&p->rig[part], c, all[s].blob);
		ck_assert(rig_receive(&p->rig[part], &a));
		ck_assert(a.id == id && a.op == ENGINE_ADDRESS);
		ck_assert_uint_eq(a.status, ST_OK);
	}
}

struct engine_answer parts_news(struct parts *p, uint32_t part)
{
	for (;;) {
		struct engine_answer a = rig_progress(&p->rig[part]);
		ck_assert_uint_eq(a.result, PROGRESS_COMM);
		ck_assert_uint_eq(a.comm, p->id.k);
		if (a.news != COMM_MOVES)
			return a;
		ck_assert_uint_eq(a.status, ST_OK);
	}
}

/* false: a stranger has come to a port. */
static bool join_all(struct parts *p)
{
	bool joined = true;
	for (uint32_t s = 0; s < p->n; s++)
		ck_assert_int_eq(parts_offer(p, s), ST_OK);
	for (uint32_t s = 0; s < p->n; s++)
		parts_tell(p, s);
	for (uint32_t s = 0; s < p->n; s++) {
		struct engine_answer a = parts_news(p, s);
		ck_assert_msg(!a.status || a.status == ST_UNAVAILABLE, "part %u: %u %s", s, a.status, a.text);
		ck_assert_uint_eq(a.news, a.status ? COMM_LOST : COMM_JOINED);
		ck_assert(a.status || a.connected == p->n - 1);
		joined = joined && !a.status;
	}
	return joined;
}

void parts_join(struct parts *p, uint64_t k)
{
	p->id.k = k + p->n_spoiled;
	for (int i = 0; !join_all(p); i++) {
		ck_assert_int_lt(i, 3);
		p->id.k = k + ++p->n_spoiled;
	}
}

/* ---- a window ---- */

void parts_push_all(struct parts *p, uint64_t seed, bool exact)
{
	for (uint32_t s = 0; s < p->n; s++) {
		rig_fill_all(&p->rig[s], seed + s * 17, exact);
		rig_add_all(&p->rig[s], NULL);
	}
}

struct engine_command parts_go_command(const struct parts *p, uint32_t part, uint64_t attempt)
{
	struct engine_command c = parts_command(p, ENGINE_GO);
	c.window = p->rig[part].window;
	c.attempt = attempt;
	c.close = 1;
	c.want_norms = p->norms;
	return c;
}

uint64_t parts_send_go(struct parts *p, uint32_t part, uint64_t attempt)
{
	return rig_send(&p->rig[part], parts_go_command(p, part, attempt));
}

/* The answer to this command, the next that comes. */
struct engine_answer parts_answer_to(struct parts *p, uint32_t part, uint64_t id)
{
	struct engine_answer a;
	ck_assert_msg(rig_receive(&p->rig[part], &a), "engine %u is gone", part);
	ck_assert_uint_eq(a.id, id);
	return a;
}

/* All vote, and all the same. */
struct engine_answer parts_vote_all(struct parts *p, uint64_t attempt)
{
	struct engine_answer first = { 0 };
	uint64_t id[PARTS_MAX];
	for (uint32_t s = 0; s < p->n; s++)
		id[s] = parts_send_go(p, s, attempt);
	for (uint32_t s = 0; s < p->n; s++) {
		struct engine_answer a = parts_answer_to(p, s, id[s]);
		ck_assert_msg(a.status == ST_OK, "part %u: %u %s", s, a.status, a.text);
		if (s == 0)
			first = a;
		ck_assert_uint_eq(a.digest, first.digest);
		ck_assert_uint_eq(a.nonfinite, first.nonfinite);
		ck_assert(a.sumsq == first.sumsq);
	}
	return first;
}

struct engine_command parts_commit_command(const struct parts *p, uint32_t part, uint64_t attempt, uint32_t outcome)
{
	struct engine_command c = rig_commit_command(&p->rig[part], outcome, 0.125, 0.01);
	c.attempt = attempt;
	c.comm_term = p->id.term;
	c.comm = p->id.k;
	return c;
}

void parts_commit_all(struct parts *p, uint64_t attempt, uint32_t outcome)
{
	uint64_t digest = 0, id[PARTS_MAX];
	for (uint32_t s = 0; s < p->n; s++) /* those of a sharded job wait for each other */
		id[s] = rig_send(&p->rig[s], parts_commit_command(p, s, attempt, outcome));
	for (uint32_t s = 0; s < p->n; s++) {
		struct rig *r = &p->rig[s];
		struct engine_answer a = parts_answer_to(p, s, id[s]);
		ck_assert_msg(a.status == ST_OK, "part %u: %u %s", s, a.status, a.text);
		ck_assert(s == 0 || a.digest == digest);
		digest = a.digest;
		r->applied_step += outcome == APPLIED;
		r->window++;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a fake engine has to do with those of the other parts: the table of engine/comm.h, GO by the real table of
 * engine/go.h, and FILL. cluster_exchange.c has the network between them. */
#include "cluster.h"

static bool has_member(const struct cluster_engine *e)
{
	return e->state >= COMM_OFFERED && e->state <= COMM_BUSY;
}

static struct cluster_comm *comm_of(struct sim *s)
{
	const struct cluster_engine *e = cluster_engine(s);
	return e->comm ? &cluster_of(s)->comm[e->comm - 1] : NULL;
}

/* Below 0: it is older than the newest that this life has been in; above 0: newer. */
static int compare(struct sim *s, uint64_t term, uint64_t k)
{
	const struct cluster_comm *x = comm_of(s);
	if (!x)
		return 1;
	if (term != x->term)
		return term < x->term ? -1 : 1;
	return k < x->k ? -1 : k > x->k;
}

uint64_t sim_life(const struct sim *s)
{
	return s->part.n_parts > 1 ? (uint64_t)(cluster_part(s) + 1) << 32 | s->engine_life : 0;
}

bool sim_comm_fills(const struct sim *s)
{
	const struct cluster_engine *e = cluster_engine((struct sim *)s);
	return e->fill_stage == GO_ADDS || (e->old_until > s->now && e->filling_old);
}

void sim_comm_dies(struct sim *s)
{
	cluster_comm_leave(cluster_of(s), s);
	*cluster_engine(s) = (struct cluster_engine){ 0 };
}

/* ---- the end of a member ---- */

/* Its call takes a while to come back, and nothing is joined before. */
static void retire(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	int64_t within = e->fill_stage == GO_ADDS || sim_chance(s, 200) ? 300 * MS : 10 * MS;
	if (!has_member(e))
		return;
	if (e->state != COMM_OFFERED)
		e->old_until = s->now + (int64_t)sim_random(s, (uint64_t)within);
	e->filling_old = e->fill_stage == GO_ADDS;
	e->state = COMM_BROKEN;
	e->call++;
	cluster_comm_leave(cluster_of(s), s);
}

static struct engine_answer answer_of(const struct sim *s, const struct engine_command *c, enum status st)
{
	struct engine_answer a = engine_answer_for(c, st);
	a.comm = c->comm;
	a.result = s->d.r.phase;
	return a;
}

static void answer(struct sim *s, const struct engine_command *c, enum status st)
{
	struct engine_answer a = answer_of(s, c, st);
	engine_answer(s, &a);
}

static void drop_sum(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	enum go_stage stage = e->sum.stage;
	e->sum.stage = GO_NONE;
	if (stage == GO_ADDS)
		retire(s);
	if (stage)
		answer(s, &e->sum.go, ST_CANCELLED);
}

static void drop_fill(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	enum go_stage stage = e->fill_stage;
	if (stage == GO_ADDS)
		retire(s);
	e->fill_stage = GO_NONE;
	if (stage)
		answer(s, &e->fill, ST_CANCELLED);
}

static void drop_apply(struct sim *s)
{
	const bool gathers = cluster_engine(s)->apply.stage == APPLY_GATHERS;
	if (gathers)
		retire(s);
	cluster_apply_end(s, ST_CANCELLED, 0);
}

static void on_abort(struct sim *s, const struct engine_command *c)
{
	if (!compare(s, c->term, c->comm)) {
		drop_sum(s);
		drop_fill(s);
		drop_apply(s);
		retire(s);
	}
	answer(s, c, ST_OK);
}

/* ---- the beginning of one ---- */

static struct sim_address address_of(const struct sim *s, const struct engine_command *c)
{
	return (struct sim_address){ sim_life(s), cluster_part(s), c->term, c->comm };
}

static enum status join(struct sim *s, const struct engine_command *c)
{
	struct cluster_engine *e = cluster_engine(s);
	int lies = compare(s, c->term, c->comm);
	if (lies > 0) {
		drop_sum(s);
		drop_fill(s);
		drop_apply(s);
		retire(s);
		e->state = COMM_NONE;
	}
	if (lies < 0 || (!lies && !has_member(e)))
		return ST_STALE_ATTEMPT;
	if (!lies)
		return ST_OK;
	if (s->faults && sim_chance(s, 40))
		return ST_NO_MEMORY;
	const struct cluster_engine is = { .state = COMM_OFFERED,
					   .comm = cluster_comm_open(cluster_of(s), c->term, c->comm),
					   .call = e->call + 1,
					   .join_ns = c->join_ns,
					   .old_until = e->old_until,
					   .filling_old = e->filling_old,
					   .gathered = e->gathered };
	*e = is;
	return ST_OK;
}

static void on_join(struct sim *s, const struct engine_command *c)
{
	const struct sim_address is = address_of(s, c);
	struct engine_answer a = answer_of(s, c, join(s, c));
	a.n_tail = a.status ? 0 : sizeof(is);
	engine_answer_with(s, &a, &is);
	if (!a.status)
		cluster_aim(cluster_of(s), s, 60); /* between its address and the board */
}

static void join_if_due(struct sim *s)
{
	struct cluster *c = cluster_of(s);
	struct cluster_engine *e = cluster_engine(s);
	if (e->state != COMM_OFFERED || e->n_told < c->n_parts)
		return;
	if (e->old_until > s->now) {
		cluster_comm_back(c, s, ST_OK, e->old_until - s->now);
		return;
	}
	e->state = COMM_JOINING;
	cluster_comm_join(c, s);
	cluster_aim(c, s, 60); /* between the board and joining */
}

static enum status take_address(struct sim *s, const struct engine_command *c, const struct sim_address *is)
{
	struct cluster_engine *e = cluster_engine(s);
	if (compare(s, c->term, c->comm) || !has_member(e))
		return ST_STALE_ATTEMPT;
	if (e->state != COMM_OFFERED)
		return ST_OK;
	if (is->life != c->part_life || is->part != c->slot || is->term != c->term || is->comm != c->comm)
		sim_fail(s, "I27: the board of communicator %llu has an address of another one, or of another engine",
			 (unsigned long long)c->comm);
	cluster_check_life(cluster_of(s), comm_of(s), c->slot, c->part_life);
	if (c->slot == cluster_part(s) && c->part_life != sim_life(s))
		return ST_MALFORMED;
	if (e->told[c->slot])
		return e->told[c->slot] == c->part_life ? ST_OK : ST_MALFORMED;
	e->told[c->slot] = c->part_life;
	e->n_told++;
	return ST_OK;
}

static void on_address(struct sim *s, const struct event *ev)
{
	answer(s, &ev->command, take_address(s, &ev->command, &ev->address));
	join_if_due(s);
}

/* ---- GO ---- */

enum go_comm cluster_standing(struct sim *s, uint64_t term, uint64_t k)
{
	int lies = compare(s, term, k);
	if (lies)
		return lies > 0 ? GO_COMM_UNTOLD : GO_COMM_OVER;
	switch (cluster_engine(s)->state) {
	case COMM_OFFERED:
	case COMM_JOINING:
		return GO_COMM_FORMS;
	case COMM_READY:
		return GO_COMM_FREE;
	case COMM_BUSY:
		return GO_COMM_FILLS;
	default:
		return GO_COMM_OVER;
	}
}

/* From now on nobody could say what half 1-x holds: no record may. */
static void withdraw_vote(struct sim *s)
{
	struct control_record *r = &s->d.r;
	cluster_of(s)->member[cluster_part(s)].half.whole = false;
	if (r->phase != WINDOW_PREPARED)
		return;
	r->seq++;
	r->phase = WINDOW_CLOSED;
	r->prepared_term = r->prepared_attempt = 0;
	r->prepared_sumsq = 0;
	r->prepared_nonfinite = r->prepared_digest = 0;
}

static void begin_sum(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	const struct cluster_op op = { .kind = OP_SUM, .window = s->d.r.window, .attempt = e->sum.go.attempt };
	cluster_check_entry(cluster_of(s), &e->sum.go);
	withdraw_vote(s);
	e->sum.stage = GO_ADDS;
	e->state = COMM_BUSY;
	e->call++;
	cluster_comm_enter(cluster_of(s), s, &op);
}

static void on_go(struct sim *s, const struct engine_command *go)
{
	struct cluster_engine *e = cluster_engine(s);
	if (go_supersedes(&s->d.r, &e->sum, go))
		drop_sum(s);
	const enum go_comm comm = cluster_standing(s, go->term, go->comm);
	const struct go_verdict v = go_judge_sum(&s->d.r, &e->sum, comm, go);
	switch (v.ruling) {
	case GO_VOTES:
		sim_vote_again(s, go);
		break;
	case GO_JOINS:
		answer(s, &e->sum.go, ST_CANCELLED);
		e->sum.go = *go;
		break;
	case GO_SUMS:
		sim_vote_freeze(s);
		e->sum = (struct go_sum){ GO_CONNECTS, *go };
		if (comm == GO_COMM_FREE)
			begin_sum(s);
		break;
	default:
		answer(s, go, v.status);
	}
}

/* ---- FILL ---- */

static bool gives(const struct sim *s, const struct engine_command *c)
{
	return c->slot == cluster_part(s);
}

static void fill_if_due(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	const struct engine_command c = e->fill;
	const struct cluster_op op = { .kind = OP_FILL, .root = c.slot };
	if (e->fill_stage != GO_CONNECTS || e->state != COMM_READY || compare(s, c.term, c.comm))
		return;
	if (!gives(s, &c)) {
		s->d.r.seq++;
		s->d.r.params_ready = 0;
		s->d.r.params_digest = 0;
	}
	e->fill_stage = GO_ADDS;
	e->state = COMM_BUSY;
	e->call++;
	cluster_comm_enter(cluster_of(s), s, &op);
	cluster_aim(cluster_of(s), s, 100);
}

static enum status judge_fill(struct sim *s, const struct engine_command *c)
{
	const struct cluster_engine *e = cluster_engine(s);
	int lies = compare(s, c->term, c->comm);
	if (s->d.r.window || s->d.r.applied_step)
		sim_fail(s, "I30: part %u is to be filled in window %llu", cluster_part(s),
			 (unsigned long long)s->d.r.window);
	if (lies < 0 || (!lies && !has_member(e)))
		return ST_UNAVAILABLE;
	if (lies > 0 || e->state == COMM_BUSY)
		return ST_NOT_READY;
	return gives(s, c) && !s->d.r.params_ready ? ST_NOT_READY : ST_OK;
}

static void answer_filled(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = answer_of(s, c, ST_OK);
	a.digest = s->d.r.params_digest;
	engine_answer(s, &a);
}

static void on_fill(struct sim *s, const struct engine_command *c)
{
	struct cluster_engine *e = cluster_engine(s);
	bool same = c->term == e->fill.term && c->comm == e->fill.comm && c->slot == e->fill.slot;
	if (e->fill_stage && same) {
		answer(s, &e->fill, ST_CANCELLED);
		e->fill = *c;
		return;
	}
	if (e->filled && same && s->d.r.params_ready) {
		answer_filled(s, c);
		return;
	}
	enum status st = e->fill_stage ? ST_NOT_READY : judge_fill(s, c);
	if (st) {
		answer(s, c, st);
		return;
	}
	e->fill_stage = GO_CONNECTS;
	e->filled = false;
	e->fill = *c;
	fill_if_due(s);
}

/* ---- a call comes back ---- */

static void tell(struct sim *s, enum comm_news news, enum status st)
{
	const struct cluster_comm *x = comm_of(s);
	const struct engine_command none = { .op = ENGINE_PROGRESS, .comm = x->k };
	struct engine_answer a = answer_of(s, &none, st);
	a.result = PROGRESS_COMM;
	a.news = news;
	a.pieces = cluster_engine(s)->pieces;
	a.suspects = st ? x->gone : 0;
	engine_answer(s, &a);
}

static void answer_failure(struct sim *s, const struct engine_command *c, enum status st)
{
	struct engine_answer a = answer_of(s, c, st);
	a.suspects = comm_of(s)->gone;
	engine_answer(s, &a);
}

static void fail(struct sim *s, enum status st)
{
	struct cluster_engine *e = cluster_engine(s);
	bool connected = e->state == COMM_BUSY;
	retire(s);
	if (!connected)
		tell(s, COMM_LOST, st);
	if (e->sum.stage)
		answer_failure(s, &e->sum.go, st);
	if (e->fill_stage)
		answer_failure(s, &e->fill, st);
	e->sum.stage = e->fill_stage = GO_NONE;
	cluster_apply_end(s, st, comm_of(s)->gone);
}

static void finish_sum(struct sim *s)
{
	struct cluster *c = cluster_of(s);
	struct cluster_engine *e = cluster_engine(s);
	const struct engine_command go = e->sum.go;
	const struct sim_sums all = cluster_sum_up(c, &comm_of(s)->op);
	e->sum.stage = GO_NONE;
	c->member[cluster_part(s)].half = (struct cluster_half){ true, go.window, go.term, go.attempt, all.digest };
	sim_vote_summed(s, &go, &all);
}

static void finish_fill(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	e->fill_stage = GO_NONE;
	e->filled = true;
	if (!gives(s, &e->fill)) {
		s->d.r.seq++;
		s->d.r.params_ready = 1;
		s->d.r.params_digest = comm_of(s)->op.digest;
	}
	answer_filled(s, &e->fill);
}

static void succeed(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	bool joined = e->state == COMM_JOINING;
	e->state = COMM_READY;
	e->call++;
	e->pieces++;
	if (joined) {
		tell(s, COMM_JOINED, ST_OK);
	} else {
		comm_of(s)->op.finished |= UINT32_C(1) << cluster_part(s);
		if (e->apply.stage == APPLY_GATHERS)
			cluster_apply_finish(s);
		else
			e->sum.stage == GO_ADDS ? finish_sum(s) : finish_fill(s);
	}
	fill_if_due(s);
	cluster_apply_if_due(s);
	if (e->state == COMM_READY && e->sum.stage == GO_CONNECTS &&
	    cluster_standing(s, e->sum.go.term, e->sum.go.comm) == GO_COMM_FREE)
		begin_sum(s);
}

void cluster_on_call(struct cluster *c, const struct item *i)
{
	struct sim *s = i->of;
	struct cluster_engine *e = cluster_engine(s);
	if (!s->engine_up || i->e.life != s->engine_life || i->e.call != e->call)
		return;
	if (e->state == COMM_OFFERED) {
		join_if_due(s);
	} else if (i->e.status == ST_NOT_READY) { /* it gets on */
		e->moved_ns = s->now;
		e->pieces++;
		tell(s, COMM_MOVES, ST_OK);
	} else if (i->e.status == ST_STALLED && e->moved_ns && s->now - e->moved_ns < CLUSTER_STALL_NS) {
		cluster_comm_back(c, s, ST_STALLED, e->moved_ns + CLUSTER_STALL_NS - s->now);
	} else if (i->e.status) {
		fail(s, i->e.status);
	} else {
		succeed(s);
	}
}

/* ---- in the engine's turn ---- */

void sim_comm_command(struct sim *s, const struct event *ev)
{
	switch ((enum engine_op)ev->command.op) {
	case ENGINE_JOIN:
		on_join(s, &ev->command);
		break;
	case ENGINE_ADDRESS:
		on_address(s, ev);
		break;
	case ENGINE_ABORT:
		on_abort(s, &ev->command);
		break;
	case ENGINE_FILL:
		on_fill(s, &ev->command);
		break;
	default:
		on_go(s, &ev->command);
	}
}

/* I28: what is applied is the sum that the record speaks of. */
void sim_comm_commit(struct sim *s, const struct engine_command *c)
{
	const struct cluster_half *h = &cluster_of(s)->member[cluster_part(s)].half;
	if (s->part.n_parts == 1)
		return;
	if (cluster_engine(s)->sum.stage)
		sim_fail(s, "I28: part %u applies window %llu, and takes its sum anew", cluster_part(s),
			 (unsigned long long)c->window);
	if (!h->whole || h->window != c->window || h->term != c->term || h->attempt != c->attempt ||
	    h->digest != s->d.r.prepared_digest)
		sim_fail(s,
			 "I28: part %u applies window %llu, attempt %llu, and half 1-x holds window %llu, attempt %llu",
			 cluster_part(s), (unsigned long long)c->window, (unsigned long long)c->attempt,
			 (unsigned long long)h->window, (unsigned long long)h->attempt);
}

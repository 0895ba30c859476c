/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what becomes of a GO, and when one that waits votes: the tables of go.h. For step.c and step_parts.c, and for
 * push.c, which tells gaccd what no vote says. Pure, no state; any thread. */
#include "engine/go.h"

static enum status judge_window(const struct control_record *r, uint64_t window)
{
	return window == r->window ? ST_OK : window < r->window ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW;
}

/* Attempts are numbered within a window; terms only grow. */
static enum status judge_age(uint64_t term, uint64_t attempt, const struct engine_command *go)
{
	if (go->term < term)
		return ST_STALE_TERM;
	return go->term == term && go->attempt < attempt ? ST_STALE_ATTEMPT : ST_OK;
}

static enum status judge(const struct control_record *r, const struct go_armed *a, const struct engine_command *go)
{
	enum status st = judge_window(r, go->window);
	if (st)
		return st;
	if (go->term < r->term)
		return ST_STALE_TERM;
	if (r->phase == WINDOW_OPEN && !go->close && !go->armed)
		return ST_NOT_READY;
	if (a->waits && (st = judge_age(a->go.term, a->go.attempt, go)))
		return st;
	return r->phase == WINDOW_PREPARED ? judge_age(r->prepared_term, r->prepared_attempt, go) : ST_OK;
}

/* A window in which nothing is counted may be the end of the job, which only gaccd knows. */
static bool may_close(const struct control_record *r, uint32_t owing)
{
	return owing == 0 && r->count > 0;
}

struct go_verdict go_judge(const struct control_record *r, const struct go_armed *a, uint32_t owing,
			   const struct engine_command *go)
{
	enum status st = judge(r, a, go);
	if (st)
		return (struct go_verdict){ GO_REFUSED, st };
	bool waits = r->phase == WINDOW_OPEN && !go->close && !may_close(r, owing);
	return (struct go_verdict){ waits ? GO_WAITS : GO_VOTES, ST_OK };
}

/* A GO of this window that is not of the one part's kind. */
static enum status judge_sum(const struct control_record *r, const struct go_sum *s, const struct engine_command *go)
{
	enum status st = judge_window(r, go->window);
	if (st)
		return st;
	if (go->armed)
		return ST_INVALID_ARGUMENT;
	if (go->term < r->term)
		return ST_STALE_TERM;
	if (s->stage && go->term < s->go.term)
		return ST_STALE_TERM;
	if (r->phase == WINDOW_APPLYING || (r->phase == WINDOW_OPEN && !go->close))
		return ST_NOT_READY;
	return s->stage ? judge_age(s->go.term, s->go.attempt, go) : ST_OK;
}

static bool is_same(uint64_t term, uint64_t attempt, const struct engine_command *go)
{
	return go->term == term && go->attempt == attempt;
}

static enum status judge_comm(const struct control_record *r, enum go_comm comm)
{
	if (r->client_pending || comm == GO_COMM_UNTOLD || comm == GO_COMM_FILLS)
		return ST_NOT_READY;
	return comm == GO_COMM_OVER ? ST_UNAVAILABLE : ST_OK;
}

struct go_verdict go_judge_sum(const struct control_record *r, const struct go_sum *s, enum go_comm comm,
			       const struct engine_command *go)
{
	enum status st = judge_sum(r, s, go);
	if (st)
		return (struct go_verdict){ GO_REFUSED, st };
	if (s->stage && is_same(s->go.term, s->go.attempt, go))
		return (struct go_verdict){ GO_JOINS, ST_OK };
	if (r->phase == WINDOW_PREPARED && is_same(r->prepared_term, r->prepared_attempt, go))
		return (struct go_verdict){ GO_VOTES, ST_OK };
	if (r->phase == WINDOW_PREPARED)
		st = judge_age(r->prepared_term, r->prepared_attempt, go);
	if (!st)
		st = judge_comm(r, comm);
	return (struct go_verdict){ st ? GO_REFUSED : GO_SUMS, st };
}

bool go_supersedes(const struct control_record *r, const struct go_sum *s, const struct engine_command *go)
{
	return s->stage && !judge_sum(r, s, go) && !is_same(s->go.term, s->go.attempt, go);
}

bool go_is_due(const struct control_record *r, const struct go_armed *a, uint32_t owing)
{
	return a->waits && a->go.window == r->window && r->phase == WINDOW_OPEN && may_close(r, owing);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what becomes of a COMMIT of a sharded job: the table of apply.h. For apply_parts.c. Pure, no state; any
 * thread. */
#include "engine/apply.h"

bool apply_names(const struct engine_command *c, uint64_t term, uint64_t comm)
{
	return c->comm_term == term && c->comm == comm;
}

static struct apply_verdict refused(enum status st)
{
	return (struct apply_verdict){ APPLY_REFUSED, st };
}

/* The record's own: whether the window is open again or not. */
static bool is_recorded(const struct control_record *r, const struct engine_command *c)
{
	return c->window == r->commit_window && c->term == r->commit_term && c->attempt == r->commit_attempt;
}

static struct apply_verdict judge_comm(enum apply_ruling ruling, const struct apply_at_hand *a, enum go_comm comm,
				       const struct engine_command *c)
{
	if (a->stage && a->command.window == c->window && apply_names(&a->command, c->comm_term, c->comm))
		return (struct apply_verdict){ APPLY_JOINS, ST_OK };
	if (!c->comm || comm == GO_COMM_UNTOLD || comm == GO_COMM_FILLS)
		return refused(ST_NOT_READY);
	return comm == GO_COMM_OVER ? refused(ST_UNAVAILABLE) : (struct apply_verdict){ ruling, ST_OK };
}

struct apply_verdict apply_judge(const struct control_record *r, const struct apply_at_hand *a,
				 const struct apply_gathered *g, enum go_comm comm, const struct engine_command *c)
{
	const bool applying = r->phase == WINDOW_APPLYING;
	const bool is_last = !applying && c->window + 1 == r->window && is_recorded(r, c);
	const bool has_come = apply_names(c, g->comm_term, g->comm) && g->window == c->window;
	if (is_last && (!c->comm || has_come))
		return (struct apply_verdict){ APPLY_DONE, ST_OK };
	if (is_last)
		return judge_comm(APPLY_SERVES, a, comm, c);
	if (!applying)
		return (struct apply_verdict){ APPLY_IS_NEW, ST_OK };
	if (is_recorded(r, c))
		return judge_comm(APPLY_GOES_ON, a, comm, c);
	if (c->window != r->window)
		return refused(c->window < r->window ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW);
	return refused(ST_STALE_ATTEMPT);
}

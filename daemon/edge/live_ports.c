/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator of a job asks of the rest of gaccd: orders on their way to the parts, the journal, events. Loop
 * thread. */
#include "edge/links.h"
#include "edge/live_job.h"
#include "gacc/v1/common.pb-c.h"

#include <stdio.h>

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	live_event(ctx, warning, reason, rank, text);
}

static void on_params_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	l->params_noted = false;
	l->params_durable = st == ST_OK;
	if (l->params_durable && l->coord)
		coord_resend(l->coord, daemon_now(l->d));
}

/* The journal knows that the job has its parameters. If its memory is lost before that, it begins anew, as no push can
 * have been acknowledged. */
static bool params_are_durable(struct live_job *l)
{
	struct journal_record r = { .kind = JOURNAL_PARAMS_READY, .params_ready = { l->id } };
	if (!l->params_durable && !l->params_noted)
		l->params_noted = persist_put(l->d->persist, &r, on_params_durable, l) == ST_OK;
	return l->params_durable;
}

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	struct live_job *l = ctx;
	if (o->run && o->want != WANT_END && !params_are_durable(l))
		return; /* sent again when they are */
	links_send_order(l->d, part, o);
}

static void on_changed(void *ctx, uint64_t job)
{
	struct live_job *l = ctx;
	l->changed = true;
	live_history_applied(l);
	const struct commit *k = coord_last_commit(l->coord);
	if (k && coord_phase(l->coord) == COORD_COLLECT && k->window + 1 == coord_window(l->coord))
		live_note_step(l, k);
}

static void on_saved(void *ctx, char *text, size_t n)
{
	const struct live_job *l = ctx;
	const struct saved *k = saved_newest(&l->saved);
	if (k)
		snprintf(text, n, "; restore the checkpoint of step %llu: %s", (unsigned long long)k->applied_step,
			 k->path);
	else if (l->spec->restores)
		snprintf(text, n, "; it has no checkpoint of its own, it began with %s", l->text->pb->restore_from);
	else
		snprintf(text, n, "; there is no checkpoint to restore");
}

struct coord_ports live_coord_ports(struct live_job *l)
{
	return (struct coord_ports){ .ctx = l,
				     .order = on_order,
				     .persist_commit = live_persist_commit,
				     .persist_end = live_persist_end,
				     .event = on_event,
				     .changed = on_changed,
				     .norms = live_norms,
				     .saved = on_saved };
}

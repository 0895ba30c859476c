/* SPDX-License-Identifier: Apache-2.0 */
/* Finds stragglers, for the coordinator's tick: warns, marks the job STALLED, ends it. Writes the events about a
 * window's outcome, and shows the coordinator's state to daemon/edge. Pure; loop thread. */
#include "control/coord_impl.h"

#include <stdio.h>
#include <string.h>

static bool is_short(const struct coord *c, const struct rank_progress *p)
{
	return p->counted + p->voided < c->values.micro_size;
}

/* Where a rank is, before its process: "node b, ", or nothing where all parts are on the coordinator's node. */
static const char *place_of(const struct coord *c, uint32_t rank, char out[COORD_NODE])
{
	const uint32_t part = rank < c->spec->ranks ? c->part_of[rank] : PART_NO_RANK;
	const char *node = part < c->n_peers ? c->peer[part].node : "";
	snprintf(out, COORD_NODE, "%s%s%s", *node ? "node " : "", node, *node ? ", " : "");
	return out;
}

void coord_describe_missing(const struct coord *c, uint64_t missing, char *text, size_t n)
{
	uint32_t n_short = 0;
	int at = snprintf(text, n, "window %llu closed with %llu micro-batches missing (uneven: error):",
			  (unsigned long long)c->window, (unsigned long long)missing);
	COORD_EACH_RANK(c, r)
	{
		const struct rank_progress *p = &c->rank[r];
		if (!is_short(c, p) || n_short++ >= 4 || at >= (int)n)
			continue;
		char place[COORD_NODE];
		at += snprintf(text + at, n - (size_t)at, "%s rank %u (%spid %lld) at %u/%u", n_short > 1 ? "," : "", r,
			       place_of(c, r, place), (long long)p->pid, p->counted + p->voided, c->values.micro_size);
	}
	if (n_short > 4 && at < (int)n)
		snprintf(text + at, n - (size_t)at, " and %u more", n_short - 4);
}

/* Others may be waiting for it: it owes micro-batches and does not wait itself. */
static bool owes(const struct coord *c, const struct rank_progress *p)
{
	return !p->flushed && !p->waiting_ns && is_short(c, p);
}

int64_t coord_rank_late_ns(const struct coord *c, uint32_t rank, struct now now)
{
	if (c->phase != COORD_COLLECT || c->held || rank >= c->spec->ranks || !owes(c, &c->rank[rank]))
		return 0;
	int64_t since = c->waiting_since_ns, lost = c->times[rank].lost_ns;
	if (lost && (!since || lost < since)) /* perhaps no rank waits for it: all of them can be lost */
		since = lost > c->opened_ns ? lost : c->opened_ns;
	if (since && since < c->late_from_ns) /* from before a pause */
		since = c->late_from_ns;
	return since && now.mono_ns > since ? now.mono_ns - since : 0;
}

static void describe_late(const struct coord *c, char *text, size_t n, struct now now)
{
	int at = snprintf(text, n, "window %llu: waiting for", (unsigned long long)c->window);
	for (uint32_t i = 0; i < c->n_late && i < 4 && at < (int)n; i++) {
		const struct late_rank *l = &c->late[i];
		char who[32] = "never attached, pid 0", place[COORD_NODE];
		if (l->pid)
			snprintf(who, sizeof(who), "pid %lld", (long long)l->pid);
		else if (l->known)
			strcpy(who, "inline");
		at += snprintf(text + at, n - (size_t)at, "%s rank %u (%s%s) at %u/%u for %.0f s", i ? "," : "",
			       l->rank, place_of(c, l->rank, place), who, l->counted, l->micro_size,
			       (double)l->waiting_ns / 1e9);
	}
	if (c->n_late > 4 && at < (int)n)
		snprintf(text + at, n - (size_t)at, " and %u more", c->n_late - 4);
}

/* Optimizer CLIENT, several parts: all micro-batches are there, and trainers of this part still read the reduced
 * gradient that the next sum will overwrite. NULL: of none. */
static const struct report *find_readers(const struct coord *c)
{
	if (c->phase != COORD_COLLECT || c->n_late || c->n_peers == 1)
		return NULL;
	COORD_EACH_PART(c, i)
	{
		const struct report *r = &c->peer[i].last;
		if (c->peer[i].known && r->window == c->window && !r->complete && *r->start_waits)
			return r;
	}
	return NULL;
}

static int64_t watch_readers(struct coord *c, const struct report *readers, struct now now)
{
	if (!readers)
		c->readers_since_ns = 0;
	else if (!c->readers_since_ns)
		c->readers_since_ns = now.mono_ns;
	return readers ? now.mono_ns - c->readers_since_ns : 0;
}

static void describe_readers(const struct coord *c, const struct report *r, char *text, size_t n)
{
	snprintf(text, n, "window %llu waits for %s", (unsigned long long)c->window, r->start_waits);
}

/* Those that are late are stragglers; readers are no rank's lateness, so the first rank is not named. */
static void note_stalled(struct coord *c, const char *text, int64_t worst, struct now now)
{
	if (c->state == JOB_STALLED)
		return;
	if (c->n_late) {
		c->straggler.since_ns = now.mono_ns - worst;
		c->straggler.window = c->window;
		c->straggler.rank = c->late[0].rank;
		c->straggler.n_more = c->n_late - 1;
	}
	coord_event(c, true, c->n_late ? "RankLate" : "WindowStuck", c->n_late ? (int64_t)c->late[0].rank : -1, text);
	coord_set_state(c, JOB_STALLED, text, now);
	coord_broadcast(c, now);
}

void coord_watch_late(struct coord *c, struct now now)
{
	int64_t worst = 0;
	c->n_late = 0;
	if (c->held || *c->hindrance) {
		c->readers_since_ns = 0;
		return;
	}
	COORD_EACH_RANK(c, r)
	{
		int64_t ns = coord_rank_late_ns(c, r, now);
		if (!ns)
			continue;
		const struct rank_progress *p = &c->rank[r];
		c->late[c->n_late++] = (struct late_rank){ .rank = r,
							   .counted = p->counted + p->voided,
							   .micro_size = c->values.micro_size,
							   .pid = p->pid,
							   .waiting_ns = ns,
							   .attached = p->attached,
							   .lost = p->lost,
							   .known = p->known };
		worst = ns > worst ? ns : worst;
	}
	const struct report *readers = find_readers(c);
	const int64_t reading = watch_readers(c, readers, now);
	worst = reading > worst ? reading : worst;
	if (worst < c->spec->stall_warn_ns) {
		if (c->state == JOB_STALLED)
			coord_set_running(c, now);
		return;
	}
	char text[256];
	if (readers)
		describe_readers(c, readers, text, sizeof(text));
	else
		describe_late(c, text, sizeof(text), now);
	if (worst >= c->spec->stall_abort_ns)
		coord_end(c, ST_STALLED, text, now);
	else
		note_stalled(c, text, worst, now);
}

/* "rank 1 (micro-batch 3), rank 2 (micro-batch 0 and 1 more)"; "": no rank is known to have sent such values. */
static void describe_nonfinite(const struct coord *c, char *text, size_t n)
{
	uint32_t n_ranks = 0;
	size_t at = 0;
	text[0] = '\0';
	COORD_EACH_RANK(c, r)
	{
		const struct rank_progress *p = &c->rank[r];
		char more[24] = "";
		if (!p->nonfinite || n_ranks++ >= 4 || at >= n)
			continue;
		if (p->nonfinite > 1)
			snprintf(more, sizeof(more), " and %u more", p->nonfinite - 1);
		at += (size_t)snprintf(text + at, n - at, "%srank %u (micro-batch %u%s)", at ? ", " : "", r,
				       p->first_nonfinite, more);
	}
	if (n_ranks > 4 && at < n)
		snprintf(text + at, n - at, " and %u more ranks", n_ranks - 4);
}

static void describe_skip(const struct coord *c, char *text, size_t n)
{
	const struct commit *k = &c->commit;
	char who[200];
	describe_nonfinite(c, who, sizeof(who));
	if (k->skip_reason == SKIP_OUTLIER)
		snprintf(text, n,
			 "window %llu is skipped: its gradient norm %g is above %g times the usual one (%g): "
			 "outlier_skip%s",
			 (unsigned long long)k->window, k->grad_norm, c->spec->outlier_skip.factor, k->usual_norm,
			 k->next.norms.steps ? "" : "; so many in a row are a new level, the usual norm is found anew");
	else if (*who)
		snprintf(text, n, "window %llu is skipped: gradients that are not finite came from %s",
			 (unsigned long long)k->window, who);
	else
		snprintf(text, n, "window %llu is skipped: its gradient or the norm of it is not finite (norm %g)",
			 (unsigned long long)k->window, k->grad_norm);
}

void coord_tell_outcome(struct coord *c)
{
	const struct commit *k = &c->commit;
	char text[256];
	switch ((enum outcome)k->outcome) {
	case OUTCOME_SKIPPED:
		describe_skip(c, text, sizeof(text));
		coord_event(c, true, "StepSkipped", -1, text);
		break;
	case OUTCOME_DROPPED:
		snprintf(text, sizeof(text),
			 "window %llu is dropped: %llu micro-batches counted, %llu wanted (uneven: drop)",
			 (unsigned long long)k->window, (unsigned long long)k->micro_count,
			 (unsigned long long)c->spec->ranks * k->micro_size);
		coord_event(c, true, "StepDropped", -1, text);
		break;
	case OUTCOME_EMPTY:
		snprintf(text, sizeof(text), "window %llu closed with nothing in it", (unsigned long long)k->window);
		coord_event(c, false, "StepEmpty", -1, text);
		break;
	case OUTCOME_APPLIED:
	case OUTCOME_NONE:
		break;
	}
}

void coord_tell_changes(struct coord *c)
{
	const struct commit *k = &c->commit;
	char changes[160], text[256];
	if (k->final)
		return;
	struct values from = c->values;
	for (uint32_t i = 0; i < c->updates.n && c->updates.item[i].window <= k->window + 1; i++) {
		const struct update *u = &c->updates.item[i];
		update_describe(u, from, changes, sizeof(changes));
		snprintf(text, sizeof(text), "in force with window %llu: %s", (unsigned long long)u->window, changes);
		coord_event(c, false, "Updated", -1, text);
		update_apply(&from, u);
	}
	double now = k->next.scale.scale;
	if (now == k->loss_scale)
		return;
	snprintf(text, sizeof(text), "%g -> %g from window %llu on: %s", k->loss_scale, now,
		 (unsigned long long)k->window + 1,
		 now < k->loss_scale ? "gradients were not finite"
				     : "all gradients were finite for growth_interval steps");
	coord_event(c, false, "LossScale", -1, text);
}

/* ---- looking ---- */

uint64_t coord_visits(const struct coord *c)
{
	return *c->visited;
}

enum status coord_end_status(const struct coord *c)
{
	return c->end_status;
}

enum coord_phase coord_phase(const struct coord *c)
{
	return c->phase;
}

bool coord_is_over(const struct coord *c)
{
	return c->phase >= COORD_ENDING || (!c->held && coord_all(c, MARK_LEFT));
}

enum job_state coord_state(const struct coord *c, const char **out_reason, int64_t *out_since_unix_ns)
{
	if (out_reason)
		*out_reason = c->reason;
	if (out_since_unix_ns)
		*out_since_unix_ns = c->state_since_unix_ns;
	return c->state;
}

uint64_t coord_epoch(const struct coord *c)
{
	return c->epoch;
}

uint64_t coord_window(const struct coord *c)
{
	return c->window;
}

bool coord_window_at_parts(const struct coord *c, uint64_t *out)
{
	*out = c->phase == COORD_ENDING ? c->peer[0].last.window : c->window;
	if (c->phase != COORD_ENDING)
		return c->phase >= COORD_COLLECT && c->phase <= COORD_PERSIST;
	COORD_EACH_PART(c, i)
	if (!c->peer[i].known || c->peer[i].last.window != *out)
		return false;
	return true;
}

uint64_t coord_applied_step(const struct coord *c)
{
	return c->applied_step;
}

const struct commit *coord_last_commit(const struct coord *c)
{
	return c->have_commit ? &c->commit : NULL;
}

const struct rank_progress *coord_ranks(const struct coord *c, uint32_t *n)
{
	*n = c->spec->ranks;
	return c->rank;
}

int64_t coord_window_opened_unix_ns(const struct coord *c)
{
	return c->window_opened_unix_ns;
}

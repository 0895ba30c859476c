/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that gaccd launches: when the launcher is started and replaced, and what its messages mean for the
 * job. For admission, the recovery after a restart, Cancel and the tick. Loop thread. */
#include "edge/launching_impl.h"

#include "edge/hosted.h"
#include "host/log_tail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS (INT64_C(100) * 1000000) /* before a launcher is replaced; doubles */
#define MAX_DEATHS 5			  /* of launchers in a row */
/* a launcher that lived so long resets the count of deaths */
#define STEADY_NS (INT64_C(60) * 1000000000)
#define COMPLETED_NS (INT64_C(600) * 1000000000) /* in which the ranks of a completed job may exit on their own */
#define PUZZLED_NS (INT64_C(3) * 1000000000)

/* ---- what the launcher's messages mean ---- */

static void fail_job(struct hosted *h, const char *text, struct now now)
{
	if (h->coord)
		coord_end(h->coord, ST_RANK_FAILED, text, now);
}

/* The cause, and the last line of its log. */
static void fail_by_cause(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	const struct launch_cause *c = &g->summary.cause;
	char exit[96], text[256], *last[1] = { NULL };
	launch_say_exit(c->rank, c->pid, c->exit_status, exit, sizeof(exit));
	size_t n = log_tail(g->tail, g->n_tail, last, 1);
	snprintf(text, sizeof(text), "%s%s%.140s", exit, n ? ": " : "", n ? last[0] : "");
	free(last[0]);
	fail_job(h, text, now);
}

static void say_exit_event(struct hosted *h, uint32_t rank, const struct launch_rank *was, const struct launch_rank *is)
{
	char exit[96], text[200];
	bool again = is->restarts != was->restarts;
	launch_say_exit(rank, was->pid ? was->pid : is->pid, is->exit_status, exit, sizeof(exit));
	snprintf(text, sizeof(text), "%s%s", exit, again ? "; it is started again" : "");
	hosted_event(h, is->exit_status != 0 && !hosted_ended(h), again ? "RankRestarted" : "RankExited", rank, text);
}

static void on_rank(void *arg, uint32_t rank, const struct launch_rank *is)
{
	struct hosted *h = arg;
	struct launching *g = h->launch;
	if (rank >= h->spec->ranks)
		return;
	struct launch_rank was = g->rank[rank];
	g->rank[rank] = *is;
	h->changed = true;
	bool ended = was.state == LAUNCH_RANK_RUNNING && (is->state != LAUNCH_RANK_RUNNING || is->pid != was.pid);
	if (g->heard && ended)
		say_exit_event(h, rank, &was, is);
}

/* A job that has ended. If it has completed and is not cancelled even so, its ranks have time to exit on their own;
 * otherwise they are ended now. Then the launcher exits. */
static void wind_up(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	bool patient = hosted_state(h, NULL, NULL) == JOB_COMPLETED && g->summary.phase != LAUNCH_IDLE && !g->impatient;
	if (patient && !g->stop_ns)
		g->stop_ns = now.mono_ns + COMPLETED_NS;
	if (patient && now.mono_ns < g->stop_ns) {
		if (g->asked < ASKED_DRAIN && launching_order(h, LAUNCH_OP_DRAIN, NULL, 0))
			g->asked = ASKED_DRAIN;
	} else if (g->asked < ASKED_END && launching_order(h, LAUNCH_OP_END, NULL, 0)) {
		g->asked = ASKED_END;
	}
}

void launching_cancel(struct hosted *h, int64_t grace_ns)
{
	struct launching *g = h->launch;
	if (!g)
		return;
	g->impatient = hosted_ended(h);
	if (!grace_ns)
		return;
	g->grace_ns = grace_ns;
	if (g->proc && g->asked == ASKED_END)
		launching_order(h, LAUNCH_OP_END, NULL, 0);
}

static void decide(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	if (!g->proc || !g->heard)
		return;
	if (hosted_ended(h))
		wind_up(h, now);
	else if (g->summary.phase == LAUNCH_IDLE && g->asked == ASKED_NOTHING)
		launching_start_ranks(h);
	else if (g->summary.result == LAUNCH_FAILED)
		fail_by_cause(h, now);
}

/* Once, when no process is left. */
static void keep_exits(struct hosted *h)
{
	if (!h->launch->kept)
		launching_exits_keep(h);
	h->launch->kept = true;
}

static void take_summary(struct hosted *h, const struct launch_summary *s, const char *tail, uint32_t n_tail)
{
	struct launching *g = h->launch;
	for (uint32_t i = 0; s->phase == LAUNCH_IDLE && i < h->spec->ranks; i++)
		g->rank[i].state = LAUNCH_RANK_WAITING; /* a new launcher: the old one's processes are gone */
	g->summary = *s;
	g->n_tail = n_tail;
	memcpy(g->tail, tail, n_tail);
	if (s->phase == LAUNCH_OVER)
		keep_exits(h);
	else
		g->kept = false;
}

static void on_summary(void *arg, const struct launch_summary *s, const char *tail, uint32_t n_tail)
{
	struct hosted *h = arg;
	bool cleans_up = s->phase == LAUNCH_IDLE && hosted_ended(h); /* it does not know how the ranks ended; we do */
	if (!cleans_up)
		take_summary(h, s, tail, n_tail);
	h->launch->heard = true;
	h->changed = true;
	decide(h, daemon_now(h->d));
}

/* ---- ranks that end too early ---- */

/* A rank whose process exited with code 0, but that has not left the job. */
static uint32_t missing_rank(const struct hosted *h)
{
	uint32_t n;
	const struct rank_progress *p = coord_ranks(h->coord, &n);
	for (uint32_t i = 0; i < n; i++) {
		const struct launch_rank *r = &h->launch->rank[i];
		bool ended = r->state == LAUNCH_RANK_EXITED && r->exit_status == 0;
		/* unwatched: it maps no memory and has no lifeline, so nothing tells that it has ended */
		bool gone = !p[i].attached || p[i].lost || p[i].unwatched;
		if (ended && gone && p[i].flushed != RANK_LEFT &&
		    !p[i].waiting_ns) /* it may have given its part of the last window */
			return i;
	}
	return RANK_NONE;
}

/* No process will replace it, and the others would only wait for it until stall_abort. The job fails only after the
 * engine has had time to report that the rank has left. */
static void watch_early_ends(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	bool known = g->heard && !hosted_ended(h) && hosted_ranks_known(h);
	uint32_t rank = known ? missing_rank(h) : RANK_NONE;
	if (rank == RANK_NONE) {
		g->puzzled_ns = 0;
		return;
	}
	if (!g->puzzled_ns)
		g->puzzled_ns = now.mono_ns;
	if (now.mono_ns - g->puzzled_ns < PUZZLED_NS)
		return;
	uint32_t n;
	char text[200];
	const struct rank_progress *p = coord_ranks(h->coord, &n);
	snprintf(text, sizeof(text), "rank %u (pid %lld) ended with code 0 %s", rank, (long long)g->rank[rank].pid,
		 p[rank].known ? "without detaching: the job needs it still" : "and had never attached");
	fail_job(h, text, now);
}

/* ---- the launcher's life ---- */

/* It will be replaced, unless that has been tried too often. */
static void note_death(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	char text[96];
	g->deaths = now.mono_ns - g->opened_ns > STEADY_NS ? 1 : g->deaths + 1;
	g->retry_ns = now.mono_ns + (RETRY_NS << g->deaths);
	if (g->deaths < MAX_DEATHS)
		return;
	g->done = true;
	snprintf(text, sizeof(text), "%d launchers in a row have died; gaccd's log may say why", MAX_DEATHS);
	if (!hosted_ended(h))
		fail_job(h, text, now);
}

static void on_gone(void *arg)
{
	struct hosted *h = arg;
	struct launching *g = h->launch;
	struct now now = daemon_now(h->d);
	int64_t pid = launch_proc_pid(g->proc);
	bool ordered = g->asked >= ASKED_DRAIN;
	bool left = launching_left_traces(h, g->uuid);
	g->proc = NULL;
	g->heard = false;
	g->asked = ASKED_NOTHING;
	g->done = ordered && !left;
	h->changed = true;
	if (ordered)
		keep_exits(h);
	if (g->done || h->d->node.stopping)
		return;
	char text[160];
	snprintf(text, sizeof(text), "the launcher (pid %lld) is gone, and its ranks with it: %s", (long long)pid,
		 ordered ? "another one ends what they have left behind" : "they are started again");
	hosted_event(h, true, "LauncherLost", -1, text);
	note_death(h, now);
}

static enum status open_launcher(struct hosted *h, bool start)
{
	static const struct launch_proc_events events = { .rank = on_rank, .summary = on_summary, .gone = on_gone };
	struct launcher_args a = launching_args(h, h->launch->uuid);
	struct now now = daemon_now(h->d);
	enum status st = launch_proc_open(&h->d->node.loop, &a, start, &events, h, &h->launch->proc);
	h->launch->opened_ns = now.mono_ns;
	h->launch->retry_ns = 0;
	if (st && start)
		note_death(h, now);
	return st;
}

void launching_begin(struct hosted *h)
{
	if (launching_make(h))
		open_launcher(h, true);
	else
		coord_end(h->coord, ST_NO_MEMORY, "no memory to launch its ranks", daemon_now(h->d));
}

bool launching_adopt(struct hosted *h)
{
	bool known = h->launch != NULL; /* how its ranks ended: launching_exits.c */
	if (!known && !launching_make(h))
		return false;
	bool clean_up = !h->coord && launching_left_traces(h, h->launch->uuid);
	if (!open_launcher(h, clean_up) || clean_up) {
		h->launch->done = false;
		return true;
	}
	if (!known)
		launching_free(h);
	return false;
}

bool launching_over(const struct hosted *h)
{
	return !h->launch || h->launch->done;
}

void launching_tick(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	if (!g || g->done)
		return;
	if (!g->proc && g->retry_ns && now.mono_ns >= g->retry_ns)
		open_launcher(h, true);
	decide(h, now);
	watch_early_ends(h, now);
}

void launching_free(struct hosted *h)
{
	if (!h->launch)
		return;
	if (h->launch->proc && h->launch->heard && hosted_ended(h))
		wind_up(h, daemon_now(h->d)); /* it may have ended at the last moment */
	launch_proc_close(h->launch->proc);
	free(h->launch->rank);
	free(h->launch);
	h->launch = NULL;
}

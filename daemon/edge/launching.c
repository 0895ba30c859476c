/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that gaccd launches: what is wanted of those of each node, and what their news mean for the job.
 * For admission, the recovery after a restart, Cancel and the tick. Loop thread. */
#include "edge/launching_impl.h"

#include "control/spec_nodes.h"
#include "edge/hosted.h"
#include "edge/hosted_nodes.h"
#include "gacc/v1/common.pb-c.h"
#include "host/log_tail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETED_NS (INT64_C(600) * 1000000000) /* in which the ranks of a completed job may exit on their own */
#define PUZZLED_NS (INT64_C(3) * 1000000000)

/* ---- failures ---- */

static void fail_job(struct hosted *h, const char *text, struct now now)
{
	if (h->coord)
		coord_end(h->coord, ST_RANK_FAILED, text, now);
}

/* The cause, and the last line of its log. */
static void fail_by_cause(struct hosted *h, const struct launch_site *s, struct now now)
{
	char exit[96 + NODE_NAME_MAX], text[320], *last[1] = { NULL };
	launching_say_cause(h, s, exit, sizeof(exit));
	size_t n = s->tail ? log_tail(s->tail, s->n_tail, last, 1) : 0;
	snprintf(text, sizeof(text), "%s%s%.140s", exit, n ? ": " : "", n ? last[0] : "");
	free(last[0]);
	fail_job(h, text, now);
}

static void fail_site(struct hosted *h, const struct launch_site *s, struct now now)
{
	char name[NODE_NAME_MAX + 1], text[LAUNCHED_FAILURE + NODE_NAME_MAX + 16];
	hosted_node_name(h, s->part, name);
	if (h->launch->n_sites > 1 || s->node)
		snprintf(text, sizeof(text), "node %s: %s", name, s->failure);
	else
		snprintf(text, sizeof(text), "%s", s->failure);
	fail_job(h, text, now);
}

static void look_for_failures(struct hosted *h, struct now now)
{
	const struct launching *g = h->launch;
	for (uint32_t i = 0; i < g->n_sites && !hosted_ended(h); i++) {
		const struct launch_site *s = &g->site[i];
		if (s->failure[0])
			fail_site(h, s, now);
		else if (s->heard && s->summary.result == LAUNCH_FAILED)
			fail_by_cause(h, s, now);
	}
}

/* ---- what is wanted ---- */

static bool all_heard(const struct launching *g)
{
	uint32_t i = 0;
	while (i < g->n_sites && g->site[i].heard)
		i++;
	return i == g->n_sites;
}

/* Ranks meet at a port of the node with rank 0, which its launcher has chosen. After a restart of this gaccd another
 * node may know it when that launcher has died: so all are heard before the first one starts. */
static void find_master_port(struct launching *g)
{
	for (uint32_t i = 0; i < g->n_sites && !g->master_port; i++)
		if (g->site[i].heard)
			g->master_port = g->site[i].summary.master_port;
}

static bool may_start(const struct hosted *h, const struct launch_site *s)
{
	const struct launching *g = h->launch;
	if (g->n_sites == 1)
		return *launching_address(h, s);
	return all_heard(g) && *launching_address(h, &g->site[0]) && (s == &g->site[0] || g->master_port);
}

/* Of an ended job: if it has completed and is not cancelled even so, its ranks have time to exit on their own;
 * otherwise they are ended now. Where they seem not to have been started, the news may only be late. */
static enum launch_want end_of(const struct hosted *h, struct now now)
{
	const struct launching *g = h->launch;
	bool patient = hosted_state(h, NULL, NULL) == JOB_COMPLETED && !g->impatient;
	return patient && now.mono_ns - g->ended_ns < COMPLETED_NS ? LAUNCH_WANT_DRAIN : LAUNCH_WANT_END;
}

static struct launch_wish wish_of(const struct hosted *h, uint32_t i, struct now now)
{
	const struct launching *g = h->launch;
	const struct launch_site *s = &g->site[i];
	const bool alone = g->n_sites == 1 && !s->node;
	const char *address = alone ? "127.0.0.1" : launching_address(h, &g->site[0]);
	struct launch_wish w = { .want = LAUNCH_WANT_NOTHING,
				 .grace_ns = g->grace_ns,
				 .allowed = g->share[i].allowed,
				 .final = g->share[i].final,
				 .fresh = h->submitted_here,
				 .first = s->first,
				 .n_ranks = s->n_ranks,
				 .group = i,
				 .n_groups = g->n_sites,
				 .master_port = g->n_sites > 1 ? g->master_port : 0 };
	snprintf(w.master_addr, sizeof(w.master_addr), "%s", *address ? address : "127.0.0.1");
	if (hosted_ended(h))
		w.want = end_of(h, now);
	else if (alone || (s->heard && s->summary.phase != LAUNCH_IDLE) || may_start(h, s))
		w.want = LAUNCH_WANT_RUN;
	return w;
}

static void decide(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	if (!h->n_parts && g->site[0].node)
		return; /* set aside, or over: where its parts are is not known any more */
	look_for_failures(h, now);
	if (hosted_ended(h) && !g->ended_ns)
		g->ended_ns = now.mono_ns;
	find_master_port(g);
	launch_share_give(g->share, g->n_sites, h->spec->launch.max_restarts);
	for (uint32_t i = 0; i < g->n_sites; i++) {
		const struct launch_wish w = wish_of(h, i, now);
		if (g->site[i].node)
			launching_far_wish(h, &g->site[i], &w, now);
		else if (g->starter)
			starter_wish(g->starter, &w);
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
	decide(h, daemon_now(h->d));
}

/* ---- news ---- */

/* The failure that is shown: the one that no restart was left for, else the newest. */
static void choose_cause(struct launching *g)
{
	const struct launch_site *best = NULL;
	for (uint32_t i = 0; i < g->n_sites; i++) {
		const struct launch_site *s = &g->site[i];
		if (!s->summary.cause.known || (best && best->summary.result == LAUNCH_FAILED))
			continue;
		if (!best || s->summary.result == LAUNCH_FAILED ||
		    s->summary.cause.unix_ns > best->summary.cause.unix_ns)
			best = s;
	}
	g->cause = best;
}

/* Once, when no process is left. */
static void keep_exits(struct hosted *h)
{
	struct launching *g = h->launch;
	uint32_t i = 0;
	while (i < g->n_sites && g->site[i].ended)
		i++;
	if (i == g->n_sites && !g->kept)
		launching_exits_keep(h);
	g->kept = i == g->n_sites;
}

static struct launch_told told_by(const struct launching *g, const struct launch_site *s)
{
	const struct launch_summary *sum = &s->summary;
	struct launch_told t = { .allowed = sum->allowed > sum->charged ? sum->allowed : sum->charged,
				 .wanted = sum->wanted,
				 .n_ranks = s->n_ranks };
	for (uint32_t i = s->first; i < s->first + s->n_ranks; i++) {
		t.restarts += g->rank[i].restarts;
		t.n_waiting += g->rank[i].state == LAUNCH_RANK_WAITING;
	}
	return t;
}

/* A node without others has all restarts, and what an earlier gaccd has given is not written down. */
static bool knows_shares(const struct launching *g, const struct launch_share *s)
{
	return g->n_sites > 1 && !s->inherits;
}

static void doubt(struct hosted *h, struct launch_site *s, uint32_t told, uint32_t counts)
{
	char name[NODE_NAME_MAX + 1], text[NODE_NAME_MAX + 160];
	if (s->doubted)
		return;
	s->doubted = true;
	hosted_node_name(h, s->part, name);
	snprintf(text, sizeof(text),
		 "node %s says that its ranks may be, or were, started again %u times, and was given no more than %u: "
		 "%u counts",
		 name, told, counts, counts);
	hosted_event(h, true, "RestartsDoubted", -1, text);
}

void launching_changed(struct hosted *h)
{
	struct launching *g = h->launch;
	for (uint32_t i = 0; i < g->n_sites; i++) {
		const struct launch_told t = told_by(g, &g->site[i]);
		if (g->site[i].heard && !launch_share_hear(&g->share[i], &t) && knows_shares(g, &g->share[i]))
			doubt(h, &g->site[i], t.allowed, g->share[i].allowed);
	}
	h->changed = true;
	choose_cause(g);
	keep_exits(h);
	decide(h, daemon_now(h->d));
}

/* ---- the ranks on this node ---- */

static const Gacc__V1__JobSpec *spec_of(const void *owner)
{
	return ((const struct hosted *)owner)->text->pb;
}

static bool is_ended(const void *owner)
{
	return hosted_ended(owner);
}

static void on_event(void *owner, bool warning, const char *reason, int64_t rank, const char *text)
{
	hosted_event(owner, warning, reason, rank, text);
}

static struct launch_site *site_here(const struct launching *g)
{
	uint32_t i = 0;
	while (i < g->n_sites && g->site[i].node)
		i++;
	return i < g->n_sites ? &g->site[i] : NULL;
}

static void on_changed(void *owner)
{
	struct hosted *h = owner;
	const struct starter *from = h->launch->starter;
	struct launch_site *s = site_here(h->launch);
	s->heard = from->heard;
	s->over = from->done;
	s->ended = from->ended_ranks;
	s->summary = from->summary;
	s->launcher_pid = from->proc ? launch_proc_pid(from->proc) : 0;
	s->tail = (char *)from->tail;
	s->n_tail = from->n_tail;
	starter_gave_up(from, s->failure, sizeof(s->failure));
	launching_changed(h);
}

/* The starter's ports. */
static const struct starter_ports here = {
	.spec = spec_of, .ended = is_ended, .event = on_event, .changed = on_changed
};

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
	bool known = all_heard(g) && !hosted_ended(h) && hosted_ranks_known(h);
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

/* ---- life ---- */

/* A job that was over at the start of gaccd has no parts: of its ranks those count that this node had, and other nodes
 * see to theirs. */
static void make_past_site(struct hosted *h)
{
	struct launching *g = h->launch;
	struct launch_site *s = &g->site[g->n_sites++];
	s->n_ranks = h->spec->parts ? spec_ranks_on(h->spec, h->d->node.conf->node.name, &s->first) : 0;
	if (!s->n_ranks)
		*s = (struct launch_site){ .n_ranks = h->spec->ranks }; /* its view does not say, or it had none here */
}

/* Parts that follow each other on one node. */
static void make_sites(struct hosted *h)
{
	struct launching *g = h->launch;
	for (uint32_t part = 0; part < h->n_parts; part++) {
		const uint32_t node = h->part[part].node, first = part_block(h->spec->ranks, h->n_parts, part);
		if (!part || g->site[g->n_sites - 1].node != node)
			g->site[g->n_sites++] = (struct launch_site){ .node = node, .part = part, .first = first };
		struct launch_site *s = &g->site[g->n_sites - 1];
		s->n_ranks = part_block(h->spec->ranks, h->n_parts, part + 1) - s->first;
	}
	if (!h->n_parts)
		make_past_site(h);
}

static bool make_starter(struct hosted *h)
{
	struct launching *g = h->launch;
	const struct launch_site *s = site_here(g);
	const struct starter_job job = {
		.id = h->id, .uid = h->uid, .uuid = h->uuid, .spec = h->spec, .may_be_old = !h->submitted_here
	};
	if (!s)
		return true;
	g->starter = malloc(sizeof(*g->starter));
	if (g->starter)
		starter_init(g->starter, h->d, &job, s->first, s->n_ranks, g->rank + s->first, &here, h);
	return g->starter;
}

bool launching_make(struct hosted *h)
{
	struct launching *g = h->launch = calloc(1, sizeof(*g));
	const uint32_t n = h->n_parts ? h->n_parts : 1;
	if (!g)
		return false;
	g->rank = calloc(h->spec->ranks, sizeof(*g->rank));
	g->site = calloc(n, sizeof(*g->site));
	g->share = calloc(n, sizeof(*g->share));
	for (uint32_t i = 0; g->rank && i < h->spec->ranks; i++)
		g->rank[i].exit_status = LAUNCH_NO_STATUS;
	for (uint32_t i = 0; g->share && i < n; i++)
		g->share[i].inherits = !h->submitted_here;
	if (g->rank && g->site && g->share) {
		make_sites(h);
		if (make_starter(h))
			return true;
	}
	g->n_sites = 0;
	launching_free(h);
	return false;
}

void launching_begin(struct hosted *h)
{
	if (!launching_make(h)) {
		coord_end(h->coord, ST_NO_MEMORY, "no memory to launch its ranks", daemon_now(h->d));
		return;
	}
	if (h->launch->starter)
		starter_open(h->launch->starter, true);
	decide(h, daemon_now(h->d));
}

bool launching_adopt(struct hosted *h)
{
	bool known = h->launch != NULL; /* how its ranks ended: launching_exits.c */
	if (!known && !launching_make(h))
		return false;
	struct starter *s = h->launch->starter;
	bool clean_up = !h->coord && s && starter_left_traces(s);
	if (s && (!starter_open(s, clean_up) || clean_up)) {
		s->done = false;
		site_here(h->launch)->over = false;
		return true;
	}
	if (!known)
		launching_free(h);
	return false;
}

bool launching_over(const struct hosted *h)
{
	const struct launching *g = h->launch;
	uint32_t i = 0;
	while (g && i < g->n_sites && g->site[i].over)
		i++;
	return !g || i == g->n_sites;
}

void launching_tick(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	if (!g || launching_over(h))
		return;
	if (g->starter) {
		const bool was_done = g->starter->done;
		starter_tick(g->starter, now);
		if (g->starter->done && !was_done)
			on_changed(h); /* it has given up */
	}
	decide(h, now);
	keep_exits(h); /* a node that is silent may have been given up */
	watch_early_ends(h, now);
}

void launching_free(struct hosted *h)
{
	struct launching *g = h->launch;
	if (!g)
		return;
	if (g->n_sites && hosted_ended(h) && !launching_over(h))
		decide(h, daemon_now(h->d)); /* it may have ended at the last moment */
	if (g->starter)
		starter_fini(g->starter);
	for (uint32_t i = 0; i < g->n_sites; i++)
		if (g->site[i].node)
			free(g->site[i].tail);
	free(g->starter);
	free(g->rank);
	free(g->site);
	free(g->share);
	free(g);
	h->launch = NULL;
}

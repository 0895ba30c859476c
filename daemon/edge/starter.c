/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of a job's ranks on this node: when it is started and replaced, and which orders it gets, by what is
 * wanted of the ranks. For launching.c and part_launch.c. Loop thread. */
#include "edge/starter.h"

#include "edge/hosted.h"
#include "gacc/v1/common.pb-c.h"

#include <stdio.h>
#include <string.h>

#define RETRY_NS (INT64_C(100) * 1000000) /* before a launcher is replaced; doubles */
#define MAX_DEATHS 5			  /* of launchers in a row */
/* a launcher that lived so long resets the count of deaths */
#define STEADY_NS (INT64_C(60) * 1000000000)

_Static_assert(LAUNCH_MAX_TAIL == LAUNCHED_MAX_TAIL, "the end of a log goes into a message");

/* ---- orders ---- */

static void end(struct starter *s)
{
	const bool again = s->asked == ASKED_END && s->grace_ns != s->wish.grace_ns;
	if ((s->asked < ASKED_END || again) && starter_order(s, LAUNCH_OP_END, NULL, 0)) {
		s->asked = ASKED_END;
		s->grace_ns = s->wish.grace_ns;
	}
}

static void allow(struct starter *s)
{
	if (s->summary.phase == LAUNCH_IDLE || (s->allowed == s->wish.allowed && s->final == s->wish.final) ||
	    !starter_order(s, LAUNCH_OP_ALLOW, NULL, 0))
		return;
	s->allowed = s->wish.allowed;
	s->final = s->wish.final;
}

static void run(struct starter *s)
{
	if (s->summary.phase == LAUNCH_IDLE && s->asked == ASKED_NOTHING)
		starter_start_ranks(s);
	else
		allow(s);
}

static void drain(struct starter *s)
{
	if (s->asked < ASKED_DRAIN && starter_order(s, LAUNCH_OP_DRAIN, NULL, 0))
		s->asked = ASKED_DRAIN;
}

/* What the launcher that is connected lacks of what is wanted. */
static void give_orders(struct starter *s)
{
	if (!s->proc || !s->heard)
		return;
	switch (s->wish.want) {
	case LAUNCH_WANT_NOTHING:
		break;
	case LAUNCH_WANT_RUN:
		run(s);
		break;
	case LAUNCH_WANT_DRAIN:
		drain(s);
		break;
	case LAUNCH_WANT_END:
		end(s);
		break;
	}
}

void starter_wish(struct starter *s, const struct launch_wish *w)
{
	s->wish = *w;
	give_orders(s);
}

/* ---- what the launcher's messages mean ---- */

static void say_exit_event(struct starter *s, uint32_t rank, const struct launch_rank *was,
			   const struct launch_rank *is)
{
	char exit[96], text[200];
	bool again = is->restarts != was->restarts;
	launch_say_exit(s->first + rank, was->pid ? was->pid : is->pid, is->exit_status, exit, sizeof(exit));
	snprintf(text, sizeof(text), "%s%s", exit, again ? "; it is started again" : "");
	s->ports->event(s->owner, is->exit_status != 0 && !s->ports->ended(s->owner),
			again ? "RankRestarted" : "RankExited", s->first + rank, text);
}

static void on_rank(void *arg, uint32_t rank, const struct launch_rank *is)
{
	struct starter *s = arg;
	if (rank >= s->n_ranks)
		return;
	struct launch_rank was = s->rank[rank];
	s->rank[rank] = *is;
	bool ended = was.state == LAUNCH_RANK_RUNNING && (is->state != LAUNCH_RANK_RUNNING || is->pid != was.pid);
	if (s->heard && ended)
		say_exit_event(s, rank, &was, is);
}

static void take_summary(struct starter *s, const struct launch_summary *is, const char *tail, uint32_t n_tail)
{
	for (uint32_t i = 0; is->phase == LAUNCH_IDLE && i < s->n_ranks; i++)
		s->rank[i].state = LAUNCH_RANK_WAITING; /* a new launcher: the old one's processes are gone */
	s->summary = *is;
	if (is->cause.known)
		s->summary.cause.rank += s->first;
	s->n_tail = n_tail;
	memcpy(s->tail, tail, n_tail);
	s->ended_ranks = is->phase == LAUNCH_OVER;
}

static void on_summary(void *arg, const struct launch_summary *is, const char *tail, uint32_t n_tail)
{
	struct starter *s = arg;
	bool cleans_up = is->phase == LAUNCH_IDLE && s->ports->ended(s->owner); /* it does not know how the ranks ended;
										    we do */
	if (!cleans_up)
		take_summary(s, is, tail, n_tail);
	s->heard = true;
	s->ports->changed(s->owner);
	give_orders(s);
}

/* ---- the launcher's life ---- */

/* It will be replaced, unless that has been tried too often. */
static void note_death(struct starter *s, struct now now)
{
	s->deaths = now.mono_ns - s->opened_ns > STEADY_NS ? 1 : s->deaths + 1;
	s->retry_ns = now.mono_ns + (RETRY_NS << s->deaths);
	s->done |= s->deaths >= MAX_DEATHS;
}

bool starter_gave_up(const struct starter *s, char *why, size_t n_why)
{
	if (s->deaths < MAX_DEATHS)
		return false;
	snprintf(why, n_why, "%d launchers in a row have died; gaccd's log may say why", MAX_DEATHS);
	return true;
}

static void on_gone(void *arg)
{
	struct starter *s = arg;
	int64_t pid = launch_proc_pid(s->proc);
	bool ordered = s->asked >= ASKED_DRAIN;
	bool left = starter_left_traces(s);
	s->proc = NULL;
	s->heard = false;
	s->asked = ASKED_NOTHING;
	s->allowed = 0;
	s->final = false;
	s->done = ordered && !left;
	s->ended_ranks |= ordered;
	if (!s->done && !s->d->node.stopping) {
		char text[160];
		snprintf(text, sizeof(text), "the launcher (pid %lld) is gone, and its ranks with it: %s",
			 (long long)pid,
			 ordered ? "another one ends what they have left behind" : "they are started again");
		s->ports->event(s->owner, true, "LauncherLost", -1, text);
		note_death(s, daemon_now(s->d));
	}
	s->ports->changed(s->owner);
}

enum status starter_open(struct starter *s, bool start)
{
	static const struct launch_proc_events events = { .rank = on_rank, .summary = on_summary, .gone = on_gone };
	struct launcher_args a = starter_args(s, s->uuid);
	struct now now = daemon_now(s->d);
	enum status st = launch_proc_open(&s->d->node.loop, &a, start, &events, s, &s->proc);
	s->opened_ns = now.mono_ns;
	s->retry_ns = 0;
	if (st && start)
		note_death(s, now);
	return st;
}

bool starter_left_traces(const struct starter *s)
{
	struct launcher_args a = starter_args(s, s->uuid);
	return launcher_left_traces(&a);
}

void starter_tick(struct starter *s, struct now now)
{
	if (s->done)
		return;
	if (!s->proc && s->retry_ns && now.mono_ns >= s->retry_ns)
		starter_open(s, true);
	give_orders(s);
}

/* ---- made and freed ---- */

/* An update of gaccd keeps the ranks of a job whose launcher an older one has started, and reads the notes of such a
 * launcher. */
static void choose_name(struct starter *s)
{
	uuid_text(s->job.uuid, s->uuid);
	if (!s->job.may_be_old || starter_left_traces(s))
		return;
	struct launcher_args by_id = starter_args(s, "");
	if (launcher_left_traces(&by_id))
		s->uuid[0] = '\0';
}

void starter_init(struct starter *s, struct daemon *d, const struct starter_job *job, uint32_t first, uint32_t n_ranks,
		  struct launch_rank *rank, const struct starter_ports *ports, void *owner)
{
	*s = (struct starter){ .d = d,
			       .next = d->starter,
			       .ports = ports,
			       .owner = owner,
			       .job = *job,
			       .first = first,
			       .n_ranks = n_ranks,
			       .rank = rank,
			       .wish = { .want = LAUNCH_WANT_NOTHING } };
	const Gacc__V1__JobSpec *spec = ports->spec(owner);
	s->default_logs = spec && !*spec->log_dir;
	choose_name(s);
	d->starter = s;
}

void starter_fini(struct starter *s)
{
	struct starter **at = &s->d->starter;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	launch_proc_close(s->proc);
	s->proc = NULL;
}

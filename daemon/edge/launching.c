/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that gaccd launches: when the launcher is started and replaced, the orders to it, and what its
 * messages mean for the job. For admission, the recovery after a restart, Cancel and the tick. Loop thread. */
#include "edge/launching.h"

#include "base/log.h"
#include "edge/hosted.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"
#include "host/log_tail.h"

#include <errno.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RETRY_NS (INT64_C(100) * 1000000) /* before a launcher is replaced; doubles */
#define MAX_DEATHS 5			  /* of launchers in a row */
/* a launcher that lived so long resets the count of deaths */
#define STEADY_NS (INT64_C(60) * 1000000000)
#define COMPLETED_NS (INT64_C(600) * 1000000000) /* in which the ranks of a completed job may exit on their own */
#define PUZZLED_NS (INT64_C(3) * 1000000000)

/* ---- users for whom gaccd may launch ---- */

static bool may_change_user(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct have[_LINUX_CAPABILITY_U32S_3];
	const uint32_t wanted = 1u << CAP_SETUID | 1u << CAP_SETGID;
	memset(have, 0, sizeof(have));
	return !syscall(SYS_capget, &head, have) && (have[0].effective & wanted) == wanted;
}

enum status launching_check(uint32_t uid, const char *user, bool local, char *why, size_t n_why)
{
	char self[64];
	hosted_user_name(geteuid(), self, sizeof(self));
	if (!local)
		snprintf(why, n_why, "launch: daemon needs a caller on the unix socket, whose user id is known");
	else if (!getpwuid(uid))
		snprintf(why, n_why, "launch: daemon: user id %u is not in this machine's user database", uid);
	else if (uid != geteuid() && !may_change_user())
		snprintf(why, n_why,
			 "gaccd runs as %s and may not start processes as %s: start the ranks yourself (launch: "
			 "external or "
			 "client), or have the drop-in gaccd-launch.conf installed (docs/operations.md)",
			 self, user);
	else
		return ST_OK;
	return ST_PERMISSION_DENIED;
}

/* ---- the order to start ---- */

static void make_dir_of(const char *path, mode_t mode)
{
	if ((!mkdir(path, mode) && !chmod(path, mode)) || errno == EEXIST)
		return;
	log_error("cannot make %s: %s", path, strerror(errno));
}

/* <state_dir>/logs/<job>-<uuid>, the submitter's; others may pass through what lies above. Failures show when a rank
 * opens its log. */
static void make_default_log_dir(const struct hosted *h, const char *dir)
{
	char logs[4200];
	struct stat st;
	const struct passwd *p = getpwuid(h->uid);
	snprintf(logs, sizeof(logs), "%s/logs", h->d->node.conf->state_dir);
	if (!stat(h->d->node.conf->state_dir, &st) && (st.st_mode & 0111) != 0111 &&
	    chmod(h->d->node.conf->state_dir, (st.st_mode & 07777) | 0111))
		log_error("chmod a+x %s: %s", h->d->node.conf->state_dir, strerror(errno));
	make_dir_of(logs, 0711);
	make_dir_of(dir, 0700);
	if (p && h->uid != geteuid() && lchown(dir, h->uid, p->pw_gid))
		log_error("chown %s: %s", dir, strerror(errno));
}

static void put_word(FILE *f, const char *word)
{
	fwrite(word, strlen(word) + 1, 1, f);
}

/* What follows a START; malloc'ed. */
static bool pack_words(const struct hosted *h, char **out, size_t *n)
{
	const Gacc__V1__Launch *c = h->text->pb->launch_command;
	char *here = *h->d->node.conf->listen.socket == '/' ? NULL : getcwd(NULL, 0), *dir = hosted_log_dir(h);
	FILE *f = open_memstream(out, n);
	if (!f || !dir) {
		free(here);
		free(dir);
		if (f)
			fclose(f);
		return false;
	}
	if (!*h->text->pb->log_dir)
		make_default_log_dir(h, dir);
	fprintf(f, "unix:%s%s%s%c", here ? here : "", here ? "/" : "", h->d->node.conf->listen.socket, '\0');
	put_word(f, c->working_dir);
	put_word(f, dir);
	for (size_t i = 0; i < c->n_command; i++)
		put_word(f, c->command[i]);
	for (size_t i = 0; i < c->n_environment; i++)
		fprintf(f, "%s=%s%c", c->environment[i]->key, c->environment[i]->value, '\0');
	free(here);
	free(dir);
	return !fclose(f);
}

static bool order(struct hosted *h, enum launch_op op, const void *words, size_t n)
{
	bool own_grace = op == LAUNCH_OP_END && h->launch->grace_ns;
	struct launch_order o = { .version = LAUNCH_CHANNEL_VERSION,
				  .op = op,
				  .job_id = h->id,
				  .n_ranks = h->spec->ranks,
				  .max_restarts = h->spec->launch.max_restarts,
				  .micro_size = h->spec->micro_size,
				  .uid = h->uid,
				  .change_user = may_change_user(),
				  .fresh = h->submitted_here,
				  .grace_ns = own_grace ? h->launch->grace_ns : h->spec->launch.grace_ns,
				  .log_level = (uint32_t)h->d->node.conf->log.level,
				  .log_format = (uint32_t)h->d->node.conf->log.format };
	o.log_max = h->launch->log_max = state_share_log_max(h);
	if (op == LAUNCH_OP_START) {
		o.n_command = (uint32_t)h->text->pb->launch_command->n_command;
		o.n_environment = (uint32_t)h->text->pb->launch_command->n_environment;
	}
	return launch_proc_order(h->launch->proc, &o, words, (uint32_t)n);
}

static void start_ranks(struct hosted *h)
{
	char *words = NULL;
	size_t n = 0;
	if (pack_words(h, &words, &n) && n <= LAUNCH_MAX_WORDS && order(h, LAUNCH_OP_START, words, n))
		h->launch->asked = ASKED_START;
	free(words); /* the tick tries again */
}

void launching_limit_logs(struct hosted *h, uint64_t bytes)
{
	struct launching *g = h->launch;
	uint64_t step = g->log_max / 8;
	if (g->proc && g->heard && g->asked == ASKED_START && (bytes + step < g->log_max || bytes > g->log_max + step))
		order(h, LAUNCH_OP_LOGS, NULL, 0);
}

/* ---- what the launcher's messages mean ---- */

static void fail_job(struct hosted *h, const char *text, struct now now)
{
	if (h->part)
		job_fail(h->part->job, ST_RANK_FAILED, text, now);
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
		if (g->asked < ASKED_DRAIN && order(h, LAUNCH_OP_DRAIN, NULL, 0))
			g->asked = ASKED_DRAIN;
	} else if (g->asked < ASKED_END && order(h, LAUNCH_OP_END, NULL, 0)) {
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
		order(h, LAUNCH_OP_END, NULL, 0);
}

static void decide(struct hosted *h, struct now now)
{
	struct launching *g = h->launch;
	if (!g->proc || !g->heard)
		return;
	if (hosted_ended(h))
		wind_up(h, now);
	else if (g->summary.phase == LAUNCH_IDLE && g->asked == ASKED_NOTHING)
		start_ranks(h);
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
	const struct rank_progress *p = job_progress(h->part->job, &n);
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
	bool known = g->heard && !hosted_ended(h) &&
		     (h->part->engine.proc ? h->part->engine.restarts.up
					   : !job_has_tensors(h->part->job) && !h->part->tensors.due);
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
	const struct rank_progress *p = job_progress(h->part->job, &n);
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

static struct launcher_args args_of(const struct hosted *h, const char *uuid)
{
	return (struct launcher_args){ .job_id = h->id,
				       .uuid = uuid,
				       .runtime_dir = h->d->node.conf->runtime_dir,
				       .orphan_ms = h->d->node.conf->launch.orphan_timeout_ms,
				       .descriptors = h->d->node.descriptors_before };
}

static bool left_traces(const struct hosted *h, const char *uuid)
{
	struct launcher_args a = args_of(h, uuid);
	return launcher_left_traces(&a);
}

static void on_gone(void *arg)
{
	struct hosted *h = arg;
	struct launching *g = h->launch;
	struct now now = daemon_now(h->d);
	int64_t pid = launch_proc_pid(g->proc);
	bool ordered = g->asked >= ASKED_DRAIN;
	bool left = left_traces(h, g->uuid);
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
	struct launcher_args a = args_of(h, h->launch->uuid);
	struct now now = daemon_now(h->d);
	enum status st = launch_proc_open(&h->d->node.loop, &a, start, &events, h, &h->launch->proc);
	h->launch->opened_ns = now.mono_ns;
	h->launch->retry_ns = 0;
	if (st && start)
		note_death(h, now);
	return st;
}

/* An update of gaccd keeps the ranks of a job whose launcher an older one has started, and reads the notes of such a
 * launcher. */
static void choose_name(struct hosted *h)
{
	uuid_text(h->uuid, h->launch->uuid);
	if (!h->submitted_here && !left_traces(h, h->launch->uuid) && left_traces(h, ""))
		h->launch->uuid[0] = '\0';
}

bool launching_make(struct hosted *h)
{
	struct launching *g = calloc(1, sizeof(*g));
	if (g)
		g->rank = calloc(h->spec->ranks, sizeof(*g->rank));
	if (!g || !g->rank) {
		free(g);
		return false;
	}
	for (uint32_t i = 0; i < h->spec->ranks; i++)
		g->rank[i].exit_status = LAUNCH_NO_STATUS;
	h->launch = g;
	choose_name(h);
	return true;
}

void launching_begin(struct hosted *h)
{
	if (launching_make(h))
		open_launcher(h, true);
	else
		job_fail(h->part->job, ST_NO_MEMORY, "no memory to launch its ranks", daemon_now(h->d));
}

bool launching_adopt(struct hosted *h)
{
	bool known = h->launch != NULL; /* how its ranks ended: launching_exits.c */
	if (!known && !launching_make(h))
		return false;
	bool clean_up = !h->coord && left_traces(h, h->launch->uuid);
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

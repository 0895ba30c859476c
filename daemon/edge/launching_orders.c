/* SPDX-License-Identifier: Apache-2.0 */
/* A job's launcher as gaccd addresses it: for whom one may be started, by which name it is found, which orders it gets.
 * For launching.c, and Submit. Loop thread. */
#include "edge/launching_impl.h"

#include "base/log.h"
#include "edge/hosted.h"
#include "edge/state_share.h"
#include "gacc/v1/common.pb-c.h"

#include <errno.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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
			 "external or client), or have the drop-in gaccd-launch.conf installed (docs/operations.md)",
			 self, user);
	else
		return ST_OK;
	return ST_PERMISSION_DENIED;
}

/* ---- by which name it is found ---- */

struct launcher_args launching_args(const struct hosted *h, const char *uuid)
{
	return (struct launcher_args){ .job_id = h->id,
				       .uuid = uuid,
				       .runtime_dir = h->d->node.conf->runtime_dir,
				       .orphan_ms = h->d->node.conf->launch.orphan_timeout_ms,
				       .descriptors = h->d->node.descriptors_before };
}

bool launching_left_traces(const struct hosted *h, const char *uuid)
{
	struct launcher_args a = launching_args(h, uuid);
	return launcher_left_traces(&a);
}

/* An update of gaccd keeps the ranks of a job whose launcher an older one has started, and reads the notes of such a
 * launcher. */
static void choose_name(struct hosted *h)
{
	uuid_text(h->uuid, h->launch->uuid);
	if (!h->submitted_here && !launching_left_traces(h, h->launch->uuid) && launching_left_traces(h, ""))
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

/* ---- orders ---- */

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
	put_word(f, "127.0.0.1");
	for (size_t i = 0; i < c->n_command; i++)
		put_word(f, c->command[i]);
	for (size_t i = 0; i < c->n_environment; i++)
		fprintf(f, "%s=%s%c", c->environment[i]->key, c->environment[i]->value, '\0');
	free(here);
	free(dir);
	return !fclose(f);
}

bool launching_order(struct hosted *h, enum launch_op op, const void *words, size_t n)
{
	bool own_grace = op == LAUNCH_OP_END && h->launch->grace_ns;
	struct launch_order o = { .version = LAUNCH_CHANNEL_VERSION,
				  .op = op,
				  .job_id = h->id,
				  .n_ranks = h->spec->ranks,
				  .max_restarts = h->spec->launch.max_restarts,
				  .final = 1,
				  .world = h->spec->ranks,
				  .n_groups = 1,
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

void launching_start_ranks(struct hosted *h)
{
	char *words = NULL;
	size_t n = 0;
	if (pack_words(h, &words, &n) && n <= LAUNCH_MAX_WORDS && launching_order(h, LAUNCH_OP_START, words, n))
		h->launch->asked = ASKED_START;
	free(words); /* the tick tries again */
}

void launching_limit_logs(struct hosted *h)
{
	const struct launching *g = h->launch;
	if (!state_share_has_logs(h) || !g->proc || !g->heard || g->asked != ASKED_START)
		return;
	uint64_t bytes = state_share_log_max(h), step = g->log_max / 8;
	if (bytes + step < g->log_max || bytes > g->log_max + step)
		launching_order(h, LAUNCH_OP_LOGS, NULL, 0);
}

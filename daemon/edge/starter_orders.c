/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher as gaccd addresses it: for whom one may be started, by which name it is found, which orders it gets. For
 * starter.c, Submit, and placements. Loop thread. */
#include "edge/starter.h"

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

enum status starter_check(uint32_t uid, const char *user, char *why, size_t n_why)
{
	char self[64];
	hosted_user_name(geteuid(), self, sizeof(self));
	if (!getpwuid(uid))
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

struct launcher_args starter_args(const struct starter *s, const char *uuid)
{
	return (struct launcher_args){ .job_id = s->job.id,
				       .uuid = uuid,
				       .runtime_dir = s->d->node.conf->runtime_dir,
				       .orphan_ms = s->d->node.conf->launch.orphan_timeout_ms,
				       .descriptors = s->d->node.descriptors_before };
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
static void make_default_log_dir(const struct starter *s, const char *dir)
{
	char logs[4200];
	struct stat st;
	const char *state_dir = s->d->node.conf->state_dir;
	const struct passwd *p = getpwuid(s->job.uid);
	snprintf(logs, sizeof(logs), "%s/logs", state_dir);
	if (!stat(state_dir, &st) && (st.st_mode & 0111) != 0111 && chmod(state_dir, (st.st_mode & 07777) | 0111))
		log_error("chmod a+x %s: %s", state_dir, strerror(errno));
	make_dir_of(logs, 0711);
	make_dir_of(dir, 0700);
	if (p && s->job.uid != geteuid() && lchown(dir, s->job.uid, p->pw_gid))
		log_error("chown %s: %s", dir, strerror(errno));
}

static void put_word(FILE *f, const char *word)
{
	fwrite(word, strlen(word) + 1, 1, f);
}

/* What follows a START; malloc'ed. */
static bool pack_words(const struct starter *s, const Gacc__V1__JobSpec *spec, char **out, size_t *n)
{
	const Gacc__V1__Launch *c = spec->launch_command;
	const char *socket = s->d->node.conf->listen.socket;
	char *here = *socket == '/' ? NULL : getcwd(NULL, 0);
	char *dir = starter_log_dir(s->d, s->job.id, s->job.spec->name, s->job.uuid, spec->log_dir);
	FILE *f = open_memstream(out, n);
	if (!f || !dir) {
		free(here);
		free(dir);
		if (f)
			fclose(f);
		return false;
	}
	if (!*spec->log_dir)
		make_default_log_dir(s, dir);
	fprintf(f, "unix:%s%s%s%c", here ? here : "", here ? "/" : "", socket, '\0');
	put_word(f, c->working_dir);
	put_word(f, dir);
	put_word(f, s->wish.master_addr);
	for (size_t i = 0; i < c->n_command; i++)
		put_word(f, c->command[i]);
	for (size_t i = 0; i < c->n_environment; i++)
		fprintf(f, "%s=%s%c", c->environment[i]->key, c->environment[i]->value, '\0');
	if (c->no_torch_env)
		put_word(f, LAUNCH_NO_TORCH);
	free(here);
	free(dir);
	return !fclose(f);
}

static uint64_t log_max(const struct starter *s)
{
	return s->default_logs ? state_share_log_max(s->d, s->job.uid, s->n_ranks) : s->d->node.conf->log.rank_max;
}

bool starter_order(struct starter *s, enum launch_op op, const void *words, size_t n)
{
	const struct launch_wish *w = &s->wish;
	const struct job_spec *spec = s->job.spec;
	const Gacc__V1__JobSpec *pb = op == LAUNCH_OP_START ? s->ports->spec(s->owner) : NULL;
	bool own_grace = op == LAUNCH_OP_END && w->grace_ns;
	struct launch_order o = { .version = LAUNCH_CHANNEL_VERSION,
				  .op = op,
				  .job_id = s->job.id,
				  .n_ranks = s->n_ranks,
				  .max_restarts = w->allowed,
				  .final = w->final,
				  .first = s->first,
				  .world = spec->ranks,
				  .group = w->group,
				  .n_groups = w->n_groups,
				  .master_port = w->master_port,
				  .micro_size = spec->micro_size,
				  .uid = s->job.uid,
				  .change_user = may_change_user(),
				  .fresh = w->fresh,
				  .grace_ns = own_grace ? w->grace_ns : spec->launch.grace_ns,
				  .log_level = (uint32_t)s->d->node.conf->log.level,
				  .log_format = (uint32_t)s->d->node.conf->log.format };
	o.log_max = s->log_max = log_max(s);
	if (op == LAUNCH_OP_START) {
		o.n_command = (uint32_t)pb->launch_command->n_command;
		o.n_environment = (uint32_t)pb->launch_command->n_environment + !!pb->launch_command->no_torch_env;
	}
	return launch_proc_order(s->proc, &o, words, (uint32_t)n);
}

void starter_start_ranks(struct starter *s)
{
	const Gacc__V1__JobSpec *spec = s->ports->spec(s->owner);
	char *words = NULL;
	size_t n = 0;
	if (spec && pack_words(s, spec, &words, &n) && n <= LAUNCH_MAX_WORDS &&
	    starter_order(s, LAUNCH_OP_START, words, n)) {
		s->asked = ASKED_START;
		s->allowed = s->wish.allowed;
		s->final = s->wish.final;
	}
	free(words); /* the tick tries again */
}

void starter_limit_logs(struct starter *s)
{
	if (!state_share_has_logs(s) || !s->proc || !s->heard || s->asked != ASKED_START)
		return;
	uint64_t bytes = log_max(s), step = s->log_max / 8;
	if (bytes + step < s->log_max || bytes > s->log_max + step)
		starter_order(s, LAUNCH_OP_LOGS, NULL, 0);
}

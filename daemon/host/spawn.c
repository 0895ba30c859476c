/* SPDX-License-Identifier: Apache-2.0 */
/* Starts child processes with posix_spawn, which does not copy gaccd's page tables, and reports the end of each from
 * a SIGCHLD handler of the loop. For engines and launchers; loop thread. */
#include "host/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <uv.h>

struct spawned {
	uv_signal_t on_child; /* of all children: each looks for its own */
	pid_t pid;
	void (*exited)(void *arg, int64_t status, int signal);
	void *arg;
};

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

void spawned_let_go(struct spawned *s)
{
	if (s && !uv_is_closing((uv_handle_t *)&s->on_child))
		uv_close((uv_handle_t *)&s->on_child, on_closed);
}

int64_t spawned_pid(const struct spawned *s)
{
	return s->pid;
}

static void on_sigchld(uv_signal_t *h, int signum)
{
	struct spawned *s = h->data;
	int status;
	if (waitpid(s->pid, &status, WNOHANG) != s->pid)
		return;
	spawned_let_go(s);
	s->exited(s->arg, WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static int set_attributes(posix_spawnattr_t *a, bool detached)
{
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	int flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | (detached ? POSIX_SPAWN_SETSID : 0);
	int err = posix_spawnattr_setsigdefault(a, &all);
	if (!err)
		err = posix_spawnattr_setsigmask(a, &none);
	return err ? err : posix_spawnattr_setflags(a, (short)flags);
}

static int set_files(posix_spawn_file_actions_t *f, int fd)
{
	int err = posix_spawn_file_actions_addopen(f, 0, "/dev/null", O_RDONLY, 0);
	if (!err)
		err = posix_spawn_file_actions_addopen(f, 1, "/dev/null", O_WRONLY, 0);
	if (!err)
		err = posix_spawn_file_actions_adddup2(f, 2, 2);
	return err ? err : posix_spawn_file_actions_adddup2(f, fd, SPAWN_FD);
}

/* 0, or errno. */
static int start(struct spawned *s, const struct spawn_opts *o)
{
	posix_spawnattr_t attributes;
	posix_spawn_file_actions_t files;
	int err = posix_spawnattr_init(&attributes);
	if (err)
		return err;
	err = posix_spawn_file_actions_init(&files);
	if (!err) {
		err = set_attributes(&attributes, o->detached);
		if (!err)
			err = set_files(&files, o->fd);
		if (!err)
			err = posix_spawn(&s->pid, o->file, &files, &attributes, o->args, o->env);
		posix_spawn_file_actions_destroy(&files);
	}
	posix_spawnattr_destroy(&attributes);
	return err;
}

int spawn_child(void *loop, const struct spawn_opts *o, struct spawned **out)
{
	struct spawned *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->exited = o->exited;
	s->arg = o->arg;
	uv_signal_init(loop, &s->on_child);
	s->on_child.data = s;
	/* before there is a child: its end must not be missed */
	int err = -uv_signal_start(&s->on_child, on_sigchld, SIGCHLD);
	if (!err)
		err = start(s, o);
	if (err) {
		spawned_let_go(s);
		return -err;
	}
	if (o->detached)
		uv_unref((uv_handle_t *)&s->on_child);
	*out = s;
	return 0;
}

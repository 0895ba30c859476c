/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of `gaccctl cluster`: finding it, starting its gaccd, and checking whether the process in
 * cluster.json still is that gaccd. gaccctl's main thread. */
#include "cluster.h"

#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATE_FILE "cluster.json"
#define PATH_ROOM 128
#define NFTW_DESCRIPTORS 16

/* It becomes part of an endpoint, and of a line for the shell. */
static bool is_plain(const char *path)
{
	return !path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@,=")];
}

bool cluster_place(struct invocation *inv, struct cluster *c, int *st)
{
	const char *dir = opt(inv, "dir"), *runtime = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
	int n;

	*c = (struct cluster){ 0 };
	if (dir)
		n = snprintf(c->dir, sizeof(c->dir), "%s", dir);
	else if (runtime && *runtime == '/')
		n = snprintf(c->dir, sizeof(c->dir), "%s/gacc-cluster", runtime);
	else
		n = snprintf(c->dir, sizeof(c->dir), "%s/gacc-cluster-%u", tmp && *tmp == '/' ? tmp : "/tmp",
			     (unsigned)getuid());
	if (n >= (int)sizeof(c->dir) || c->dir[0] != '/') {
		*st = fail_usage(inv, "--dir %s: an absolute path of less than %zu bytes is needed", c->dir,
				 sizeof(c->dir));
		return false;
	}
	if (!is_plain(c->dir)) {
		*st = fail_usage(inv, "--dir %s: only letters, digits and /._-+@,= may be in it", c->dir);
		return false;
	}
	snprintf(c->socket, sizeof(c->socket), "%s/gaccd.sock", c->dir);
	snprintf(c->endpoint, sizeof(c->endpoint), "unix:%s", c->socket);
	return true;
}

static void path_in(const struct cluster *c, const char *name, char out[PATH_ROOM])
{
	snprintf(out, PATH_ROOM, "%s/%s", c->dir, name);
}

bool cluster_load(struct cluster *c)
{
	json_int_t pid, start;
	char path[PATH_ROOM];
	json_t *state;
	bool ok;

	path_in(c, STATE_FILE, path);
	state = json_load_file(path, 0, NULL);
	ok = state && !json_unpack(state, "{s:I, s:I}", "pid", &pid, "start", &start) && pid > 0 && start > 0;
	if (ok) {
		c->pid = (pid_t)pid;
		c->start = (uint64_t)start;
	}
	json_decref(state);
	return ok;
}

int cluster_save(const struct cluster *c)
{
	json_t *state = json_pack("{s:I, s:I, s:s}", "pid", (json_int_t)c->pid, "start", (json_int_t)c->start,
				  "endpoint", c->endpoint);
	char path[PATH_ROOM], temporary[PATH_ROOM];
	int err = ENOMEM;

	path_in(c, STATE_FILE, path);
	path_in(c, STATE_FILE ".new", temporary);
	errno = ENOMEM;
	if (state)
		err = json_dump_file(state, temporary, 0) || rename(temporary, path) ? errno : 0;
	json_decref(state);
	return err;
}

/* When a process started, in clock ticks since boot; 0: there is no such process. The 22nd field of stat(5). */
static uint64_t start_of(pid_t pid)
{
	char path[32], text[1024], *p;
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	p = strrchr(text, ')'); /* the name before it may hold anything */
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

/* The descriptor first: from then on the number cannot become another's. */
int cluster_process(const struct cluster *c)
{
	int fd = c->pid > 0 ? (int)syscall(SYS_pidfd_open, c->pid, 0) : -1;

	if (fd >= 0 && start_of(c->pid) != c->start) {
		close(fd);
		return -1;
	}
	return fd;
}

int cluster_make_dir(const struct cluster *c)
{
	struct stat st;

	if (!mkdir(c->dir, 0700))
		return 0;
	if (errno != EEXIST || lstat(c->dir, &st))
		return errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) ? 0 : EPERM;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

int cluster_remove(const struct cluster *c)
{
	return nftw(c->dir, remove_one, NFTW_DESCRIPTORS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) ? errno : 0;
}

/* ---- start ---- */

/* Our environment with TMPDIR=dir: the supervisor's socket belongs there, too. NULL without memory; the last string and
 * the list are the caller's. */
static char **environment_in(const char *dir)
{
	size_t n = 0, kept = 0;
	char **list;

	while (environ[n])
		n++;
	list = calloc(n + 2, sizeof(*list));
	for (size_t i = 0; list && i < n; i++)
		if (strncmp(environ[i], "TMPDIR=", 7) != 0)
			list[kept++] = environ[i];
	if (list && asprintf(&list[kept], "TMPDIR=%s", dir) < 0) {
		free(list);
		return NULL;
	}
	return list;
}

static int spawn(char **argv, char **envp, const char *log, pid_t *out)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int err;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	err = posix_spawnp(out, argv[0], &actions, &attr, argv, envp);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return err;
}

int cluster_spawn(struct cluster *c, const char *gaccd)
{
	char config[PATH_ROOM], log[PATH_ROOM], socket[160], state[160], runtime[160];
	const char *argv[] = { gaccd, "--supervise", "--config", config,  "--set",	     socket, "--set",
			       state, "--set",	     runtime,	 "--set", "log.format=text", NULL };
	char **envp, **last;
	FILE *f;
	int err;

	path_in(c, "gaccd.yaml", config); /* an empty one: the node's own is for its own gaccd */
	path_in(c, "log", log);
	snprintf(socket, sizeof(socket), "listen.socket=%s", c->socket);
	snprintf(state, sizeof(state), "state_dir=%s/state", c->dir);
	snprintf(runtime, sizeof(runtime), "runtime_dir=%s/run", c->dir);
	f = fopen(config, "we");
	if (!f || fclose(f))
		return errno;
	envp = environment_in(c->dir);
	if (!envp)
		return ENOMEM;
	err = spawn((char **)(uintptr_t)argv, envp, log, &c->pid);
	for (last = envp; last[1];)
		last++;
	free(*last);
	free(envp);
	if (!err)
		c->start = start_of(c->pid);
	return err;
}

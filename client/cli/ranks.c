/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, reaps and signals the rank processes of `gaccctl run`, each the leader of a process group, with its output
 * in a log file that gaccctl follows. gaccctl's main thread. */
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define VARIABLES 13
#define VARIABLE_MAX 4200

/* ---- environment ---- */

/* The names that we set: ours of the same name are left out. */
static const char *const set_names[] = {
	"RANK",
	"LOCAL_RANK",
	"GACC_RANK",
	"GACC_RESTART_COUNT",
	"WORLD_SIZE",
	"LOCAL_WORLD_SIZE",
	"GACC_WORLD_SIZE",
	"GROUP_RANK",
	"MASTER_ADDR",
	"MASTER_PORT",
	"GACC_JOB_ID",
	"GACC_ENDPOINT",
	"GACC_MICRO_SIZE",
	"GACC_LOG_DIR",
};
/* Left out besides with no_torch: a launcher around gaccctl has set them. */
static const char *const torch_names[] = {
	"GROUP_WORLD_SIZE",	     "NODE_RANK",	    "ROLE_RANK",
	"ROLE_WORLD_SIZE",	     "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
	"TORCHELASTIC_MAX_RESTARTS",
};

static bool is_one_of(const char *variable, const char *const *names, size_t n_names)
{
	size_t n = strcspn(variable, "=");

	for (size_t i = 0; i < n_names; i++)
		if (strlen(names[i]) == n && !strncmp(names[i], variable, n))
			return true;
	return false;
}

static bool is_left_out(const char *variable, bool no_torch)
{
	return is_one_of(variable, set_names, sizeof(set_names) / sizeof(set_names[0])) ||
	       (no_torch && is_one_of(variable, torch_names, sizeof(torch_names) / sizeof(torch_names[0])));
}

static bool add(char **list, size_t *n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static bool add(char **list, size_t *n, const char *fmt, ...)
{
	va_list ap;
	int length;

	va_start(ap, fmt);
	length = vasprintf(&list[*n], fmt, ap);
	va_end(ap);
	if (length < 0)
		list[*n] = NULL;
	return length >= 0 && ++*n;
}

/* As torchrun sets them. */
static bool add_torch(char **list, size_t *n, const struct rank_environment *e)
{
	return add(list, n, "WORLD_SIZE=%u", e->ranks) && add(list, n, "LOCAL_WORLD_SIZE=%u", e->ranks) &&
	       add(list, n, "GROUP_RANK=0") && add(list, n, "MASTER_ADDR=127.0.0.1") &&
	       add(list, n, "MASTER_PORT=%u", e->master_port);
}

static bool add_common(char **list, size_t *n, const struct rank_environment *e, bool omp, bool python)
{
	return (e->no_torch || add_torch(list, n, e)) && add(list, n, "GACC_WORLD_SIZE=%u", e->ranks) &&
	       add(list, n, "GACC_JOB_ID=%llu", (unsigned long long)e->job_id) &&
	       add(list, n, "GACC_ENDPOINT=%s", e->endpoint) && add(list, n, "GACC_MICRO_SIZE=%u", e->micro_size) &&
	       add(list, n, "GACC_LOG_DIR=%s", e->log_dir) && (!omp || add(list, n, "OMP_NUM_THREADS=1")) &&
	       (!python || add(list, n, "PYTHONUNBUFFERED=1"));
}

char **rank_environment(char *const *ours, const struct rank_environment *e)
{
	size_t n_ours = 0, n = 0;
	bool omp = true, python = true, ok = true;
	char **list;

	while (ours[n_ours])
		n_ours++;
	list = calloc(n_ours + VARIABLES, sizeof(*list));
	if (!list)
		return NULL;
	for (size_t i = 0; i < n_ours && ok; i++) {
		omp = omp && strncmp(ours[i], "OMP_NUM_THREADS=", 16) != 0;
		python = python && strncmp(ours[i], "PYTHONUNBUFFERED=", 17) != 0;
		if (!is_left_out(ours[i], e->no_torch))
			ok = add(list, &n, "%s", ours[i]);
	}
	if (!ok || !add_common(list, &n, e, omp, python)) {
		rank_environment_free(list);
		return NULL;
	}
	return list;
}

void rank_environment_free(char **list)
{
	for (char **p = list; p && *p; p++)
		free(*p);
	free(list);
}

size_t rank_variables(uint32_t rank, int restarts, bool no_torch, char out[RANK_VARIABLES][RANK_VARIABLE_MAX])
{
	size_t n = 0;

	snprintf(out[n++], RANK_VARIABLE_MAX, "GACC_RANK=%u", rank);
	snprintf(out[n++], RANK_VARIABLE_MAX, "GACC_RESTART_COUNT=%d", restarts);
	if (no_torch)
		return n;
	snprintf(out[n++], RANK_VARIABLE_MAX, "RANK=%u", rank);
	snprintf(out[n++], RANK_VARIABLE_MAX, "LOCAL_RANK=%u", rank);
	return n;
}

/* ---- start ---- */

/* posix_spawn and not fork: gRPC's threads make a forked copy of this process unusable. */
static int spawn(char **argv, char **envp, int log, pid_t *out)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int err;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, log, 1);
	posix_spawn_file_actions_adddup2(&actions, log, 2);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setpgroup(&attr, 0);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	err = posix_spawn(out, "/proc/self/exe", &actions, &attr, argv, envp);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return err;
}

static size_t length_of(char *const *list)
{
	size_t n = 0;

	while (list[n])
		n++;
	return n;
}

/* `gaccctl --exec-rank PID program...` with the environment of this rank. */
static int start(struct ranks *r, uint32_t rank, int log)
{
	size_t n_args = length_of(r->argv), n_common = length_of(r->common);
	char variables[RANK_VARIABLES][RANK_VARIABLE_MAX], parent[24];
	static char self[] = "gaccctl", flag[] = "--exec-rank";
	char **argv = calloc(n_args + 4, sizeof(*argv));
	char **envp = calloc(n_common + RANK_VARIABLES + 1, sizeof(*envp));
	int err = ENOMEM;

	if (argv && envp) {
		snprintf(parent, sizeof(parent), "%d", (int)getpid());
		argv[0] = self;
		argv[1] = flag;
		argv[2] = parent;
		memcpy(argv + 3, r->argv, n_args * sizeof(*argv));
		memcpy(envp, r->common, n_common * sizeof(*envp));
		const size_t n = rank_variables(rank, r->rank[rank].restarts, r->no_torch, variables);

		for (size_t i = 0; i < n; i++)
			envp[n_common + i] = variables[i];
		err = spawn(argv, envp, log, &r->rank[rank].pid);
	}
	free(argv);
	free(envp);
	return err;
}

int ranks_start(struct ranks *r, uint32_t rank)
{
	char path[VARIABLE_MAX];
	int log, err;

	snprintf(path, sizeof(path), "%s/worker_%u.log", r->log_dir, rank);
	log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (r->rank[rank].restarts ? 0 : O_TRUNC), 0644);
	if (log < 0)
		return errno;
	err = start(r, rank, log);
	close(log);
	if (err) {
		r->rank[rank].pid = 0;
		return err;
	}
	r->rank[rank].last_pid = r->rank[rank].pid;
	r->rank[rank].ended = false;
	return 0;
}

int exec_rank(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	/* the parent may have died before the request took effect */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != (pid_t)atol(argv[2]))
		return 1;
	execvp(argv[3], argv + 3);
	fprintf(stderr, "gaccctl: cannot run %s: %s\n", argv[3], strerror(errno));
	return errno == ENOENT ? 127 : 126;
}

/* ---- end ---- */

static void note_end(struct rank_process *p, int status)
{
	p->pid = 0;
	p->ended = true;
	p->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	p->status = p->signal ? 128 + p->signal : WEXITSTATUS(status);
}

bool ranks_reap(struct ranks *r, uint32_t *out_rank)
{
	for (uint32_t i = 0; i < r->n; i++) {
		pid_t pid = r->rank[i].pid;
		siginfo_t info = { 0 };
		int status = 0;

		if (!pid || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
			continue;
		/* what the rank has started and left behind; while it is a zombie, its number is its own */
		kill(-pid, SIGKILL);
		waitpid(pid, &status, 0);
		note_end(&r->rank[i], status);
		*out_rank = i;
		return true;
	}
	return false;
}

void ranks_signal(const struct ranks *r, int signal)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->rank[i].pid)
			kill(-r->rank[i].pid, signal);
}

uint32_t ranks_running(const struct ranks *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n; i++)
		n += r->rank[i].pid != 0;
	return n;
}

void ranks_fini(struct ranks *r)
{
	ranks_signal(r, SIGKILL);
	for (uint32_t i = 0; i < r->n; i++)
		if (r->rank[i].pid)
			waitpid(r->rank[i].pid, NULL, 0);
	rank_environment_free(r->common);
	free(r->rank);
	*r = (struct ranks){ 0 };
}

uint16_t free_port(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint16_t port = 0;

	if (fd < 0)
		return 0;
	if (!bind(fd, (struct sockaddr *)&addr, n) && !getsockname(fd, (struct sockaddr *)&addr, &n))
		port = ntohs(addr.sin_port);
	close(fd);
	return port;
}

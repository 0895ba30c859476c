/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes a START order: the program, the ranks' user, and the environment of each rank. The launcher's only thread;
 * its children read the result after fork(). */
#include "launch/start.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define OUR_VARIABLES 32
#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

/* ---- the order ---- */

/* The next string of the words; NULL: there is none. */
static char *next_word(char **at, const char *end)
{
	char *word = *at;
	char *nul = word < end ? memchr(word, '\0', (size_t)(end - word)) : NULL;
	if (!nul)
		return NULL;
	*at = nul + 1;
	return word;
}

static bool take_list(char **at, const char *end, uint32_t n, char ***out)
{
	char **list = *out = calloc((size_t)n + 1, sizeof(*list));
	for (uint32_t i = 0; list && i < n; i++)
		if (!(list[i] = next_word(at, end)))
			return false;
	return list != NULL;
}

static bool take_words(struct launch_start *s, const char *words, size_t n)
{
	s->words = malloc(n + 1);
	if (!s->words)
		return false;
	memcpy(s->words, words, n);
	char *at = s->words, *end = s->words + n;
	s->endpoint = next_word(&at, end);
	s->working_dir = next_word(&at, end);
	s->log_dir = next_word(&at, end);
	s->master_addr = next_word(&at, end);
	return s->endpoint && s->working_dir && s->log_dir && s->master_addr && s->order.n_command &&
	       s->order.n_command < n && s->order.n_environment < n &&
	       take_list(&at, end, s->order.n_command, &s->command) &&
	       take_list(&at, end, s->order.n_environment, &s->environment);
}

/* Who the user is: asked here once, as the database may block, and not in a child. */
static enum status find_user(struct launch_start *s)
{
	errno = 0;
	const struct passwd *p = getpwuid(s->order.uid);
	if (!p) {
		log_job(s->order.job_id, LOG_ERROR, "LaunchUser", "uid %u is not in the user database%s%s",
			s->order.uid, errno ? ": " : "", errno ? strerror(errno) : "");
		return ST_PERMISSION_DENIED;
	}
	s->user = strdup(p->pw_name);
	s->home = strdup(p->pw_dir);
	s->shell = strdup(*p->pw_shell ? p->pw_shell : "/bin/sh");
	s->gid = p->pw_gid;
	s->n_groups = LAUNCH_MAX_GROUPS;
	if (s->user && getgrouplist(s->user, s->gid, s->group, &s->n_groups) < 0)
		s->n_groups = LAUNCH_MAX_GROUPS; /* the first ones */
	return s->user && s->home && s->shell ? ST_OK : ST_NO_MEMORY;
}

/* A TCP port of the loopback interface that is free right now, for what the ranks may want to say to each other; 0:
 * none. */
static uint16_t free_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&at, n) && !getsockname(fd, (struct sockaddr *)&at, &n);
	if (fd >= 0)
		close(fd);
	return ok ? ntohs(at.sin_port) : 0;
}

enum status launch_start_parse(const void *packet, size_t n, struct launch_start *out)
{
	struct launch_start s = { .order = { .version = 0 } };
	enum status st = ST_MALFORMED;
	if (n >= sizeof(s.order))
		memcpy(&s.order, packet, sizeof(s.order));
	if (n < sizeof(s.order) || !s.order.n_ranks || s.order.n_ranks > SPEC_MAX_RANKS ||
	    s.order.world > SPEC_MAX_RANKS || s.order.first > s.order.world ||
	    s.order.n_ranks > s.order.world - s.order.first || s.order.master_port > UINT16_MAX ||
	    !take_words(&s, (const char *)packet + sizeof(s.order), n - sizeof(s.order))) {
		log_error("an order to start ranks that cannot be read (%zu bytes)", n);
		goto fail;
	}
	st = find_user(&s);
	if (st)
		goto fail;
	void *shared = mmap(NULL, s.order.n_ranks * sizeof(*s.reason), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	st = shared == MAP_FAILED ? ST_NO_MEMORY : ST_OK;
	if (st)
		goto fail;
	s.reason = shared;
	s.master_port = s.order.master_port ? (uint16_t)s.order.master_port : free_port();
	*out = s;
	return ST_OK;
fail:
	launch_start_fini(&s);
	return st;
}

void launch_start_fini(struct launch_start *s)
{
	if (s->reason)
		munmap(s->reason, s->order.n_ranks * sizeof(*s->reason));
	free(s->words);
	free(s->command);
	free(s->environment);
	free(s->user);
	free(s->home);
	free(s->shell);
	*s = (struct launch_start){ .words = NULL };
}

/* ---- the environment ---- */

static size_t name_length(const char *variable)
{
	return strcspn(variable, "=");
}

/* A later variable takes the place of an earlier one of its name. */
static bool put(char **list, size_t *n, char *variable)
{
	if (!variable)
		return false;
	size_t length = name_length(variable) + 1;
	for (size_t i = 0; i < *n; i++)
		if (!strncmp(list[i], variable, length)) {
			free(list[i]);
			list[i] = variable;
			return true;
		}
	list[(*n)++] = variable;
	return true;
}

static bool putf(char **list, size_t *n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static bool putf(char **list, size_t *n, const char *fmt, ...)
{
	char *variable;
	va_list ap;
	va_start(ap, fmt);
	int length = vasprintf(&variable, fmt, ap);
	va_end(ap);
	return length >= 0 && put(list, n, variable);
}

static bool put_user(const struct launch_start *s, char **list, size_t *n)
{
	return putf(list, n, "PATH=" DEFAULT_PATH) && putf(list, n, "HOME=%s", s->home) &&
	       putf(list, n, "USER=%s", s->user) && putf(list, n, "SHELL=%s", s->shell) &&
	       putf(list, n, "LANG=C.UTF-8") && putf(list, n, "OMP_NUM_THREADS=1") &&
	       putf(list, n, "PYTHONUNBUFFERED=1"); /* output of Python goes to the log at once */
}

/* As torchrun sets them. */
static bool put_rank(const struct launch_start *s, uint32_t rank, uint32_t restarts, char **list, size_t *n)
{
	const struct launch_order *o = &s->order;
	return putf(list, n, "RANK=%u", o->first + rank) && putf(list, n, "WORLD_SIZE=%u", o->world) &&
	       putf(list, n, "LOCAL_RANK=%u", rank) && putf(list, n, "LOCAL_WORLD_SIZE=%u", o->n_ranks) &&
	       putf(list, n, "GROUP_RANK=%u", o->group) && putf(list, n, "GROUP_WORLD_SIZE=%u", o->n_groups) &&
	       putf(list, n, "NODE_RANK=%u", o->group) && putf(list, n, "MASTER_ADDR=%s", s->master_addr) &&
	       putf(list, n, "MASTER_PORT=%u", s->master_port) &&
	       putf(list, n, "TORCHELASTIC_RESTART_COUNT=%u", restarts) &&
	       putf(list, n, "TORCHELASTIC_RUN_ID=%llu", (unsigned long long)o->job_id);
}

/* A library that finds those variables would start torch.distributed. */
static bool is_without_torch(const struct launch_start *s)
{
	for (uint32_t i = 0; i < s->order.n_environment; i++)
		if (!strcmp(s->environment[i], LAUNCH_NO_TORCH))
			return true;
	return false;
}

static bool put_gacc(const struct launch_start *s, uint32_t rank, uint32_t restarts, char **list, size_t *n)
{
	const struct launch_order *o = &s->order;
	return putf(list, n, "GACC_JOB_ID=%llu", (unsigned long long)o->job_id) &&
	       putf(list, n, "GACC_RANK=%u", o->first + rank) && putf(list, n, "GACC_WORLD_SIZE=%u", o->world) &&
	       putf(list, n, "GACC_ENDPOINT=%s", s->endpoint) && putf(list, n, "GACC_MICRO_SIZE=%u", o->micro_size) &&
	       putf(list, n, "GACC_RESTART_COUNT=%u", restarts) && putf(list, n, "GACC_LOG_DIR=%s", s->log_dir);
}

char **launch_environment(const struct launch_start *s, uint32_t rank, uint32_t restarts)
{
	size_t n = 0;
	char **list = calloc((size_t)s->order.n_environment + OUR_VARIABLES, sizeof(*list));
	bool ok = list && put_user(s, list, &n);
	for (uint32_t i = 0; ok && i < s->order.n_environment; i++)
		ok = put(list, &n, strdup(s->environment[i]));
	if (ok && (is_without_torch(s) || put_rank(s, rank, restarts, list, &n)) &&
	    put_gacc(s, rank, restarts, list, &n))
		return list;
	launch_environment_free(list);
	return NULL;
}

void launch_environment_free(char **list)
{
	for (char **v = list; v && *v; v++)
		free(*v);
	free(list);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define VARIABLE "GACC_FAILPOINTS_FILE"
#define NAME_MAX_BYTES 40
#define SLEEP_MS 100

enum action { ACTION_NONE, ACTION_CRASH, ACTION_ERROR, ACTION_SLEEP, ACTION_STOP, ACTION_COUNT };
static const char *const action_name[ACTION_COUNT] = { "none", "crash", "error", "sleep", "stop" };

static const struct {
	const char *process, *name, *where;
	enum status error; /* ST_OK: it has none */
} point[FAILPOINT_COUNT] = {
#define PLAIN(process_, name_, where_) { #process_, #name_, where_, ST_OK },
#define ERROR(process_, name_, status_, where_) { #process_, #name_, where_, ST_##status_ },
	FAILPOINT_TABLE(PLAIN, ERROR)
#undef PLAIN
#undef ERROR
};

/* One point in the shared file. The action is written last, so that whoever sees it sees the rest. */
struct shared {
	char name[NAME_MAX_BYTES];
	_Atomic uint32_t action, ms, skip, left;
	_Atomic uint64_t hits, fired;
	_Atomic int64_t pid; /* where it fired last */
};

static struct shared *shared; /* NULL: no file */
static pthread_once_t once = PTHREAD_ONCE_INIT;
#define SHARED_BYTES (FAILPOINT_COUNT * sizeof(struct shared))

static struct shared *map(int fd)
{
	void *p = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* Of this build: the same points in the same order. */
static bool is_ours(const struct shared *s)
{
	for (int i = 0; i < FAILPOINT_COUNT; i++)
		if (strncmp(s[i].name, point[i].name, NAME_MAX_BYTES) != 0)
			return false;
	return true;
}

static void map_by_environment(void)
{
	const char *path = getenv(VARIABLE);
	struct stat st;
	int fd = path && !shared ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && st.st_size == (off_t)SHARED_BYTES)
		shared = map(fd);
	close(fd);
	if (shared && !is_ours(shared)) {
		munmap(shared, SHARED_BYTES);
		shared = NULL;
	}
}

enum status failpoint_make(const char *dir)
{
	char path[4096];
	struct stat st;
	const char *given = getenv(VARIABLE);
	snprintf(path, sizeof(path), "%s%s", given ? given : dir, given ? "" : "/failpoints");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct shared *s = NULL;
	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_size == (off_t)SHARED_BYTES || ftruncate(fd, SHARED_BYTES) == 0))
		s = map(fd);
	if (fd >= 0)
		close(fd);
	if (!s || setenv(VARIABLE, path, 1))
		return ST_IO_ERROR;
	if (!is_ours(s)) {
		memset(s, 0, SHARED_BYTES);
		for (int i = 0; i < FAILPOINT_COUNT; i++)
			snprintf(s[i].name, NAME_MAX_BYTES, "%s", point[i].name);
	}
	shared = s;
	return ST_OK;
}

char *failpoint_environment(void)
{
	static char text[4096 + sizeof(VARIABLE) + 1];
	const char *path = getenv(VARIABLE);
	if (!path)
		return NULL;
	snprintf(text, sizeof(text), VARIABLE "=%s", path);
	return text;
}

/* Takes one of *n, if there is one. */
static bool take(_Atomic uint32_t *n)
{
	uint32_t was = atomic_load(n);
	while (was && !atomic_compare_exchange_weak(n, &was, was - 1))
		;
	return was != 0;
}

static void sleep_ms(uint32_t ms)
{
	struct timespec left = { ms / 1000, (long)(ms % 1000) * 1000000 };
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

enum status failpoint_pass(enum failpoint p)
{
	pthread_once(&once, map_by_environment);
	if (!shared)
		return ST_OK;
	struct shared *s = &shared[p];
	atomic_fetch_add(&s->hits, 1);
	uint32_t action = atomic_load(&s->action);
	if (action == ACTION_NONE || take(&s->skip) || !take(&s->left))
		return ST_OK;
	atomic_store(&s->pid, getpid());
	atomic_fetch_add(&s->fired, 1);
	switch (action) {
	case ACTION_CRASH:
		raise(SIGKILL);
		break;
	case ACTION_STOP: /* to this thread: it goes no further before the process has stopped */
		raise(SIGSTOP);
		break;
	case ACTION_SLEEP:
		sleep_ms(atomic_load(&s->ms));
		break;
	case ACTION_ERROR:
		return point[p].error;
	default:
		break;
	}
	return ST_OK;
}

/* ---- the words of the socket ---- */

struct answer {
	char *out;
	size_t n, used;
};

__attribute__((format(printf, 2, 3))) static void say(struct answer *a, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(a->out + a->used, a->n - a->used, fmt, ap);
	va_end(ap);
	if (n > 0)
		a->used = a->used + (size_t)n < a->n ? a->used + (size_t)n : a->n - 1;
}

static int find(const char *name)
{
	for (int i = 0; i < FAILPOINT_COUNT; i++)
		if (strcmp(point[i].name, name) == 0)
			return i;
	return -1;
}

static void say_list(struct answer *a)
{
	for (int i = 0; i < FAILPOINT_COUNT; i++) {
		const struct shared *s = &shared[i];
		say(a, "%s %s %s %s skip %u count %u: %s\n", point[i].name, point[i].process,
		    point[i].error ? status_info(point[i].error)->name : "-",
		    action_name[atomic_load(&s->action) % ACTION_COUNT], atomic_load(&s->skip), atomic_load(&s->left),
		    point[i].where);
	}
	say(a, "ok\n");
}

static void say_hits(struct answer *a)
{
	for (int i = 0; i < FAILPOINT_COUNT; i++)
		say(a, "%s %llu %llu %lld\n", point[i].name, (unsigned long long)atomic_load(&shared[i].hits),
		    (unsigned long long)atomic_load(&shared[i].fired), (long long)atomic_load(&shared[i].pid));
	say(a, "ok\n");
}

static bool number(const char *text, uint32_t *out)
{
	char *end = NULL;
	unsigned long long v;
	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || v > UINT32_MAX)
		return false;
	*out = (uint32_t)v;
	return true;
}

struct arming {
	uint32_t ms, skip, count;
};

/* [MS] [skip N] [count N]; false: said why not. */
static bool read_arming(struct answer *a, enum action action, char **rest, struct arming *out)
{
	*out = (struct arming){ SLEEP_MS, 0, 1 };
	char *word = strtok_r(NULL, " ", rest);
	if (word && action == ACTION_SLEEP && number(word, &out->ms))
		word = strtok_r(NULL, " ", rest);
	for (; word; word = strtok_r(NULL, " ", rest)) {
		uint32_t *to = strcmp(word, "skip") == 0 ? &out->skip : strcmp(word, "count") == 0 ? &out->count : NULL;
		if (!to) {
			say(a, "error: unexpected \"%.40s\": arm NAME ACTION [MS] [skip N] [count N]\n", word);
			return false;
		}
		char *value = strtok_r(NULL, " ", rest);
		if (!number(value, to)) {
			say(a, "error: %s needs a number, not \"%.40s\"\n", word, value ? value : "");
			return false;
		}
	}
	return true;
}

static void arm(struct answer *a, char **rest)
{
	const char *name = strtok_r(NULL, " ", rest), *what = strtok_r(NULL, " ", rest);
	int i = name ? find(name) : -1;
	enum action action = ACTION_NONE;
	struct arming how;
	for (int k = ACTION_CRASH; k < ACTION_COUNT && what; k++)
		if (strcmp(what, action_name[k]) == 0)
			action = (enum action)k;
	if (i < 0) {
		say(a, "error: no failpoint \"%.40s\": \"list\" shows all\n", name ? name : "");
	} else if (action == ACTION_NONE) {
		say(a, "error: no action \"%.40s\": crash, error, sleep or stop\n", what ? what : "");
	} else if (action == ACTION_ERROR && !point[i].error) {
		say(a, "error: nothing can fail at %s: crash, sleep or stop\n", name);
	} else if (read_arming(a, action, rest, &how)) {
		struct shared *s = &shared[i];
		atomic_store(&s->action, ACTION_NONE);
		atomic_store(&s->ms, how.ms);
		atomic_store(&s->skip, how.skip);
		atomic_store(&s->left, how.count);
		atomic_store(&s->hits, 0);
		atomic_store(&s->fired, 0);
		atomic_store(&s->action, action);
		say(a, "ok\n");
	}
}

static void disarm(struct answer *a, char **rest)
{
	const char *name = strtok_r(NULL, " ", rest);
	bool all = name && strcmp(name, "all") == 0;
	int i = name && !all ? find(name) : -1;
	if (!all && i < 0) {
		say(a, "error: no failpoint \"%.40s\": disarm NAME, or disarm all\n", name ? name : "");
		return;
	}
	for (int k = all ? 0 : i; k < (all ? FAILPOINT_COUNT : i + 1); k++) {
		atomic_store(&shared[k].action, ACTION_NONE);
		atomic_store(&shared[k].left, 0);
		atomic_store(&shared[k].hits, 0);
		atomic_store(&shared[k].fired, 0);
	}
	say(a, "ok\n");
}

void failpoint_command(char *line, char *out, size_t n)
{
	struct answer a = { out, n, 0 };
	char *rest = NULL, *word = strtok_r(line, " ", &rest);
	*out = 0;
	pthread_once(&once, map_by_environment);
	if (!shared)
		say(&a, "error: no file of failpoints: %s is not set, or of another build\n", VARIABLE);
	else if (word && strcmp(word, "list") == 0)
		say_list(&a);
	else if (word && strcmp(word, "hits") == 0)
		say_hits(&a);
	else if (word && strcmp(word, "arm") == 0)
		arm(&a, &rest);
	else if (word && strcmp(word, "disarm") == 0)
		disarm(&a, &rest);
	else
		say(&a,
		    "error: no command \"%.40s\": list, hits, arm NAME ACTION [MS] [skip N] [count N], disarm "
		    "NAME|all\n",
		    word ? word : "");
}

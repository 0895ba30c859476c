/* SPDX-License-Identifier: Apache-2.0 */
/* The operator's word under power cuts: a journal that is refused is accepted whole or is refused as before, the
 * damaged files are never lost before there is a complete copy of them, and numbers never start again. The folder
 * belongs to another user, as gaccd's does where root gives the word. */
#include "store/journal.h"

#include "base/log.h"
#include "cuts.h"
#include "script.h"
#include "script_journal.h"

#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCEPT, INCARNATION, TERM, OPERATIONS };

#define FIRST_PART 12  /* of the script's operations, which the journal has */
#define SECOND_PART 20 /* which its notes say it had */
#define END_STATE 8

static const char *const part[] = { "", "-wal", ".anchor" };
enum { MAIN, WAL, ANCHOR, PARTS };
static bool unreadable; /* the file is too damaged to be read; else its newest records are missing */

/* ---- files ---- */

struct content {
	char *data;
	ssize_t n; /* -1: no file */
};

static struct content damaged[PARTS]; /* what the operator finds */

static uint32_t owner(void)
{
	return geteuid() ? geteuid() : 12345;
}

static const char *name_of(const char *path, int p)
{
	static char name[400];
	snprintf(name, sizeof(name), "%s%s", path, part[p]);
	return name;
}

static struct content read_file(const char *name)
{
	struct content c = { NULL, -1 };
	struct stat st;
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && !fstat(fd, &st) && (c.data = malloc((size_t)st.st_size + 1)))
		c.n = read(fd, c.data, (size_t)st.st_size);
	if (fd >= 0)
		close(fd);
	return c;
}

static void put_file(const char *name, const struct content *c)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, c->data, (size_t)c->n) != c->n)
		script_fail("%s cannot be written", name);
	close(fd);
}

static bool is_same(const char *path, int p)
{
	struct content c = read_file(name_of(path, p));
	bool none = c.n <= 0 && damaged[p].n <= 0; /* an empty log is none */
	bool same = none || (c.n == damaged[p].n && !memcmp(c.data, damaged[p].data, (size_t)c.n));
	free(c.data);
	return same;
}

/* A copy of what was found, whole. */
static bool has_copy(const char *path)
{
	char pattern[200], copy[300];
	glob_t g;
	bool has = false;
	snprintf(pattern, sizeof(pattern), "%s.damaged-*", path);
	for (size_t i = 0; !glob(pattern, 0, NULL, &g) && i < g.gl_pathc && !has; i++, globfree(&g)) {
		snprintf(copy, sizeof(copy), "%s/journal.sqlite", g.gl_pathv[i]);
		has = is_same(copy, MAIN) && is_same(copy, WAL) && is_same(copy, ANCHOR);
	}
	return has;
}

/* ---- the damage ---- */

static void path_of(const char *dir, char out[128])
{
	snprintf(out, 128, "%s/journal.sqlite", dir);
}

/* Ends without closing it, so that its log is full. */
static void run_script(const char *path, int from, int to)
{
	struct journal *j;
	uint64_t term = 1;
	int ws = 0;
	pid_t pid = fork();
	if (pid == 0) {
		if (journal_open(path, &j))
			script_fail("no journal");
		for (int i = from; i < to; i++)
			if (script_operation(j, i, &term))
				script_fail("operation %d failed", i);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &ws, 0) != pid || ws)
		script_fail("what is damaged cannot be made");
}

/* Once: what the operator will find goes to `damaged`. */
static void prepare(const char *dir)
{
	char path[128];
	path_of(dir, path);
	run_script(path, 0, FIRST_PART);
	damaged[MAIN] = read_file(name_of(path, MAIN));
	damaged[WAL] = read_file(name_of(path, WAL));
	run_script(path, FIRST_PART, SECOND_PART);
	damaged[ANCHOR] = read_file(name_of(path, ANCHOR));
	if (unreadable) {
		memset(damaged[MAIN].data, 'x', (size_t)damaged[MAIN].n);
		damaged[WAL].n = -1;
	}
}

static void begin(const char *dir)
{
	char path[128];
	path_of(dir, path);
	for (int p = 0; p < PARTS; p++)
		if (damaged[p].n >= 0)
			put_file(name_of(path, p), &damaged[p]);
}

/* ---- life and judge ---- */

static void ignore(void *arg, const char *line)
{
	(void)arg, (void)line;
}

static void accept(const char *dir, const char *path)
{
	if (chown(dir, owner(), getegid()) || journal_accept(path, END_STATE, 4711, ignore, NULL))
		script_fail("the word cannot be given");
}

static void life(const char *dir, int from)
{
	struct journal *j;
	char path[128];
	uint64_t n;
	path_of(dir, path);
	log_init("accept", LOG_TEXT, LOG_ERROR - 1); /* complaints are expected */
	if (from <= ACCEPT) {
		cuts_begins(ACCEPT);
		accept(dir, path);
		cuts_done(ACCEPT);
	}
	if (journal_open(path, &j))
		script_fail("it cannot be opened");
	for (int at = from < INCARNATION ? INCARNATION : from; at < OPERATIONS; at++) {
		cuts_begins(at);
		if (at == INCARNATION ? journal_take_incarnation(j, &n) : journal_take_term(j, &n))
			script_fail("operation %d failed", at);
		cuts_done(at);
	}
	journal_close(j);
}

static void check_owners(const char *path)
{
	struct stat st;
	for (int p = 0; p < PARTS; p++)
		if (!stat(name_of(path, p), &st) && st.st_uid != owner())
			script_fail("%s belongs to uid %u", name_of(path, p), st.st_uid);
}

struct jobs {
	int n, going_on;
};

static enum status count(void *arg, const struct journal_job *b)
{
	struct jobs *jobs = arg;
	jobs->n++;
	jobs->going_on += !b->ended || b->end_state != END_STATE;
	return ST_OK;
}

/* Of an accepted journal. */
static void check_content(struct journal *j, int low)
{
	struct jobs jobs = { 0, 0 };
	uint64_t incarnation, term, last;
	if (journal_each_job(j, true, count, &jobs) || jobs.n != !unreadable || jobs.going_on)
		script_fail("%d jobs, of which %d go on", jobs.n, jobs.going_on);
	if (journal_last_job(j, &last) || last != 1 || journal_take_incarnation(j, &incarnation) ||
	    journal_take_term(j, &term))
		script_fail("it cannot be written, or its last job is not 1");
	if (term < 2u + (low > TERM) ||
	    incarnation < 2u + (low > INCARNATION)) /* a life that was killed may have taken some */
		script_fail("term %" PRIu64 ", incarnation %" PRIu64, term, incarnation);
}

static void judge(const char *dir, int low, int high)
{
	struct journal *j;
	char path[128];
	path_of(dir, path);
	log_init("accept", LOG_TEXT, LOG_ERROR - 1);
	if (low > ACCEPT)
		check_owners(path);
	if (!(is_same(path, MAIN) && is_same(path, WAL) && is_same(path, ANCHOR)) && !has_copy(path))
		script_fail("the damaged files are neither where they were nor copied");
	enum status st = journal_open(path, &j);
	if (st == ST_OK ? high <= ACCEPT : st != ST_MALFORMED || low > ACCEPT)
		script_fail("opened: %s", status_info(st)->name);
	if (st) {
		accept(dir, path);
		check_owners(path);
		st = journal_open(path, &j);
	}
	if (st)
		script_fail("it was accepted, and is refused");
	if (!has_copy(path))
		script_fail("the damaged files were not copied");
	check_content(j, low);
	journal_close(j);
}

int main(int argc, char **argv)
{
	static const struct cuts c = { .name = "accept",
				       .operations = OPERATIONS,
				       .prepare = prepare,
				       .begin = begin,
				       .life = life,
				       .judge = judge };
	static const struct cuts d = { .name = "accept anew",
				       .operations = OPERATIONS,
				       .prepare = prepare,
				       .begin = begin,
				       .life = life,
				       .judge = judge };
	int ended = cuts_main(argc, argv, &c);
	unreadable = true;
	return ended ? ended : cuts_main(argc, argv, &d);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cuts.h"

#include "script.h"
#include "base/log.h"
#include "support/power.h"
#include "support/sample.h"
#include "support/scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG_S 120
#define CUTS_OF_A_LIFE 5
#define GENERATIONS 3 /* lives after power cuts, until the script begins anew */
#define MAX_WRONG 10
#define MAX_SYNCS 1000
#define CALLS_OF_A_SECOND_LIFE 60

struct campaign {
	const struct cuts *c;
	struct power_log *log;
	uint64_t seed, rng;
	size_t base;   /* operations of the log that are what the life has found */
	int low, high; /* of the script's, as the life has found it */
	int cuts, fixed, wrong;
};

static uint64_t draw(struct campaign *k, uint64_t n)
{
	return power_draw(&k->rng) % n;
}

/* ---- notes of the life ---- */

void cuts_begins(int operation)
{
	power_note((uint64_t)operation * 2 + 1);
}

void cuts_done(int operation)
{
	power_note(((uint64_t)operation + 1) * 2);
}

/* What may have been done after so many operations of the log: at least `low`, `high` at most. */
static void bounds(const struct campaign *k, size_t ops, int *low, int *high)
{
	const struct power_op *op;
	power_ops(k->log, &op);
	*low = k->low;
	*high = k->high;
	for (size_t i = k->base; i < ops; i++) {
		if (op[i].kind != POWER_NOTE)
			continue;
		int at = (int)((op[i].at + 1) / 2);
		*high = at > *high ? at : *high;
		*low = op[i].at % 2 == 0 && at > *low ? at : *low;
	}
}

/* ---- directories and processes ---- */

static void make_dir(char dir[SCRATCH_PATH])
{
	if (!scratch_make(dir))
		script_fail("mkdtemp");
}

/* What the first life finds. */
static void make_first_dir(const struct campaign *k, char dir[SCRATCH_PATH])
{
	make_dir(dir);
	if (k->c->begin)
		k->c->begin(dir);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void remove_dir(const char *dir)
{
	if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS))
		script_fail("%s: %s", dir, strerror(errno));
}

static bool ended_well(pid_t pid)
{
	int ws = 0;
	return waitpid(pid, &ws, 0) == pid && ws == 0;
}

static pid_t child(void)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		script_fail("fork");
	if (pid == 0)
		alarm(HANG_S);
	return pid;
}

static const char *kind_name(enum power_kind kind)
{
	static const char *const name[] = { "create",	"write",  "size",   "meta", "sync",
					    "datasync", "unlink", "rename", "note" };
	return name[kind];
}

/* ---- one life ---- */

/* stop_at 0: to its end. */
static void live(struct campaign *k, const char *dir, uint64_t stop_at)
{
	int low, high;
	const struct power_op *op;
	bounds(k, power_ops(k->log, &op), &low, &high);
	pid_t pid = child();
	if (pid == 0) {
		power_record(k->log, stop_at);
		k->c->life(dir, low);
		_exit(0);
	}
	if (!ended_well(pid))
		script_fail("%s: seed %llu: a life that began with %d to %d operations has failed", k->c->name,
			    (unsigned long long)k->seed, low, high);
}

/* Everything that the life has done was noted. */
static void check_recorder(struct campaign *k, const char *dir)
{
	char copy[SCRATCH_PATH], command[3 * SCRATCH_PATH];
	const struct power_op *op;
	make_dir(copy);
	power_cut(k->log, power_ops(k->log, &op), POWER_ALL, 0, copy);
	snprintf(command, sizeof(command), "diff -r %s %s", dir, copy);
	if (system(command))
		script_fail("%s: the recorder has missed something", k->c->name);
	remove_dir(copy);
}

static void record(struct campaign *k, const char *dir, bool whole)
{
	const struct power_op *op;
	power_begin(k->log, dir);
	k->base = power_ops(k->log, &op);
	if (!whole && draw(k, 2))
		live(k, dir, 1 + draw(k, draw(k, 2) ? 30 : 300));
	live(k, dir, 0);
	check_recorder(k, dir);
}

/* ---- cuts ---- */

struct cut {
	size_t ops;
	enum power_image image;
	uint64_t seed;
};

static void try(struct campaign *k, struct cut cut)
{
	const struct power_op *op;
	int low, high;
	char dir[SCRATCH_PATH];
	power_ops(k->log, &op);
	bounds(k, cut.ops, &low, &high);
	make_dir(dir);
	pid_t pid = child();
	if (pid == 0) {
		power_cut(k->log, cut.ops, cut.image, cut.seed, dir);
		k->c->judge(dir, low, high);
		_exit(0);
	}
	if (!ended_well(pid)) {
		const struct power_op *last = &op[cut.ops - 1];
		k->wrong++;
		fprintf(stderr,
			"%s: seed %llu: cut behind call %zu (%s %s%s%s, node %d), %d to %d operations done, %s "
			"(%#llx): judged wrong\n",
			k->c->name, (unsigned long long)k->seed, cut.ops - k->base, kind_name(last->kind), last->name,
			*last->name2 ? " to " : "", last->name2, last->node, low, high, power_image_name[cut.image],
			(unsigned long long)cut.seed);
	}
	remove_dir(dir);
}

/* A life that is killed before its stop-th call has synced something, and the beginning of the next one: what it has
 * read and goes on from may not be lost any more when it tells anybody. */
static void try_killed(struct campaign *k, uint64_t stop)
{
	const struct power_op *op;
	char dir[SCRATCH_PATH];
	make_first_dir(k, dir);
	k->low = k->high = 0;
	power_begin(k->log, dir);
	k->base = power_ops(k->log, &op);
	live(k, dir, stop);
	size_t from = power_ops(k->log, &op);
	live(k, dir, CALLS_OF_A_SECOND_LIFE);
	size_t n = power_ops(k->log, &op);
	for (int notes = 0; from < n && notes < 4 && k->wrong < MAX_WRONG; from++) {
		if (op[from].kind != POWER_NOTE)
			continue;
		notes++;
		try(k, (struct cut){ from + 1, POWER_NOTHING, 0 });
		k->fixed++;
	}
	remove_dir(dir);
}

/* Where a life's calls are about to be synced, as indexes of its calls, which the notes are not; how many there are. */
static size_t before_syncs(const struct campaign *k, uint64_t *stop, size_t max)
{
	const struct power_op *op;
	size_t n = power_ops(k->log, &op), found = 0;
	uint64_t calls = 0;
	for (size_t i = k->base; i < n && found < max; i++) {
		if (calls && (op[i].kind == POWER_SYNC || op[i].kind == POWER_DATASYNC))
			stop[found++] = calls;
		calls += op[i].kind != POWER_NOTE;
	}
	return found;
}

/* The worst images: behind any call, or behind each acknowledgement, and then all of them only with -a. */
static void try_fixed(struct campaign *k, bool each)
{
	const struct power_op *op;
	char dir[SCRATCH_PATH];
	uint64_t stop[MAX_SYNCS];
	make_first_dir(k, dir);
	k->low = k->high = 0;
	record(k, dir, true);
	size_t n = power_ops(k->log, &op), noted = 0, n_stops = before_syncs(k, stop, MAX_SYNCS);
	for (size_t i = k->base; i < n && k->wrong < MAX_WRONG; i++) {
		bool done = op[i].kind == POWER_NOTE && op[i].at % 2 == 0;
		noted += done;
		for (size_t image = 0; image < POWER_ALL && (each || done); image++) {
			bool seen = op[i].kind != POWER_NOTE && power_repeats(k->log, i + 1, (enum power_image)image);
			if (each ? seen : image && image != 1 + noted % (POWER_ALL - 1))
				continue;
			try(k, (struct cut){ i + 1, (enum power_image)image, 0 });
			k->fixed++;
		}
	}
	remove_dir(dir);
	for (size_t i = 0; i < n_stops && k->wrong < MAX_WRONG; i += each ? 1 : 6)
		try_killed(k, stop[i]);
}

/* Some cuts of one life; dir becomes what the last of them has left. */
static void try_life(struct campaign *k, char dir[SCRATCH_PATH], int cuts)
{
	const struct power_op *op;
	struct cut cut = { 0 };
	record(k, dir, false);
	size_t n = power_ops(k->log, &op);
	for (int i = 0; i < cuts; i++, k->cuts++) {
		cut = (struct cut){ k->base + (n > k->base ? 1 + draw(k, n - k->base) : 0), POWER_RANDOM,
				    power_draw(&k->rng) };
		try(k, cut);
	}
	remove_dir(dir);
	make_dir(dir);
	power_cut(k->log, cut.ops, cut.image, cut.seed, dir);
	bounds(k, cut.ops, &k->low, &k->high);
}

static void try_random(struct campaign *k, int cuts)
{
	while (cuts > 0 && !k->wrong) {
		char dir[SCRATCH_PATH];
		make_first_dir(k, dir);
		k->low = k->high = 0;
		k->rng = k->seed;
		for (int i = 0; i < GENERATIONS && cuts > 0 && k->low < k->c->operations && !k->wrong; i++) {
			int some = cuts < CUTS_OF_A_LIFE ? cuts : CUTS_OF_A_LIFE;
			try_life(k, dir, some);
			cuts -= some;
		}
		remove_dir(dir);
		k->seed++;
	}
}

/* ---- the program ---- */

static int run(const struct cuts *c, int cuts, uint64_t seed, bool each)
{
	struct campaign k = { .c = c, .log = power_new(), .seed = seed };
	char dir[SCRATCH_PATH];
	log_init(c->name, LOG_TEXT, LOG_ERROR);
	if (c->prepare) {
		make_dir(dir);
		c->prepare(dir);
		remove_dir(dir);
	}
	try_fixed(&k, each || c->each);
	try_random(&k, cuts);
	printf("%s: %d cuts with fixed images, %d drawn from seed %llu on: %d judged wrong\n", c->name, k.fixed, k.cuts,
	       (unsigned long long)seed, k.wrong);
	return k.wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* In a child, so that its files are removed wherever script_fail ends it. */
int cuts_main(int argc, char **argv, const struct cuts *c)
{
	uint64_t seed = sample_seed();
	int n = 25;
	bool each = false;
	optind = 1;
	for (int o; (o = getopt(argc, argv, "n:s:a")) != -1;) {
		if (o == 'n')
			n = atoi(optarg);
		else if (o == 's')
			seed = strtoull(optarg, NULL, 10);
		else if (o == 'a')
			each = true;
		else
			return 2;
	}
	if (!scratch_begin())
		script_fail("no folder for the files");
	pid_t pid = fork();
	if (pid == 0)
		exit(run(c, n, seed, each));
	bool well = ended_well(pid);
	scratch_end();
	return well ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the journal's sums and its anchor cost a commit: a part of goal C7. The journal alone, no gaccd.
 *
 *   bench_commit [-r rounds, 5..101] [-n commits in a round] [-d DIR, default /tmp]
 *
 * A round is n commits of one job by the journal, and n times the same rows in a second file, through the same layer
 * over SQLite but without sums and anchor (the limit), in turn. Both sync each commit. Rows: wall-clock time and CPU
 * time of a commit; the same against one fdatasync of a page in such a file; and the anchor's note alone. With DIR in
 * memory (/dev/shm) a sync costs nothing: what is left is the CPU time of SQLite, sums and anchor, which differs least
 * from run to run.
 */
#include "bench.h"

#include "store/anchor.h"
#include "store/journal.h"
#include "store/journal_sql.h"
#include "store/journal_sum.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define JOB 1
#define PAYLOAD_BYTES 512 /* gaccd's of a job of some ranks */
#define LOG_BYTES (4 << 20)
#define COMMITS_MAX 10000
#define NOTE_BATCH 100

static size_t rounds = 15, commits = 200;
static const unsigned char payload[PAYLOAD_BYTES] = { 1, 2, 3 };
static double took[COMMITS_MAX];

static void need(enum status st, const char *what)
{
	if (st)
		bench_die("%s: %s", what, status_info(st)->name);
}

/* ---- the two sides ---- */

struct side {
	struct journal *journal; /* ours, or NULL */
	struct sql rows;	 /* the rows alone */
	struct journal_sum none; /* its statements name functions of the sums; nobody calls them */
	int page;		 /* a file as the journal's: only a page is written and synced */
	uint64_t term, window;
};

static struct journal *open_with_job(const char *path, uint64_t *term)
{
	struct journal *j;
	struct journal_record r = { .kind = JOURNAL_JOB,
				    .job = { .id = JOB, .user = "bench", .spec = { payload, sizeof(payload) } } };
	need(journal_open(path, &j), path);
	need(journal_take_term(j, term), "journal_take_term");
	need(journal_commit(j, *term, &r, 1), "the job");
	return j;
}

static enum status add_functions(struct sql *s)
{
	return journal_sum_open(&((struct side *)((char *)s - offsetof(struct side, rows)))->none, s);
}

static void commit_journal(struct side *s)
{
	struct journal_record r = { .kind = JOURNAL_COMMIT,
				    .commit = { .job = JOB,
						.epoch = 1,
						.window = s->window,
						.applied_step = s->window + 1,
						.term = s->term,
						.attempt = 1,
						.outcome = 1,
						.unix_ns = 1,
						.payload = { payload, sizeof(payload) } } };
	need(journal_commit(s->journal, s->term, &r, 1), "journal_commit");
	s->window++;
}

/* The statements of the journal's commit of a window. */
static void commit_rows(struct side *s)
{
	struct sql *q = &s->rows;
	int64_t w = (int64_t)s->window;
	need(sql_run(q, SQL_BEGIN, ""), "BEGIN");
	sql_step(q, SQL_JOB_STATE, "i", (int64_t)JOB);
	sql_done(q, SQL_JOB_STATE);
	need(sql_run(q, SQL_WINDOW, "iiiiiiii", (int64_t)JOB, w, (int64_t)1, w + 1, (int64_t)s->term, (int64_t)1,
		     (int64_t)1, (int64_t)1),
	     "row");
	need(sql_run(q, SQL_PAYLOAD, "iiib", (int64_t)JOB, w % JOURNAL_KEEP_PAYLOADS, w, payload, sizeof(payload)),
	     "payload");
	need(sql_run(q, SQL_NEXT_WINDOW, "ii", w + 1, (int64_t)JOB), "next window");
	need(sql_run(q, SQL_COMMIT, ""), "COMMIT");
	need(sql_checkpoint(q), "checkpoint");
	s->window++;
}

static void sync_page(struct side *s)
{
	static char page[4096];
	page[0]++;
	if (pwrite(s->page, page, sizeof(page), (off_t)(s->window * sizeof(page) % LOG_BYTES)) != sizeof(page) ||
	    fdatasync(s->page))
		bench_die("cannot write beside the journal");
	s->window++;
}

/* ---- measuring ---- */

static double clock_of(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct cost {
	double wall, cpu; /* median; mean */
};

static struct cost block(void (*commit)(struct side *), struct side *s)
{
	double cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
	for (size_t i = 0; i < commits; i++) {
		double start = bench_seconds();
		commit(s);
		took[i] = bench_seconds() - start;
	}
	cpu = (clock_of(CLOCK_THREAD_CPUTIME_ID) - cpu) / (double)commits;
	return (struct cost){ bench_quantile(took, commits, 0.5), cpu };
}

static void put(struct bench_row *row, size_t i, double ours, double limit, struct cost c, struct cost l,
		double foreign)
{
	row->rounds = i + 1;
	row->ours[i] = ours;
	row->limit[i] = limit;
	row->ours_cpu[i] = c.cpu;
	row->limit_cpu[i] = l.cpu;
	row->foreign[i] = foreign;
}

static void measure(struct side *ours, struct side *rows, struct side *page)
{
	static struct bench_row wall = { .id = "C7",
					 .what = "commit in the journal alone, p50",
					 .limit_name = "no sums, no anchor" };
	static struct bench_row cpu = { .id = "C7",
					.what = "commit in the journal alone, CPU",
					.limit_name = "no sums, no anchor" };
	static struct bench_row sync = { .id = "C7",
					 .what = "commit in the journal alone, p50",
					 .limit_name = "one fdatasync" };
	struct bench_row *const all[] = { &wall, &cpu, &sync };
	struct bench_group self = { .pid = { getpid() }, .n = 1 };
	for (size_t i = 0; i < 3; i++) {
		all[i]->unit = "us";
		all[i]->factor = 1e6;
	}
	block(commit_journal, ours);
	block(commit_rows, rows);
	for (size_t i = 0; i < rounds; i++) {
		struct bench_watch watch = bench_watch_start(&self);
		struct cost c = block(commit_journal, ours), l = block(commit_rows, rows), p = block(sync_page, page);
		double foreign = bench_watch_foreign(&watch, &self);
		put(&wall, i, c.wall, l.wall, c, l, foreign);
		put(&cpu, i, c.cpu, l.cpu, c, l, foreign);
		put(&sync, i, c.wall, p.wall, c, p, foreign);
	}
	for (size_t i = 0; i < 3; i++)
		bench_row_print(all[i]);
}

static void measure_anchor(const char *path)
{
	struct anchor a;
	struct anchor_mark m = { .identity = 1 };
	double us[BENCH_MAX_ROUNDS];
	need(anchor_read(&a, path, -1), path);
	need(anchor_begin(&a, path, true, &m, NULL), path);
	for (size_t i = 0; i < rounds; i++) {
		double cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
		for (int k = 0; k < NOTE_BATCH; k++) {
			struct anchor_entry e = { .number = ++m.records, .job = JOB, .kind = JOURNAL_COMMIT };
			need(anchor_note(&a, &m, &e, 1), "anchor_note");
		}
		us[i] = (clock_of(CLOCK_THREAD_CPUTIME_ID) - cpu) / NOTE_BATCH * 1e6;
	}
	anchor_close(&a);
	bench_value_print("C7", "of that, the anchor's note in two places", bench_median(us, rounds), "us", 10);
}

static int open_page_file(const char *path)
{
	static const char zeros[LOG_BYTES];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, zeros, sizeof(zeros)) != sizeof(zeros) || fsync(fd))
		bench_die("cannot write %s", path);
	return fd;
}

int main(int argc, char **argv)
{
	char dir[64], path[4][72];
	const char *parent = "/tmp";
	static struct side ours, rows, page;
	for (int o; (o = getopt(argc, argv, "r:n:d:")) != -1;) {
		if (o == 'r')
			rounds = strtoul(optarg, NULL, 10);
		else if (o == 'n')
			commits = strtoul(optarg, NULL, 10);
		else if (o == 'd')
			parent = optarg;
		else
			return 2;
	}
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || commits < 10 || commits > COMMITS_MAX)
		bench_die("rounds 5..%d, commits 10..%d", BENCH_MAX_ROUNDS, COMMITS_MAX);
	if (snprintf(dir, sizeof(dir), "%s/gacc-bench-XXXXXX", parent) >= (int)sizeof(dir) || !mkdtemp(dir))
		bench_die("cannot make a directory in %s", parent);
	for (int i = 0; i < 4; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%c", dir, 'a' + i);
	/* The journal takes its directory for itself: one after the other. */
	journal_close(open_with_job(path[1], &rows.term));
	struct sql_file plain = journal_file;
	plain.look = NULL;
	plain.begin = add_functions;
	need(sql_open(&rows.rows, &plain, path[1]), path[1]);
	ours.journal = open_with_job(path[0], &ours.term);
	page.page = open_page_file(path[2]);
	bench_table_head();
	measure(&ours, &rows, &page);
	measure_anchor(path[3]);
	journal_close(ours.journal);
	sql_close(&rows.rows);
	journal_sum_close(&rows.none);
	close(page.page);
	bench_remove(dir);
	return 0;
}

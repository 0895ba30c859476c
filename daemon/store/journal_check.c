/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether the journal has everything that was acknowledged, unaltered: by the sum over its rows, which it
 * contains, and by the anchor, which has its newest number. Logs what is missing. For journal.c, when it opens the
 * journal, on its thread; journal_altered_jobs also for journal_accept.c. */
#include "store/journal_impl.h"

#include "base/log.h"

#include <sqlite3.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_NAMED 20 /* jobs in one message */

const char *journal_kind_name(uint32_t kind)
{
	static const char *const name[] = { "TERM",	"JOB",		"TENSORS",	   "PARAMS_READY", "EPOCH",
					    "COMMIT",	"END",		"FORGET",	   "HOLD",	   "UPDATE",
					    "RESTORED", "CHECKPOINT",	"CHECKPOINT_GONE", "EXITS",	   "VIEW",
					    "PART",	"PART_TENSORS", "PART_BEGUN",	   "PART_GONE" };
	return kind < sizeof(name) / sizeof(*name) ? name[kind] : "record";
}

void journal_say_remedy(const struct journal *j)
{
	log_error("gaccd does not start with it: what was acknowledged may be missing. The jobs' memory is kept. Bring "
		  "the newest files of %s* back; or go on without what is lost: gaccd --accept-journal-loss with the "
		  "same configuration moves a copy of the damaged files aside and says which jobs are lost",
		  j->path);
}

/* ---- before it is opened ---- */

static uint64_t size_of(const char *path, const char *suffix)
{
	char name[4200];
	struct stat st;
	snprintf(name, sizeof(name), "%s%s", path, suffix);
	return stat(name, &st) ? 0 : (uint64_t)st.st_size;
}

enum status journal_check_files(struct journal *j)
{
	const struct anchor_copy *a = anchor_newest(&j->anchor);
	if (size_of(j->path, "") || j->anchor.accepted)
		return ST_OK;
	if (a && a->mark.records)
		log_error("journal %s is missing: %" PRIu64 " records had been written to it", j->path,
			  a->mark.records);
	else if (size_of(j->path, "-wal"))
		log_error("journal %s is missing, and its log %s-wal is there", j->path, j->path);
	else
		return ST_OK;
	journal_say_remedy(j);
	return ST_MALFORMED;
}

/* ---- what is in it ---- */

/* The sums that the jobs should have. An older schema has no parts of jobs that others coordinate. */
static int each_sum(struct journal *j, sqlite3_stmt **out)
{
	sqlite3_stmt *s = NULL;
	int rc = sqlite3_prepare_v2(j->sql.db, "SELECT 1 FROM main.sqlite_schema WHERE name = 'away'", -1, &s, NULL);
	if (!rc)
		rc = sqlite3_step(s);
	sqlite3_finalize(s);
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		return rc;
	return sqlite3_prepare_v2(j->sql.db,
				  rc == SQLITE_DONE ? "SELECT id, sum FROM main.jobs ORDER BY id"
						    : "SELECT id, sum FROM main.jobs UNION ALL"
						      " SELECT job, sum FROM main.away ORDER BY 1",
				  -1, out, NULL);
}

/* Fills in `job`, which has room for all jobs that have rows. SQLITE_OK, or the code of what failed: then *out_n means
 * nothing, as the jobs that were not read look like missing ones. */
static int compare_sums(struct journal *j, uint64_t *job, size_t *out_n)
{
	const struct journal_sum *is = &j->sum;
	sqlite3_stmt *s = NULL;
	size_t n = 0, at = 0;
	int rc = each_sum(j, &s);
	while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
		uint64_t id = (uint64_t)sqlite3_column_int64(s, 0);
		for (; at < is->n && is->of[at].job < id; at++) /* rows of a job without a row of its own */
			if (is->of[at].sum)
				job[n++] = is->of[at].job;
		bool here = at < is->n && is->of[at].job == id;
		if (here && is->of[at++].sum != (uint64_t)sqlite3_column_int64(s, 1))
			job[n++] = id;
		rc = SQLITE_OK;
	}
	sqlite3_finalize(s);
	for (; at < is->n; at++)
		if (is->of[at].sum)
			job[n++] = is->of[at].job;
	*out_n = n;
	return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

enum status journal_altered_jobs(struct journal *j, uint64_t **out, size_t *out_n)
{
	uint64_t *job = calloc(j->sum.n + 1, sizeof(*job));
	if (!job)
		return ST_NO_MEMORY;
	if (compare_sums(j, job, out_n)) {
		free(job);
		return sql_fail(&j->sql, "jobs");
	}
	*out = job;
	return ST_OK;
}

/* ---- what is wrong, in words ---- */

static void say_altered(struct journal *j)
{
	uint64_t *job = NULL;
	size_t n = 0;
	log_error("journal %s: its %" PRIu64 " records are not as they were written", j->path, j->mark.records);
	if (journal_altered_jobs(j, &job, &n))
		return;
	for (size_t i = 0; i < n && i < MAX_NAMED; i++)
		log_error("journal %s: records of job %" PRIu64 " have been altered or are missing", j->path, job[i]);
	if (n > MAX_NAMED)
		log_error("journal %s: and those of %zu more jobs", j->path, n - MAX_NAMED);
	if (!n)
		log_error("journal %s: no job's own records: a whole job is missing, or what concerns all of them was "
			  "altered",
			  j->path);
	free(job);
}

/* What is missing of one job. */
struct missing {
	uint64_t job, records, first_window, last_window, commits;
	uint32_t uid;
	bool whole;
};

static struct missing *missing_of(struct missing *m, size_t *n, uint64_t job)
{
	for (size_t i = 0; i < *n; i++)
		if (m[i].job == job)
			return &m[i];
	if (*n == MAX_NAMED)
		return NULL;
	m[*n] = (struct missing){ .job = job };
	return &m[(*n)++];
}

static void count_missing(struct missing *m, const struct anchor_entry *e)
{
	m->records++;
	if (e->kind == JOURNAL_JOB) {
		m->whole = true;
		m->uid = e->uid;
	} else if (e->kind == JOURNAL_COMMIT) {
		m->first_window = m->commits ? m->first_window : e->window;
		m->last_window = e->window;
		m->commits++;
	}
}

static void say_missing(const struct journal *j, const struct missing *m)
{
	char commits[100] = "";
	if (m->commits)
		snprintf(commits, sizeof(commits), ", with the commits of windows %" PRIu64 " to %" PRIu64,
			 m->first_window, m->last_window);
	if (m->whole)
		log_error("journal %s: job %" PRIu64 " (of user %u) is missing whole: %" PRIu64 " records%s", j->path,
			  m->job, m->uid, m->records, commits);
	else if (m->job)
		log_error("journal %s: the last %" PRIu64 " records of job %" PRIu64 " are missing%s", j->path,
			  m->records, m->job, commits);
	else
		log_error("journal %s: %" PRIu64 " starts of gaccd are missing", j->path, m->records);
}

static void say_lost(const struct journal *j, const struct anchor_copy *a)
{
	struct missing m[MAX_NAMED];
	size_t n = 0;
	uint64_t first = j->mark.records + 1, named = 0;
	if (a->mark.records - j->mark.records > ANCHOR_ENTRIES)
		first = a->mark.records - ANCHOR_ENTRIES + 1;
	log_error("journal %s: its last %" PRIu64 " records are missing: it ends with record %" PRIu64
		  ", and record %" PRIu64 " had been written",
		  j->path, a->mark.records - j->mark.records, j->mark.records, a->mark.records);
	for (uint64_t number = first; number <= a->mark.records; number++) {
		struct anchor_entry e;
		struct missing *of = anchor_entry(a, number, &e) ? missing_of(m, &n, e.job) : NULL;
		if (of) {
			count_missing(of, &e);
			named++;
		}
	}
	for (size_t i = 0; i < n; i++)
		say_missing(j, &m[i]);
	if (named < a->mark.records - j->mark.records)
		log_error("journal %s: of which jobs the other %" PRIu64 " were is not known", j->path,
			  a->mark.records - j->mark.records - named);
}

/* ---- the judgement ---- */

static bool agrees(const struct journal *j, const struct anchor_copy *a, const char *where)
{
	if (!a->found)
		return true;
	if (a->mark.identity != j->mark.identity)
		log_error("journal %s: %s is of another journal (%016" PRIx64 ", this one is %016" PRIx64 ")", j->path,
			  where, a->mark.identity, j->mark.identity);
	else if (a->mark.records > j->mark.records)
		say_lost(j, a);
	else if (a->mark.records == j->mark.records && a->mark.sum != j->mark.sum)
		log_error("journal %s: record %" PRIu64 " is not the one that was written: %s says so", j->path,
			  j->mark.records, where);
	else
		return true;
	return false;
}

static enum status judge(struct journal *j)
{
	const struct anchor_copy *a = anchor_newest(&j->anchor);
	j->rows = journal_sum_total(&j->sum);
	if (j->sealed && journal_mark_sum(&j->mark, j->rows) != j->mark.sum)
		say_altered(j);
	else if (j->anchor.accepted)
		return ST_OK;
	else if (!j->mark.identity && a && a->mark.records)
		say_lost(j, a);
	else if (!j->mark.identity)
		return ST_OK; /* new, or of a gaccd that kept no sums */
	else if (j->mark.records && !j->anchor.file.found && !j->anchor.kept.found)
		log_error("journal %s: its file %s.anchor is missing or damaged, which says whether all its records "
			  "are there",
			  j->path, j->path);
	else if (agrees(j, &j->anchor.kept, "what the service manager keeps") &&
		 agrees(j, &j->anchor.file, "its .anchor file"))
		return ST_OK;
	journal_say_remedy(j);
	j->sql.failed = true; /* so that closing it changes nothing */
	return ST_MALFORMED;
}

enum status journal_check_content(struct sql *s, int version)
{
	struct journal *j = (struct journal *)s;
	enum status st = journal_sum_open(&j->sum, s);
	if (!st && version >= JOURNAL_SUMS_VERSION)
		st = journal_read_mark(j, &j->mark, &j->sealed);
	if (!st && j->sealed)
		st = journal_sum_read(&j->sum, s);
	return st || j->forced ? st : judge(j);
}

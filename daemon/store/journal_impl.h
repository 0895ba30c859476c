/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the store: what the parts of the journal share. */
#ifndef GACC_STORE_JOURNAL_IMPL_H
#define GACC_STORE_JOURNAL_IMPL_H

#include "store/anchor.h"
#include "store/journal.h"
#include "store/journal_sum.h"
#include "store/reserve.h"

#define JOURNAL_SUMS_VERSION 8 /* of the schema: from it on the journal has sums */

struct journal {
	struct sql sql; /* first: SQLite's callbacks get it */
	struct journal_sum sum;
	struct reserve reserve;
	struct anchor anchor;
	struct anchor_mark mark; /* as of the last commit */
	uint64_t rows;		 /* the part of mark.sum that is the rows' */
	char *path;
	int lock;      /* on the directory; -1: none */
	bool keep;     /* the mark is kept in memory, too */
	bool sealed;   /* the file has sums that hold */
	bool resealed; /* a step of the schema came at this opening: a record of its own, and the last one */
	bool forced;   /* neither judged nor noted: it is being mended */
	bool accepted; /* at this opening the operator's word counted */
};

/* journal.c: as journal_open, but neither judged nor noted. Its files are copied to a new folder first, whose name goes
 * to `aside`, unless that is NULL. */
enum status journal_force(const char *path, char *aside, size_t n_aside, struct journal **out);

/* journal_records.c */

/* Puts the record into the tables, within a transaction; the status is journal_commit's. */
enum status journal_add(struct journal *, uint64_t term, const struct journal_record *);
/* journal_parts.c: the same for those of a part. */
enum status journal_add_part(struct journal *, const struct journal_record *);
bool journal_is_of_part(const struct journal_record *);
/* The job that the record is of. */
uint64_t journal_job_of(const struct journal_record *);

/* journal_accept.c. ST_STORE_FAILED (logged). */
enum status journal_copy_aside(const struct journal *, char *dir, size_t n_dir);
/* Brings the journal's counters up to what was noted there. Seals it. ST_STORE_FAILED (logged). */
enum status journal_raise(struct journal *, const struct anchor_copy *to);

/* journal_check.c: is all there that was acknowledged, as it was written? Nothing is written. */

/* Before SQLite opens the file, which may make a new one. ST_MALFORMED (logged). */
enum status journal_check_files(struct journal *);
/* As sql_file's `look`: reads mark and rows. ST_MALFORMED, ST_STORE_FAILED (logged). */
enum status journal_check_content(struct sql *, int version);
/* Jobs whose rows are not those of their sum, ascending, for free(). journal_sum_read must have been called.
 * ST_NO_MEMORY, ST_STORE_FAILED (logged). */
enum status journal_altered_jobs(struct journal *, uint64_t **out, size_t *out_n);
/* Logs how to go on without what is lost. */
void journal_say_remedy(const struct journal *);

/* What a record is called, in messages. */
const char *journal_kind_name(uint32_t kind);

/* journal_seal.c: what the journal says of itself. */

/* Reads the mark that the file has. ST_STORE_FAILED (logged). */
enum status journal_read_mark(struct journal *, struct anchor_mark *out, bool *sealed);
/* The sum over rows and mark. */
uint64_t journal_mark_sum(const struct anchor_mark *, uint64_t rows);
/* Computes the sums of all jobs and the mark anew from the rows, in one transaction. ST_STORE_FAILED (logged). */
enum status journal_seal(struct journal *);
/* As sql_file's `begin`: the journal is sealed if it is not yet, and every change is watched from here on. */
enum status journal_begin(struct sql *);

#endif

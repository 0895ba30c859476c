/* SPDX-License-Identifier: Apache-2.0 */
/* A journal in a scratch folder, records to write, and what is read back. All of it fails the test by itself. */
#ifndef GACC_TESTS_JOURNAL_RIG_H
#define GACC_TESTS_JOURNAL_RIG_H

#include "store/journal.h"

extern char journal_path[96];

/* Check's fixture. */
void journal_setup(void);
void journal_teardown(void);
/* As if there had been no journal. */
void journal_remove_files(void);
void journal_remove_anchor(void);

struct journal *open_ok(void);
uint64_t term_of(struct journal *);

/* Records; what they point to is static. A window's payload tells its number, so that a mix-up shows. */
struct journal_record job(uint64_t id);
struct journal_record commit(uint64_t id, uint64_t epoch, uint64_t window, uint64_t term);
struct journal_record end(uint64_t id);
struct journal_record hold(uint64_t id, const char *reason);
enum status write1(struct journal *, uint64_t term, struct journal_record);

struct seen_windows {
	uint64_t n, first, last, with_payload;
};

/* The last windows of a job, each compared with what `commit` writes. */
struct seen_windows windows(struct journal *, uint64_t id, uint64_t last);

/* For journal_each_job: `arg` is an array of 8 jobs, [0].id counts. */
enum status copy_job(void *arg, const struct journal_job *);
/* `arg`: the reason for which job 1 is held, or NULL; no other is. */
enum status check_hold(void *arg, const struct journal_job *);

#endif

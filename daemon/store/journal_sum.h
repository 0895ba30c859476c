/* SPDX-License-Identifier: Apache-2.0 */
/* A sum over all rows of the journal's tables, for each job: every row adds its hash, so that what changes a row
 * changes the sum by the difference. It tells whether what is read at a start is what was written. Private to the room.
 *
 * The rows' hashes are computed inside SQLite: by triggers for changes, by queries for all that is there. They cover
 * all columns of all tables but `meta` and `reserve`, and but the column `sum` itself, whatever the schema's version.
 * Same thread as the connection.
 */
#ifndef GACC_STORE_JOURNAL_SUM_H
#define GACC_STORE_JOURNAL_SUM_H

#include "store/sql.h"

#include <stddef.h>

struct job_sum {
	uint64_t job, sum;
};

struct journal_sum {
	struct job_sum *of; /* ascending jobs: since the last journal_sum_clear */
	size_t n, at;
	uint32_t capacity;
	void *state; /* of the hash */
};

/* Gives the connection its functions gacc_row and gacc_plus. ST_NO_MEMORY. */
enum status journal_sum_open(struct journal_sum *, struct sql *);
void journal_sum_close(struct journal_sum *);

void journal_sum_clear(struct journal_sum *);
/* Over all jobs. */
uint64_t journal_sum_total(const struct journal_sum *);
/* Clears, and adds all that is there. ST_STORE_FAILED (logged). */
enum status journal_sum_read(struct journal_sum *, struct sql *);
/* From here on each change adds itself. ST_STORE_FAILED (logged). */
enum status journal_sum_watch(struct journal_sum *, struct sql *);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The room that an SQLite file keeps for itself, so that commits go on when its disk is full. Private to the room.
 *
 * SQLite may only use pages that the file has on the disk already (max_page_count is pinned to them): a commit that
 * needs more fails with SQLITE_FULL before it has changed anything, the file is made longer, and the commit is
 * repeated. When the disk has no room for that, a row of the table `reserve` is deleted: its pages are in the file and
 * nobody else can take them. The write-ahead log is laid out in advance as well (sql.c). Same thread as the file.
 */
#ifndef GACC_STORE_RESERVE_H
#define GACC_STORE_RESERVE_H

#include "store/sql.h"

#define RESERVE_ROW_BYTES (1u << 20)

struct reserve {
	struct sql *sql;
	uint64_t pinned; /* pages that the file has on the disk, and that SQLite may use */
	uint32_t rows;	 /* that can still be given up */
};

/* Counts the rows and pins the file. ST_STORE_FAILED. */
enum status reserve_open(struct reserve *, struct sql *);
/* Makes room for `bytes` more; with `release` out of the reserve when the disk has none. Outside of transactions.
 * false: no room. */
bool reserve_more(struct reserve *, uint64_t bytes, bool release);
/* To be called after each checkpoint: SQLite has shortened the file. */
void reserve_after_checkpoint(struct reserve *);
/* Adds a row if there are fewer than `wanted`. false: nothing was added, because none is missing or because there is no
 * room. A failure that cannot be undone shows in sql->failed. */
bool reserve_fill(struct reserve *, uint32_t wanted);

#endif

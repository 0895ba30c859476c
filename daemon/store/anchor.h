/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's newest acknowledged record number and sum, stored outside it: in the file PATH.anchor, and in memory
 * that the service manager may keep. Private to the store.
 *
 * Each copy is written before the acknowledgement becomes visible, without a sync: it survives the death of this
 * process. The file is synced now and then (anchor_sync), so after a power cut it may be somewhat older than the
 * journal, but never newer. Calls block, and never run two at once on one anchor.
 */
#ifndef GACC_STORE_ANCHOR_H
#define GACC_STORE_ANCHOR_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANCHOR_ENTRIES 1024 /* the last records, by name */

/* What the journal says of itself. */
struct anchor_mark {
	uint64_t identity; /* of this journal: random */
	uint64_t records;  /* written so far */
	uint64_t sum;	   /* over all that it holds */
	uint64_t term, incarnation, last_job;
};

/* One record, so that a lost one can be named. */
struct anchor_entry {
	uint64_t number; /* 1 for the first */
	uint64_t job;	 /* 0: none */
	uint64_t window; /* of a commit or an update; id of a checkpoint */
	uint32_t kind;	 /* enum journal_kind */
	uint32_t uid;	 /* of a new job */
};

/* One place in which it is noted. */
struct anchor_copy {
	int fd;	    /* -1: none */
	bool found; /* it has a mark that can be read */
	uint64_t seq;
	struct anchor_mark mark;
};

struct anchor {
	struct anchor_copy file, kept;
	/* the operator has said that the journal counts as it is: the file says so until the next note */
	bool accepted;
	bool dirty; /* noted and not synced */
};

/* Reads both copies; nothing is written. `kept`: a descriptor of such memory, taken, or -1. ST_IO_ERROR (logged). */
enum status anchor_read(struct anchor *, const char *path, int kept);
/* The one with more records; NULL: there is none. */
const struct anchor_copy *anchor_newest(const struct anchor *);
/* The entry of that record; false: it is not there any more. */
bool anchor_entry(const struct anchor_copy *, uint64_t number, struct anchor_entry *out);

/* Makes the file if there is none, durably, and with `keep` the memory; notes the mark in both, and its last record if
 * that is not NULL. ST_IO_ERROR (logged). */
enum status anchor_begin(struct anchor *, const char *path, bool keep, const struct anchor_mark *,
			 const struct anchor_entry *last);
/* The journal now stands at the mark; the entries are its last n records. ST_IO_ERROR (logged). */
enum status anchor_note(struct anchor *, const struct anchor_mark *, const struct anchor_entry *, size_t n);
/* Makes the file's last note durable, if it is not. ST_IO_ERROR (logged). */
enum status anchor_sync(struct anchor *);
/* The file alone, with the mark and the operator's word; durable. ST_IO_ERROR (logged). */
enum status anchor_accept(struct anchor *, const char *path, const struct anchor_mark *);
void anchor_close(struct anchor *); /* takes what anchor_read has left */

#endif

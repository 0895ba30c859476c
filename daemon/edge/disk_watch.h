/* SPDX-License-Identifier: Apache-2.0 */
/* The room on state_dir's disk, and the journal's reserve there. Loop thread; the disk is asked on the journal's
 * thread.
 *
 * Once a second the free bytes are read. When too few are left, new jobs and checkpoints are refused, and whatever runs
 * goes on: the journal has a reserve of its own (store/reserve.h), which is filled up again when there is room.
 */
#ifndef GACC_EDGE_DISK_WATCH_H
#define GACC_EDGE_DISK_WATCH_H

#include "edge/daemon.h"

struct disk_watch;

struct disk_state {
	bool full;		  /* new jobs and checkpoints in state_dir are refused */
	uint64_t free, total;	  /* bytes that gaccd's user may write; of the file system */
	uint64_t reserve, wanted; /* of the journal */
};

/* Asks the disk once before it returns. ST_NO_MEMORY. */
enum status disk_watch_new(struct daemon *);
void disk_watch_tick(struct daemon *, struct now);
/* Before it is called, persist_free has returned. NULL is fine. */
void disk_watch_free(struct disk_watch *);

struct disk_state disk_watch_state(const struct daemon *);
#define DISK_WATCH_FULL "MiB are free on the disk of"	       /* is in `why` of disk_watch_admit */
#define DISK_WATCH_NO_ROOM "the disk of its state_dir is full" /* why a journal takes no new job */

/* May `what` ("a new job"), which takes so many bytes of state_dir, begin? ST_RESOURCE_EXHAUSTED with `why`. */
enum status disk_watch_admit(const struct daemon *, const char *what, uint64_t bytes, char *why, size_t n_why);

/* For a gaccd that cannot start: returns when state_dir has room, after two seconds at the latest, so that it does not
 * start and end in a tight loop. Blocks. */
void disk_watch_wait(const char *state_dir);

#endif

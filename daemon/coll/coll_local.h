/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between threads of one process: the members of a communicator read each other's memory. For tests, and
 * for jobs whose parts share a process. coll.h describes the calls; this is what is particular here:
 *
 * Each operation begins when all members have called it and ends when none needs another's memory any more. A waiting
 * member sleeps. An aborted call returns as soon as the copy of a piece and the callback that runs have ended, and when
 * no other member copies from its memory. */
#ifndef GACC_COLL_COLL_LOCAL_H
#define GACC_COLL_COLL_LOCAL_H

#include "coll/coll.h"

/* Members that are to meet open the same net. NULL: no memory. Freed by coll_net_free. */
struct coll_net *coll_local_new(void);

/* As if the member's process had been killed: its calls end (UNAVAILABLE), the others hear that it has died. Its thread
 * frees it by coll_leave, as ever. Any thread, as coll_abort. */
void coll_local_die(struct coll *);

/* Forgets communicators of before->job that are older than *before and in which nobody is. The net remembers a
 * communicator, with its lives, until then: some KB. Any thread. */
void coll_local_purge(struct coll_net *, const struct coll_id *before);
uint32_t coll_local_count(struct coll_net *); /* communicators that it remembers; any thread */

#endif

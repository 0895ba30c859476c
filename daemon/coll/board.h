/* SPDX-License-Identifier: Apache-2.0 */
/* Where the members of a communicator find each other's addresses: the coordinator's memory, nothing durable.
 *
 * Pure state machine; one thread. Each member puts its address (blob) with the life of its engine; when the D addresses
 * are complete they are sent to all. A board is keyed by the communicator (struct coll_id).
 *
 *   state      | event                                       | next       | answer
 *   -----------+---------------------------------------------+------------+---------------------------------------
 *   none       | open, 1 <= D <= COLL_MAX_PARTS              | COLLECTING | OK
 *   none       | put                                         | none       | STALE_ATTEMPT: purged, or never opened
 *   COLLECTING | put of a missing part                       | COLLECTING | OK
 *              |                                             | COMPLETE   | OK, if it was the last one
 *   both       | put of the same part, life and bytes        | same       | OK: it was sent again
 *   both       | put of the same part and life, other bytes  | same       | MALFORMED
 *   both       | put of the same part, another life          | same       | ALREADY_EXISTS: it needs the next one
 *   both       | put: part >= D, life 0, 0 or too many bytes | same       | INVALID_ARGUMENT
 *   both       | open with the same D                        | same       | OK
 *   any        | open with another D, or one out of bounds   | same       | INVALID_ARGUMENT
 *   both       | purge                                       | none       |
 *
 * "Both" are COLLECTING and COMPLETE. Without memory the answer is NO_MEMORY, and nothing has changed.
 *
 * A communicator that cannot become complete, because a member has died, stays until it is purged: whoever waits for it
 * is told by the coordinator, which opens the next one. Purge names all communicators of a job below one: addresses of
 * the present one are never touched by the end of an older one.
 */
#ifndef GACC_COLL_BOARD_H
#define GACC_COLL_BOARD_H

#include "coll/coll.h"

enum board_state { BOARD_NONE, BOARD_COLLECTING, BOARD_COMPLETE };

struct board;

struct board *board_new(void);	 /* NULL: no memory */
void board_free(struct board *); /* NULL is fine */

enum status board_open(struct board *, const struct coll_id *, uint32_t n_parts);
/* At most COLL_MAX_BLOB bytes, which are copied. */
enum status board_put(struct board *, const struct coll_id *, uint32_t part, uint64_t life, const void *blob, size_t n);

enum board_state board_state(const struct board *, const struct coll_id *);
/* When complete: D addresses in part order, valid until the purge; else NULL. */
const struct coll_address *board_addresses(const struct board *, const struct coll_id *, uint32_t *n_parts);
/* Fills part[0..n) with those whose address is missing, ascending; returns n. */
uint32_t board_missing(const struct board *, const struct coll_id *, uint32_t part[COLL_MAX_PARTS]);

/* Forgets all communicators of before->job that are older than *before. */
void board_purge(struct board *, const struct coll_id *before);
void board_purge_job(struct board *, uint64_t job);
uint32_t board_count(const struct board *); /* communicators that it knows */

#endif

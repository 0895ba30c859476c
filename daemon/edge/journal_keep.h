/* SPDX-License-Identifier: Apache-2.0 */
/* The journal as gaccd opens it: with the anchor that the service manager keeps, and checked against the jobs' memory.
 */
#ifndef GACC_EDGE_JOURNAL_KEEP_H
#define GACC_EDGE_JOURNAL_KEEP_H

#include "edge/daemon.h"

#define JOURNAL_KEEP_NAME "journal" /* in the descriptor store */

/* Opens d->journal. As journal_open_kept; ST_MALFORMED sets d->journal_lost. */
enum status journal_keep_open(struct daemon *d, const char *path);
/* When all jobs have been read, before any of them takes its memory: stored memory of another job of the same id, or
 * that is damaged, is not there for them (docs/protocol.md, "Whose memory it is"). ST_MALFORMED (logged) sets
 * d->journal_lost: this is not the journal of that memory, and the operator has not said that it may go. */
enum status journal_keep_owners(struct daemon *d);
/* After hosted_recover: no job's memory is ahead of the journal, and none is of a job that the journal has never had.
 * ST_MALFORMED (logged) sets d->journal_lost; when the operator has accepted a loss, such jobs end instead. */
enum status journal_keep_check(struct daemon *d);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are set aside: the journal is intact, but this gaccd cannot read their records, or its checks refuse them.
 * Private to the edge; loop thread.
 *
 * Such a job is shown as FAILED, with the record and the reason. It has no state machines and no engine. Its rows stay
 * as they are, and the service manager keeps its memory, so that the gaccd that wrote them can continue it. It counts
 * toward its user's limits. Only Cancel writes END and releases the memory. Launched ranks end after
 * launch.orphan_timeout, because no gaccd connects to their launcher.
 */
#ifndef GACC_EDGE_HOSTED_ASIDE_H
#define GACC_EDGE_HOSTED_ASIDE_H

#include "edge/hosted.h"
#include "store/journal.h"

struct prepared;

/* One whose specification cannot be read, with what can be read of it, which is taken. Also of a job that has ended:
 * then it is not set aside, and this is all there is to show. ST_NO_MEMORY. */
enum status hosted_aside_new(struct daemon *, const struct journal_job *, struct prepared *, struct hosted **out);
/* Sets it aside. `record`: its name in the journal. ST_NO_MEMORY. */
enum status hosted_set_aside(struct hosted *, const char *record, const char *why);
/* The same for a job that no node takes: place.why says which record is wrong. */
enum status hosted_aside_refused(struct hosted *);
/* The job is given up, with this reason: END is written, then its memory goes. */
void hosted_aside_give_up(struct hosted *, const char *reason);

#endif

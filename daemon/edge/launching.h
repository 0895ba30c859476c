/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that gaccds launch, each those of its own parts: what the coordinator of the job does about them.
 * Private to the edge; loop thread. */
#ifndef GACC_EDGE_LAUNCHING_H
#define GACC_EDGE_LAUNCHING_H

#include "control/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct daemon;
struct hosted;
struct journal_bytes;
struct link_message;
struct Gacc__V1__Job;

/* Starts the job's ranks, by way of a launcher on each of its nodes. */
void launching_begin(struct hosted *);
/* Somebody cancels the job. Ranks of one that has completed get no more time to end by themselves. grace_ns: between
 * SIGTERM and SIGKILL when its ranks are stopped, 0 being the specification's; if they are being stopped already, it
 * can only become less. Does nothing to a job whose ranks gaccd has not started. Not durable: a later gaccd gives them
 * the specification's. */
void launching_cancel(struct hosted *, int64_t grace_ns);
/* Finds the launcher that an earlier gaccd has started on this node. Of an ended job: or starts one, if that has died
 * before its end. */
bool launching_adopt(struct hosted *);
void launching_tick(struct hosted *, struct now);
/* Lets go of the launchers: they and the ranks live on. */
void launching_free(struct hosted *);
/* Nothing is left to do for it. */
bool launching_over(const struct hosted *);

/* ---- launching_news.c ---- */
/* LINK_LAUNCHED: how the ranks of another node are. */
void launching_take_news(struct daemon *, const struct link_message *);

/* ---- launching_far.c ---- */
/* The part's node has a new link: what is wanted there is sent again. from_the_beginning: its incarnations begin
 * anew. */
void launching_linked(struct hosted *, uint32_t part, bool from_the_beginning);

/* ---- launching_recall.c ---- */
/* How the ranks of an ended job ended, from the journal; what cannot be read is left out. */
void launching_exits_restore(struct hosted *, const struct journal_bytes *);

/* ---- launching_view.c ---- */
/* Fills in what is known of processes; false: no memory. */
bool launching_fill(const struct hosted *, struct Gacc__V1__Job *);
/* A path of the specification with the job's id, name and uuid in it; malloc'ed, NULL without memory. */
char *hosted_path(const struct hosted *, const char *pattern);
/* The directory of the ranks' logs, %j, %x and %u replaced; malloc'ed, "" when there is none. */
char *hosted_log_dir(const struct hosted *);

#endif

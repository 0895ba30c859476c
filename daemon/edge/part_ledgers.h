/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of a window on their way from a part here to its coordinator, for the history
 * (cluster/ledger_message.h). Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_PART_LEDGERS_H
#define GACC_EDGE_PART_LEDGERS_H

struct part;
struct report;

/* After a report with the part's vote: sends the window's ledger, once. Until the window is committed nothing
 * overwrites what it reads. What there is no memory for is not sent. */
void part_ledger_send(struct part *, const struct report *);

#endif

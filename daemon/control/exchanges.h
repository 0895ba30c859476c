/* SPDX-License-Identifier: Apache-2.0 */
/* How many jobs of several parts may be in an exchange on one node at the same time (engine.exchanges), and which goes
 * next: an exchange takes one slot on every node of its job in one turn, or none.
 *
 * Pure state machine; one thread; time is an argument.
 *
 *   state    | event                                              | next    | what is done
 *   ---------+----------------------------------------------------+---------+-------------------------------------
 *   IDLE     | ask: it may go (below)                             | HOLDS   | one slot on each of its nodes
 *   IDLE     | ask: it may not                                    | WAITS   | it is the last in the order
 *   WAITS    | ask                                                | WAITS   | its place stays
 *   WAITS    | another job gives, and now it may go               | GRANTED | one slot on each of its nodes
 *   GRANTED  | exchanges_next names it; ask                       | HOLDS   |
 *   HOLDS    | ask                                                | HOLDS   |
 *   WAITS    | give                                               | IDLE    | those behind it may go now
 *   GRANTED, | give                                               | IDLE    | its slots are free; those that wait may
 *   HOLDS    |                                                    |         | go now
 *
 * A job may go when each of its nodes has a free slot, and none of them is kept for a job before it. Nodes are kept for
 * a job that has waited for more than EXCHANGES_PASS_NS: until then later jobs may pass it where it cannot go.
 *
 * So nobody waits for ever, as long as those that hold slots give them back: those before a job have waited for longer
 * than it has, and once it has waited for EXCHANGES_PASS_NS no later job takes a slot on any of their nodes. Of them
 * the first goes as soon as those have given back that held slots on its nodes, then the second, and so on. A job that
 * waits holds nothing, so there is no deadlock.
 */
#ifndef GACC_CONTROL_EXCHANGES_H
#define GACC_CONTROL_EXCHANGES_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXCHANGES_PASS_NS (INT64_C(1) * 1000000000)

struct exchanges;

/* A job of several parts: the caller's memory, at the same place from add to remove. Zeroed: it is not added. */
struct exchanger {
	uint64_t job;
	uint32_t *node, n_nodes; /* indices, each once */
	enum { EXCHANGER_IDLE, EXCHANGER_WAITS, EXCHANGER_GRANTED, EXCHANGER_HOLDS } state;
	int64_t since_ns;	       /* WAITS: when it has asked */
	struct exchanger *next, *prev; /* of the list that it is in; IDLE: of none */
};

/* `limit` >= 1: slots of each node. ST_NO_MEMORY. */
enum status exchanges_new(struct exchanges **out, uint32_t limit);
/* Takes NULL. No job is left in it. */
void exchanges_free(struct exchanges *);
/* The names of the nodes that its parts are on, copied; one that is named several times counts once. ST_NO_MEMORY. */
enum status exchanges_add(struct exchanges *, struct exchanger *, uint64_t job, const char *const *node, uint32_t n);
/* Gives back what it holds. Also of one that is not added. */
void exchanges_remove(struct exchanges *, struct exchanger *, int64_t now_ns);

/* true: it holds its slots. false: it waits, and exchanges_next will name it. */
bool exchanges_ask(struct exchanges *, struct exchanger *, int64_t now_ns);
/* The exchange is over, or is not wanted any more. Afterwards others may be GRANTED. */
void exchanges_give(struct exchanges *, struct exchanger *, int64_t now_ns);
/* The next one whose turn has come while it waited: it holds its slots. NULL: there is none. */
struct exchanger *exchanges_next(struct exchanges *);
bool exchanges_granted(const struct exchanges *); /* there is one */
/* What one that waits waits for: "an exchange slot on node b: jobs 3 and 4 exchange"; "" if it does not wait. */
void exchanges_describe(const struct exchanges *, const struct exchanger *, char *text, size_t n, int64_t now_ns);

#endif

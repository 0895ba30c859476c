/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of coll_local: what a communicator knows of its members, and how they wait for each other.
 *
 * One mutex and one condition variable for each communicator. Whatever a member does outside the mutex (copies,
 * callbacks) touches memory that the counters below make its own:
 *
 *   entered   n: the member has called its n-th operation, its memory may be read once all have entered n
 *   ready     pieces of its share that others may copy (gather, broadcast)
 *   reading   set while it copies from those parts' memory, and never begun once the communicator is broken. A call
 *             returns only when nobody reads its memory, which takes the copy of a piece at most
 *   finished  n: its n-th operation is done, it needs nothing more from the others
 */
#ifndef GACC_COLL_LOCAL_IMPL_H
#define GACC_COLL_LOCAL_IMPL_H

#include "coll/coll.h"

#include <pthread.h>

enum local_operation { LOCAL_EXCHANGE, LOCAL_GATHER, LOCAL_BROADCAST, LOCAL_BARRIER, LOCAL_SUM_SMALL };

/* What must be equal at all members. No padding: it is compared as bytes. */
struct local_shape {
	uint64_t operation, piece, element;
	uint64_t bounds[COLL_MAX_PARTS + 1];
	uint64_t divided; /* 1: by `division` */
	struct coll_division division;
};

enum local_end { LOCAL_ABORTED, LOCAL_LEFT, LOCAL_DIED, LOCAL_FAILED };

struct local_peer {
	uint64_t life; /* 0: not known yet */
	bool opened;   /* that life is here, or was */
	bool joined;
	uint64_t entered, finished;
	uint64_t moved; /* grows with each step: what stalls does not move */
	const unsigned char *memory;
	uint64_t ready;
	uint64_t reading, waits_for; /* bit s: part s */
};

struct local_comm {
	struct coll_id id;
	uint32_t n_parts;
	uint32_t n_inside; /* members that have not left; the net's mutex */
	struct local_comm *next;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool broken;
	uint32_t breaker; /* part */
	enum local_end end;
	uint64_t shape_of; /* the operation (entered) that `shape` belongs to */
	uint32_t shape_by; /* part that was the first in it */
	struct local_shape shape;
	struct local_peer peer[COLL_MAX_PARTS];
};

struct local_blob {
	uint64_t magic, net, part, life;
};

struct local_member {
	struct coll base;
	struct local_comm *comm;
	struct local_net *net;
	struct local_peer *me;
	int64_t stall_ns, join_ns;
	struct local_blob blob;
	/* the mutex */
	enum coll_phase phase;
	uint64_t pieces;
	struct coll_failure failure;
	/* the communication thread */
	uint64_t got[COLL_MAX_PARTS]; /* pieces of each part's share in this gather */
	void *scratch;
	size_t n_scratch;
};

/* ---- waiting (local_wait.c); under the mutex ---- */

/* The parts that the member waits for. 0: the wait is over. */
typedef uint64_t local_awaited_fn(const struct local_member *);

/* Until nobody is awaited; ST_OK even if the communicator is broken by then. limit_ns: of the whole wait, 0: none. */
enum status local_wait(struct local_member *, local_awaited_fn *, int64_t limit_ns);
/* Breaks the communicator if it is not broken yet; the member's own failure is this one if it has none yet, and what
 * has broken the communicator before otherwise. The status of it. */
enum status local_break(struct local_member *, enum local_end, enum status, uint64_t suspects, const char *text);
/* The member's failure, after another member has broken the communicator. */
enum status local_broken(struct local_member *);
void local_changed(struct local_member *); /* it has moved: whoever waits looks again */

/* ---- operations (local_ops.c) ---- */

enum status local_exchange(struct coll *, const struct coll_exchange *);
enum status local_gather(struct coll *, const struct coll_gather *);
enum status local_broadcast(struct coll *, void *buffer, size_t n, uint32_t root);
enum status local_barrier(struct coll *);
enum status local_sum_small(struct coll *, const struct coll_sum_small *);

#endif

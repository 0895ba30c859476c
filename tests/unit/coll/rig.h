/* SPDX-License-Identifier: Apache-2.0 */
/* D members of a communicator in this process, each on a thread of its own, which have met through a real board. */
#ifndef GACC_TEST_COLL_RIG_H
#define GACC_TEST_COLL_RIG_H

#include "coll/board.h"
#include "coll/coll_local.h"
#ifdef OVER_GLOO
#include "coll/coll_gloo.h"
#endif

#include <pthread.h>
#include <stdatomic.h>

#define MS INT64_C(1000000)

/* The tests of what coll.h promises are built twice: for members in one process, and over Gloo (loopback). */
#ifdef OVER_GLOO
static const bool over_gloo = true;
#else
static const bool over_gloo = false;
#endif

/* Bytes of the largest small sum of a rig's members. */
#define RIG_SMALL (128u << 10)

struct rig {
	struct coll_net *net; /* made by the first rig_open unless it is set */
	struct board *board;
	struct coll_id id; /* of the communicator; rig_open goes on to the next k */
	uint32_t n;
	int64_t stall_ns, join_ns;	       /* 0: a minute */
	int64_t first_stall_ns, first_join_ns; /* of part 0; 0: as the others */
	uint64_t life[COLL_MAX_PARTS];
	struct coll *member[COLL_MAX_PARTS];
	const struct coll_address *all;
};

/* A member's thread. */
struct actor {
	struct rig *rig;
	struct coll *c;
	uint32_t part;
	uint64_t seed; /* of its delays; 0: none */
	void *arg;
	enum status status;
	int64_t took_ns, cpu_ns; /* of its function */
	const char *wrong;	 /* what it has found; NULL: nothing */
};
typedef void actor_fn(struct actor *);

/* Opens n members and collects their addresses. */
void rig_open(struct rig *, uint32_t n);
/* Runs fn for each member on its own thread, and waits for all. `seed`: see above, made different for each. */
void rig_run(struct rig *, struct actor *a, actor_fn *fn, uint64_t seed, void *arg);
/* The same in two halves. */
void rig_start(struct rig *, struct actor *a, pthread_t *thread, actor_fn *fn, uint64_t seed, void *arg);
void rig_wait(struct rig *, pthread_t *thread);
void rig_join(struct rig *); /* coll_join of all, which succeeds */
void rig_leave(struct rig *);
void rig_close(struct rig *); /* all of it */

void act_join(struct actor *);
void act_barrier(struct actor *);

/* ---- data and operations ---- */

struct shape {
	uint64_t bounds[COLL_MAX_PARTS + 1];
	uint64_t piece;
	uint64_t salt; /* of the values */
};

/* Shares of random sizes, some empty; `element` bytes is what all are multiples of. */
void shape_draw(struct shape *, uint32_t n, uint32_t element, uint64_t seed);
/* A number between 0 and below - 1, from *seed, which goes on. */
uint64_t draw(uint64_t *seed, uint64_t below);
/* Sleeps for up to 0.3 ms, or not at all. */
void dawdle(uint64_t *seed);
int64_t now_ns(void);

/* Each does the operation with memory of its own, which is freed at once when the call returns, and checks what came if
 * it is ST_OK; what is wrong is in a->wrong. */
enum status do_exchange(struct actor *, const struct shape *);
enum status do_gather(struct actor *, const struct shape *);
/* Of n bytes, at most RIG_SMALL. */
enum status do_sum_small(struct actor *, uint64_t n, uint64_t salt);
enum status do_broadcast(struct actor *, const struct shape *, uint32_t root);

/* Value i of the arena of a part: sums of them depend on the order. */
float value_of(uint32_t part, uint64_t i, uint64_t salt);
/* ((v0 + v1) + v2) + ... */
float sum_in_order(uint32_t n, uint64_t i, uint64_t salt);

#endif

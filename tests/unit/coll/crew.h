/* SPDX-License-Identifier: Apache-2.0 */
/* D members of a communicator over Gloo, each in a process of its own: they meet in shared memory. */
#ifndef GACC_TEST_COLL_CREW_H
#define GACC_TEST_COLL_CREW_H

#include "rig.h"

#include <sys/types.h>

#define CREW_MAX 8

/* Of one process; shared with the test. */
struct hand {
	pid_t pid;
	size_t n_blob;
	unsigned char blob[COLL_MAX_BLOB];
	atomic_bool open, joined, ended;
	atomic_ullong operations; /* completed */
	enum status status;	  /* of its last call */
	struct coll_failure failure;
	int64_t failed_ns;  /* the clock when that call returned */
	int64_t aborted_ns; /* and when coll_abort was called */
	char wrong[160];
	int left_over; /* descriptors and threads after coll_net_free, beyond those before coll_gloo_new */
};

struct crew {
	uint32_t n;
	int64_t stall_ns, join_ns;
	uint64_t seed;
	uint32_t aborts;       /* this part calls coll_abort some time after its first operation; n: none */
	atomic_bool abort_now; /* or at once */
	atomic_bool go;	       /* to join, once all are open */
	atomic_bool stop;
	struct hand hand[CREW_MAX];
};

/* Calls operations of `a` until one fails, or a number of its own. */
typedef void crew_fn(struct actor *a, struct crew *, struct hand *);

struct crew *crew_new(uint32_t n, uint64_t seed);
/* Starts them; they open, wait for `go`, join, and call fn. */
void crew_start(struct crew *, crew_fn *fn);
void crew_wait_open(struct crew *);
/* Until each has completed so many operations. */
void crew_wait_operations(struct crew *, unsigned long long n);
/* Until all but one (n: all) have ended, well: else the test fails. */
void crew_wait(struct crew *, uint32_t but);
void crew_end(struct crew *); /* kills who is left */

#endif

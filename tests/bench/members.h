/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are members of one communicator over Gloo, on loopback or each in a network namespace of its own
 * (netns.py), and how long each took for what. Failures end the program with a message. */
#ifndef GACC_TESTS_BENCH_MEMBERS_H
#define GACC_TESTS_BENCH_MEMBERS_H

#include "bench.h"

#include "coll/coll.h"

#include <pthread.h>

#define MEMBERS_MAX 8
#define MEMBERS_MAX_WHAT 4
#define MEMBERS_ADDRESS 20 /* bytes of an address as a text */

/* In memory that all processes share. */
struct members {
	pthread_barrier_t barrier; /* of all */
	uint32_t n;
	size_t n_blob[MEMBERS_MAX];
	unsigned char blob[MEMBERS_MAX][COLL_MAX_BLOB];
	/* of each member, for each thing that is measured, in each round: seconds */
	double wall[MEMBERS_MAX][MEMBERS_MAX_WHAT][BENCH_MAX_ROUNDS];
	double cpu[MEMBERS_MAX][MEMBERS_MAX_WHAT][BENCH_MAX_ROUNDS];
};

/* What the namespaces' names begin with; NULL: all are on loopback. To be set before anything else. */
extern const char *members_namespaces;

struct members *members_new(uint32_t n);
void members_free(struct members *);

/* Of member `part`, as a text. */
void members_address(uint32_t part, char out[MEMBERS_ADDRESS]);
/* Sockets that this thread makes from now on, and its threads and processes, are where member `part` is. */
void members_enter(uint32_t part);
/* In the process of member `part`, which has entered: a member that is connected to all others. congestion: NULL, or
 * what TCP is to use. */
struct coll *members_join(struct members *, uint32_t part, const char *congestion);

typedef void members_fn(void *arg);
/* In each member's process, all at the same time: how long fn(arg) takes here. */
void members_measure(struct members *, uint32_t part, unsigned what, size_t round, members_fn *fn, void *arg);
/* Waits for the processes; CPUs that others have used since `begin` and `machine` (bench_seconds, bench_machine_cpu).
 */
double members_wait(const struct bench_group *, double begin, double machine);
/* Wall time of the slowest member; CPU time of all. */
double members_slowest(const struct members *, unsigned what, size_t round);
double members_cpu(const struct members *, unsigned what, size_t round);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A gaccd on this machine, or several that are one cluster: the first, "a", coordinates; "b", "c" and "d" dial it. */
#ifndef GACC_TESTS_BENCH_CLUSTER_H
#define GACC_TESTS_BENCH_CLUSTER_H

#include "bench.h"

#define CLUSTER_MAX 4

struct cluster {
	int n;
	struct bench_daemon node[CLUSTER_MAX]; /* n */
	char token[32];			       /* path of a file; empty: one node needs none */
};

/* Starts n gaccds and waits until all are linked. Before gRPC is initialised in this process. `threads`: engine.threads
 * of each. Ends the program when that does not succeed. */
void cluster_start(struct cluster *cluster, int n, unsigned threads);
/* Ends them; nothing is left. */
void cluster_stop(struct cluster *cluster);
/* This process, the gaccds and their engines as they are now. */
struct bench_group cluster_group(const struct cluster *cluster);

#endif

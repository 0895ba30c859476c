/* SPDX-License-Identifier: Apache-2.0 */
/* sim_cluster_alloc: allocations of daemon/control, and of what packs and reads messages, fail in runs of many nodes;
 * in one of four runs the job has 2 parts, in the others 3, 4 or 5 (alloc.h has the options). */
#include "alloc.h"
#include "cluster.h"

static bool run(uint64_t seed, bool verbose, char *why, size_t n_why)
{
	static struct cluster c;
	c.whole.verbose = verbose;
	return cluster_run(&c, seed, 2 + (uint32_t)(seed % 4), why, n_why);
}

int main(int argc, char **argv)
{
	return alloc_main(argc, argv, run);
}

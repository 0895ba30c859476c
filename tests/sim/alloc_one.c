/* SPDX-License-Identifier: Apache-2.0 */
/* sim_alloc: allocations of daemon/control fail in runs of one node (alloc.h has the options). */
#include "alloc.h"
#include "sim.h"

static bool run(uint64_t seed, bool verbose, char *why, size_t n_why)
{
	static struct sim s;
	s.verbose = verbose;
	return sim_run(seed, &s, why, n_why);
}

int main(int argc, char **argv)
{
	return alloc_main(argc, argv, run);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* sim_cluster [-d parts] [-n runs] [-s first seed] [-v]: seeded runs of a job of so many parts, or of 1 to 16 as the
 * seed draws it; prints the first failing seed and exits 1. -v: what happens, and what a failed run looks like. */
#include "cluster.h"

#include <stdlib.h>
#include <unistd.h>

static void add(struct cluster_counts *all, const struct cluster_counts *n)
{
	all->trainers += n->trainers;
	all->engines += n->engines;
	all->gaccds += n->gaccds;
	all->nodes += n->nodes;
	all->takeovers += n->takeovers;
	all->cuts += n->cuts;
	all->flushes += n->flushes;
	all->comms += n->comms;
	all->joined += n->joined;
	all->sums += n->sums;
	all->fills += n->fills;
	all->gathers += n->gathers;
	all->serves += n->serves;
	all->broken += n->broken;
	all->lost += n->lost;
}

int main(int argc, char **argv)
{
	static struct cluster c;
	struct cluster_counts n = { 0 };
	uint64_t runs = 1000, first = 1, events = 0, windows = 0;
	uint32_t parts = 0;
	int64_t slowest = 0, still = 0;
	int opt;
	while ((opt = getopt(argc, argv, "d:n:s:v")) != -1) {
		if (opt == 'd')
			parts = (uint32_t)strtoul(optarg, NULL, 10);
		else if (opt == 'n')
			runs = strtoull(optarg, NULL, 10);
		else if (opt == 's')
			first = strtoull(optarg, NULL, 10);
		else if (opt == 'v')
			c.whole.verbose = true;
		else
			return 2;
	}
	if (parts > CLUSTER_MAX)
		return 2;
	for (uint64_t seed = first; seed < first + runs; seed++) {
		char why[512];
		if (!cluster_run(&c, seed, parts, why, sizeof(why))) {
			printf("FAILED %s (%u parts on %u nodes)\n", why, c.n_parts, c.n_nodes);
			return 1;
		}
		add(&n, &c.n);
		events += c.whole.n_handled;
		windows += c.whole.n_windows;
		slowest = c.whole.now > slowest ? c.whole.now : slowest;
		still = c.longest_still > still ? c.longest_still : still;
	}
	printf("%llu runs, %llu events, %llu windows committed: all invariants held\n", (unsigned long long)runs,
	       (unsigned long long)events, (unsigned long long)windows);
	printf("deaths: %llu trainers, %llu engines, %llu gaccds, %llu nodes, %llu with their memory; %llu takeovers, "
	       "%llu "
	       "cuts, %llu flushes; %llu of %llu communicators joined, %llu broken, %llu sums, %llu fills, %llu "
	       "gathers, %llu shares served late\n",
	       (unsigned long long)n.trainers, (unsigned long long)n.engines, (unsigned long long)n.gaccds,
	       (unsigned long long)n.nodes, (unsigned long long)n.lost, (unsigned long long)n.takeovers,
	       (unsigned long long)n.cuts, (unsigned long long)n.flushes, (unsigned long long)n.joined,
	       (unsigned long long)n.comms, (unsigned long long)n.broken, (unsigned long long)n.sums,
	       (unsigned long long)n.fills, (unsigned long long)n.gathers, (unsigned long long)n.serves);
	printf("slowest job %.1f s, longest time without a window after the faults %.1f s\n", (double)slowest / 1e9,
	       (double)still / 1e9);
	return 0;
}

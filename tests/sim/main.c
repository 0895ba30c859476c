/* SPDX-License-Identifier: Apache-2.0 */
/* sim [-n runs] [-s first seed] [-v]: seeded runs; prints the first failing seed and exits 1. */
#include "sim.h"

#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static struct sim s;
	uint64_t runs = 1000, first = 1, events = 0, kills = 0, windows = 0;
	int opt;
	while ((opt = getopt(argc, argv, "n:s:v")) != -1) {
		if (opt == 'n')
			runs = strtoull(optarg, NULL, 10);
		else if (opt == 's')
			first = strtoull(optarg, NULL, 10);
		else if (opt == 'v')
			s.verbose = true;
		else
			return 2;
	}
	for (uint64_t seed = first; seed < first + runs; seed++) {
		char why[512];
		if (!sim_run(seed, &s, why, sizeof(why))) {
			printf("FAILED %s\n", why);
			return 1;
		}
		events += s.n_handled;
		kills += s.n_kills;
		windows += s.n_windows;
	}
	printf("%llu runs, %llu events, %llu faults, %llu windows committed: all invariants held\n",
	       (unsigned long long)runs, (unsigned long long)events, (unsigned long long)kills,
	       (unsigned long long)windows);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* sim_alloc [-n seeds] [-s first seed] [-a allocation]: each seeded run again and again, and in each one allocation of
 * daemon/control fails, the first, the second, ... until there is no further one, or that of -a alone, with all its
 * events. What cannot be had is refused or tried again; all invariants hold, and the job ends.
 *
 * The sources of control are compiled with malloc and its family renamed, so that it is theirs alone that are counted.
 */
#include "sim.h"

#include <stdlib.h>
#include <unistd.h>

void *sim_malloc(size_t n);
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *p, size_t n);

static unsigned calls, fail_at;

static bool fails(void)
{
	return ++calls == fail_at;
}

void *sim_malloc(size_t n)
{
	return fails() ? NULL : malloc(n);
}

void *sim_calloc(size_t n, size_t size)
{
	return fails() ? NULL : calloc(n, size);
}

void *sim_realloc(void *p, size_t n)
{
	return fails() ? NULL : realloc(p, n);
}

/* False: an invariant broke; it is printed. Leaves in `calls` how many allocations there were. */
static bool run(struct sim *s, uint64_t seed, unsigned n)
{
	char why[512];
	calls = 0;
	fail_at = n;
	if (sim_run(seed, s, why, sizeof(why)))
		return true;
	printf("FAILED %s, allocation %u\n", why, n);
	return false;
}

int main(int argc, char **argv)
{
	static struct sim s;
	uint64_t seeds = 100, first = 1, runs = 0;
	unsigned only = 0;
	int opt;
	while ((opt = getopt(argc, argv, "n:s:a:")) != -1) {
		if (opt == 'n')
			seeds = strtoull(optarg, NULL, 10);
		else if (opt == 's')
			first = strtoull(optarg, NULL, 10);
		else if (opt == 'a')
			only = (unsigned)strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	if (only) {
		s.verbose = true;
		return run(&s, first, only) ? 0 : 1;
	}
	for (uint64_t seed = first; seed < first + seeds; seed++) {
		unsigned n = 0;
		do {
			if (!run(&s, seed, n++))
				return 1;
			runs++;
		} while (n <= calls);
	}
	printf("%llu runs, one allocation failed in each: all invariants held\n", (unsigned long long)(runs - seeds));
	return runs > seeds ? 0 : 1;
}

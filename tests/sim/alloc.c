/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th allocation of the product fails, and what was allocated is freed: for sim_alloc and sim_cluster_alloc. What
 * cannot be had is refused or tried again; all invariants hold, and the job ends. */
#include "alloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- allocations that fail ---- */

#define MAX_CALLS (1 << 17)

static unsigned calls, fail_from, fail_to;
static const void *site[MAX_CALLS]; /* whence each call came */

static bool fails(const void *from)
{
	if (calls < MAX_CALLS)
		site[calls] = from;
	calls++;
	return calls >= fail_from && calls < fail_to;
}
#define FAILS() fails(__builtin_return_address(0))

void *sim_malloc(size_t n)
{
	return FAILS() ? NULL : malloc(n);
}

void *sim_calloc(size_t n, size_t size)
{
	return FAILS() ? NULL : calloc(n, size);
}

void *sim_realloc(void *p, size_t n)
{
	return FAILS() ? NULL : realloc(p, n);
}

/* ---- what is not freed ---- */

static long live;

#ifdef COUNT_LIVE
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);

/* These stand before libc's, for shared libraries, too. */
void *malloc(size_t n)
{
	void *p = __libc_malloc(n);
	live += p != NULL;
	return p;
}

void *calloc(size_t n, size_t size)
{
	void *p = __libc_calloc(n, size);
	live += p != NULL;
	return p;
}

void *realloc(void *p, size_t n)
{
	void *moved = __libc_realloc(p, n);
	live += !p && moved;
	return moved;
}

void free(void *p)
{
	live -= p != NULL;
	__libc_free(p);
}
#endif

/* ---- runs ---- */

struct options {
	uint64_t seeds, first;
	unsigned most, length, only;
};

/* Leaves in `calls` how many allocations there were. n = 0: none fails. */
static bool run(alloc_run *body, uint64_t seed, unsigned n, const struct options *o)
{
	char why[512] = "";
	long before = live;
	calls = 0;
	fail_from = n;
	fail_to = n ? n + o->length : 0;
	bool ok = body(seed, o->only != 0, why, sizeof(why));
	if (ok && live != before)
		snprintf(why, sizeof(why), "seed %llu: %ld allocations are not freed", (unsigned long long)seed,
			 live - before);
	if (!ok || live != before)
		printf("FAILED %s, allocation %u\n", why, n);
	return ok && live == before;
}

/* Which of a run's calls are to fail: all, or `most` of each place in the source, and others of each seed. Their
 * number.
 */
static unsigned choose(uint64_t seed, unsigned most, unsigned *chosen)
{
	static struct {
		const void *site;
		unsigned n, seen;
	} place[256];
	static unsigned of[MAX_CALLS];
	unsigned n_places = 0, n = 0;
	for (unsigned i = 0; i < calls; i++) {
		for (of[i] = 0; of[i] < n_places && place[of[i]].site != site[i]; of[i]++)
			;
		if (of[i] == n_places) {
			assert(n_places < sizeof(place) / sizeof(*place));
			place[n_places].site = site[i];
			place[n_places].n = place[n_places].seen = 0;
			n_places++;
		}
		place[of[i]].n++;
	}
	for (unsigned i = 0; i < calls; i++) {
		unsigned all = place[of[i]].n, step = most && all > most ? (all + most - 1) / most : 1;
		if (place[of[i]].seen++ % step == seed % step)
			chosen[n++] = i + 1;
	}
	return n;
}

/* False: one failed. */
static bool run_seed(alloc_run *body, uint64_t seed, const struct options *o, uint64_t *n_runs)
{
	static unsigned chosen[MAX_CALLS];
	if (!run(body, seed, 0, o))
		return false;
	assert(calls <= MAX_CALLS);
	unsigned n = choose(seed, o->most, chosen);
	for (unsigned i = 0; i < n; i++)
		if (!run(body, seed, chosen[i], o))
			return false;
	*n_runs += n;
	return true;
}

static bool parse(int argc, char **argv, struct options *o)
{
	int opt;
	while ((opt = getopt(argc, argv, "n:s:m:k:a:")) != -1) {
		uint64_t value = opt == '?' ? 0 : strtoull(optarg, NULL, 10);
		switch (opt) {
		case 'n':
			o->seeds = value;
			break;
		case 's':
			o->first = value;
			break;
		case 'm':
			o->most = (unsigned)value;
			break;
		case 'k':
			o->length = (unsigned)value;
			break;
		case 'a':
			o->only = (unsigned)value;
			break;
		default:
			return false;
		}
	}
	return o->length != 0;
}

int alloc_main(int argc, char **argv, alloc_run *body)
{
	struct options o = { .seeds = 100, .first = 1, .length = 1 };
	uint64_t n = 0;
	if (!parse(argc, argv, &o))
		return 2;
	if (o.only)
		return run(body, o.first, o.only, &o) ? 0 : 1;
	for (uint64_t seed = o.first; seed < o.first + o.seeds; seed++)
		if (!run_seed(body, seed, &o, &n))
			return 1;
	printf("%llu runs, an allocation failed in each: all invariants held\n", (unsigned long long)n);
	return n ? 0 : 1;
}

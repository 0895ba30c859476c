/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a simulation in which allocations of the product fail: sim_alloc (one node), sim_cluster_alloc (many).
 *
 * The product's sources are compiled with malloc and its family renamed, so that it is theirs alone that are counted.
 * What is not freed at the end of a run is counted in the whole process; not in a build with a sanitizer, which looks
 * for leaks itself.
 */
#ifndef GACC_TESTS_ALLOC_H
#define GACC_TESTS_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *sim_malloc(size_t n);
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *p, size_t n);

/* One simulated run from its seed; false: an invariant broke, and `why` says which. Frees all that it has allocated. */
typedef bool alloc_run(uint64_t seed, bool verbose, char *why, size_t n_why);

/* [-n seeds] [-s first seed] [-m most] [-k length] [-a allocation]: each seeded run again and again, and in each the
 * allocation 1, 2, ... fails, with the `length` - 1 that follow. most: not all of them, but so many of each place in
 * the source. -a: that one alone, with all its events. Returns the exit status of a test. */
int alloc_main(int argc, char **argv, alloc_run *);

#endif

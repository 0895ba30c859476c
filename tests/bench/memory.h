/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory allows, measured in the run: plain reading, a triad, a copy by one thread, an add by the product's
 * kernels.
 *
 * Work is split as the engine does it, over as many threads. Arrays hold normal floats and are touched before.
 */
#ifndef GACC_TESTS_MEMORY_H
#define GACC_TESTS_MEMORY_H

#include <stddef.h>

enum memory_pass {
	MEMORY_READ,  /* 4 B per element */
	MEMORY_TRIAD, /* 8 read, 4 written; non-temporal stores for arrays that leave the cache */
	MEMORY_COPY,  /* 4 and 4, one thread */
	MEMORY_ADD    /* the engine's pass with one slot: 8 and 4 */
};

struct memory_limits;
struct memory_limits *memory_limits_new(size_t n_elements, unsigned threads);
void memory_limits_free(struct memory_limits *limits);
/* n_elements floats, for reading. */
const void *memory_limits_data(const struct memory_limits *limits);
/* Seconds of one pass over n_elements. */
double memory_limits_time(struct memory_limits *limits, enum memory_pass pass);

#endif

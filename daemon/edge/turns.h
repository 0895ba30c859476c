/* SPDX-License-Identifier: Apache-2.0 */
/* How long the event loop is held: the longest turn, from one wait for events to the next. Private to the edge; loop
 * thread. */
#ifndef GACC_EDGE_TURNS_H
#define GACC_EDGE_TURNS_H

#include <stdint.h>
#include <uv.h>

struct turns {
	uv_prepare_t prepare;
	/* when this turn began, and how long the loop had waited for events until then */
	uint64_t last_ns, last_idle_ns;
	uint64_t longest_ns; /* ever */
	uint64_t bucket_ns[2], bucket_began_ns;
};

/* Begins to measure; before the loop runs. */
void turns_start(struct turns *, uv_loop_t *);
/* The longest turn of the last one to two seconds. */
uint64_t turns_recent_ns(const struct turns *);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a report costs as a message: one is packed for each push, and its coordinator unpacks it.
 *
 *     bench_messages
 */
#include "cluster/report_message.h"
#include "engine/control_page.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MICRO = 8 };
static const struct message_bounds bounds = { 0, MICRO, 1 };

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* As in the middle of a window: half of the ranks have given all. */
static void fill(struct rank_progress *rank, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		rank[i] = (struct rank_progress){ .rank = i,
						  .counted = i % 2 ? MICRO : 3,
						  .first_void = MICRO,
						  .attached = 1,
						  .known = 1,
						  .waiting_ns = i % 2 ? 1234567 : 0,
						  .pid = 100000 + i,
						  .weight = 128,
						  .ready_ns = i % 2 ? 1234567 : 0,
						  .last_push_unix_ns = INT64_C(1795397976000000000) + i };
}

static int run(uint32_t n)
{
	const struct part_ranks part = { n, NULL };
	struct rank_progress *rank = calloc(n, sizeof(*rank));
	uint64_t *words = calloc(control_words(n, MICRO), sizeof(*words));
	struct report r = { .job_id = 7,
			    .epoch = 1,
			    .incarnation = 3,
			    .term = 4,
			    .window = 812,
			    .start = START_PARAMS },
		      back;
	unsigned rounds = 400000 / (n + 10);
	char why[200];
	size_t bytes = 0;
	double packing = 0, unpacking = 0;
	if (!rank || !words)
		return 1;
	fill(rank, n);
	r.rank = rank;
	r.n_ranks = n;
	for (unsigned i = 0; i < rounds; i++) {
		double begin = now_us();
		void *m = report_pack(&r, &bytes);
		double packed = now_us();
		if (!m || report_unpack(m, bytes, &part, &bounds, &back, why, sizeof(why)))
			return 1;
		unpacking += now_us() - packed;
		packing += packed - begin;
		report_release(&back);
		free(m);
	}
	printf("report of %5u ranks: %6zu bytes, packed in %7.2f us, unpacked in %7.2f us\n", n, bytes,
	       packing / rounds, unpacking / rounds);
	free(rank);
	free(words);
	return 0;
}

int main(void)
{
	mallopt(M_TRIM_THRESHOLD, 64 << 20); /* as in gaccd (main.c): else page faults are what is measured */
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 16 << 20);
	return run(1) || run(8) || run(64) || run(1024) || run(65536);
}

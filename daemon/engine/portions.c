/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the segments of a job, however large, in portions of limited size. For runtime/part_memory.c in gaccd; runs in
 * the pool, whose threads other work also waits for. */
#include "engine/portions.h"

/* Some pages of the segment that is being made; goes on to the next when it has all. */
static enum status take_some(struct portions *p, uint64_t *left, char *why, size_t n_why)
{
	struct segment *s = &p->segment[p->at];
	const struct plan_segment *w = &p->wanted[p->at];
	uint64_t before = p->taken;
	enum status st = before ? ST_OK
				: segment_begin(s, p->job_id, p->generation, p->fingerprint, w->role, w->index,
						w->bytes, why, n_why);
	if (!st)
		st = segment_take(s, &p->taken, *left, why, n_why);
	if (st)
		return st;
	uint64_t cost = p->taken - before + PORTION_SEGMENT_COST;
	*left -= cost < *left ? cost : *left;
	if (p->taken == SEGMENT_DATA_OFFSET + s->data_bytes) {
		p->taken = 0;
		p->at++;
	}
	return ST_OK;
}

enum status portions_take(struct portions *p, uint64_t bytes, char *why, size_t n_why)
{
	enum status st = ST_OK;
	while (!st && bytes && !portions_done(p))
		st = take_some(p, &bytes, why, n_why);
	return st;
}

bool portions_done(const struct portions *p)
{
	return p->at == p->n;
}

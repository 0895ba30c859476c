/* SPDX-License-Identifier: Apache-2.0 */
/* A control segment with any bytes in it: read by gaccd after a crash, and by an engine. Its checksum is repaired, or
 * else nothing behind it would ever be reached. What is accepted must be usable, and be written and read back the same.
 */
#include "engine/control_page.h"
#include "engine/refusal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { RANKS = 3, MICRO = 5, THREADS = 2, TENSORS = 3 };

static void repair(const struct control_page *page, unsigned half)
{
	unsigned char *record = page->base + half * page->record_bytes;
	uint64_t seq, sum;
	memcpy(&seq, record, sizeof(seq));
	seq = (seq & ~UINT64_C(1)) | half; /* a record's number says which half it is in */
	memcpy(record, &seq, sizeof(seq));
	sum = XXH3_64bits_withSeed(record + sizeof(seq), page->record_bytes - 2 * sizeof(seq), seq);
	memcpy(record + page->record_bytes - sizeof(sum), &sum, sizeof(sum));
}

/* What gaccd and an engine do with a record that they have accepted. */
static void use(struct control_state *s)
{
	struct accum accum;
	struct accum_entry *next[RANKS * MICRO];
	static const struct ledger_cell ledger[RANKS * MICRO];
	const struct plan plan = {
		.ranks = RANKS, .slots = (RANKS + 1) * MICRO, .slots_per_rank = MICRO, .n_tensors = 1
	};
	const struct window_state w = { &plan, s, ledger, &accum };
	char text[REFUSAL_BYTES];
	if (accum_init(&accum, RANKS * MICRO, MICRO, true))
		abort();
	for (uint32_t rank = 0; rank < RANKS; rank++)
		for (uint32_t micro = 0; micro < MICRO; micro++) {
			const struct push p = { .rank = rank,
						.micro = micro,
						.slot = micro,
						.sgen = s->rank[rank].sgen,
						.window = s->r.window - (micro == 4),
						.weight = 1,
						.lr = s->r.window_lr,
						.loss_scale = s->r.loss_scale };
			const struct verdict v = accum_judge(&w, &p);
			if (v.status)
				refusal_describe(&w, &p, &v, text, sizeof(text));
			if (v.ruling == PUSH_QUEUES)
				accum_queue(&accum, &(struct accum_entry){ .n_askers = 1,
									   .rank = rank,
									   .micro = micro,
									   .slot = rank * MICRO + micro });
			if (accum_blocked_by(&accum, s, rank, micro) >= RANKS)
				abort();
			control_count(s->counted, s->r.max_micro_size, rank, s->r.micro_size);
		}
	uint32_t n = accum_next(&accum, s, next, RANKS * MICRO);
	accum_completes(&accum, s, next, n);
	accum_fini(&accum);
	for (uint32_t i = 0; i < s->r.n_zero; i++)
		next[0] = s->r.zero_slot[i] ? next[0] : NULL;
	if (s->r.x > 1 || (s->r.last_rank != UINT32_MAX && s->r.last_rank >= RANKS))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	size_t bytes = control_page_bytes(RANKS, MICRO, THREADS, TENSORS);
	unsigned char *base = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	struct control_page page;
	struct control_state s, t;
	bool corrupt;
	memset(base, 0, bytes);
	control_page_view(&page, base, RANKS, MICRO, THREADS, TENSORS);
	if (control_state_init(&s, RANKS, MICRO) || control_state_init(&t, RANKS, MICRO))
		abort();
	s.r.ranks = RANKS;
	s.r.max_micro_size = MICRO;
	s.r.micro_size = MICRO;
	control_page_publish(&page, &s);
	for (size_t i = 1; i + 3 <= n; i += 3) /* flips bytes anywhere in the records */
		base[(data[i] | (size_t)data[i + 1] << 8) % (2 * page.record_bytes)] ^= data[i + 2];
	for (unsigned half = 0; half < 2 && n; half++)
		if (data[0] >> half & 1)
			repair(&page, half);
	if (control_page_read(&page, &t, &corrupt)) {
		use(&t);
		control_page_publish(&page, &t);
		uint64_t seq = t.r.seq;
		if (seq && (!control_page_read(&page, &s, &corrupt) || s.r.seq != seq))
			abort();
	}
	control_state_fini(&s);
	control_state_fini(&t);
	free(base);
	return 0;
}

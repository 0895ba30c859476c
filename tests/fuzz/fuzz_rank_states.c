/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states under any sequence of portions, restores and checkpoints, beside a plain model of them: the
 * same answers, the same bytes in each state, in each checkpoint only states of its window, and no byte more than they
 * have in all. */
#include "control/rank_states.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define MOST 12	    /* bytes of a state */
#define MOST_ALL 26 /* of all ranks' */

struct copy {
	bool is;
	unsigned id; /* states that are the same one have the same */
	uint64_t window;
	size_t n, got;
	unsigned char data[MOST];
};

static struct copy newest[RANKS], coming[RANKS], captured[RANKS];
static bool gives[RANKS], capturing;
static uint64_t capture_window;
static unsigned n_states;

static void must(bool holds)
{
	if (!holds)
		abort();
}

/* ---- the model ---- */

static size_t counted(uint32_t rank)
{
	return coming[rank].is ? coming[rank].n : newest[rank].is ? newest[rank].n : 0;
}

static size_t counted_with(uint32_t rank, size_t n)
{
	size_t all = n;
	for (uint32_t i = 0; i < RANKS; i++)
		all += i == rank ? 0 : counted(i);
	return all;
}

static void keep(uint32_t rank)
{
	if (capturing && newest[rank].is && newest[rank].window == capture_window)
		captured[rank] = newest[rank];
}

static bool is_that(const struct copy *c, const struct state_portion *q)
{
	return c->is && c->window == q->window && c->n == q->total;
}

/* The bytes of a portion that has passed the checks. One that adds nothing changes nothing. */
static void add(struct copy *c, const struct state_portion *q)
{
	if (q->offset + q->n <= c->got)
		return;
	memcpy(c->data + q->offset, q->data, q->n);
	c->got = q->offset + q->n;
}

static enum status expect_put(const struct state_portion *q, uint64_t *received)
{
	if (q->rank >= RANKS)
		return ST_RANK_OUT_OF_RANGE;
	if (q->total > MOST)
		return ST_RESOURCE_EXHAUSTED;
	if (q->offset > q->total || q->n > q->total - q->offset || (q->total && !q->n))
		return ST_INVALID_ARGUMENT;
	struct copy *c = &coming[q->rank], *now = &newest[q->rank];
	*received = q->total;
	if (!q->total) {
		c->is = now->is = gives[q->rank] = false;
		return ST_OK;
	}
	if (!q->offset) {
		c->is = false;
		if (counted_with(q->rank, q->total) > MOST_ALL)
			return ST_RESOURCE_EXHAUSTED;
		*c = (struct copy){ .is = true, .id = ++n_states, .window = q->window, .n = q->total };
	} else if (!is_that(c, q)) {
		return is_that(now, q) ? ST_OK : ST_OUT_OF_ORDER;
	}
	if (q->offset > c->got)
		return ST_OUT_OF_ORDER;
	add(c, q);
	*received = c->got;
	if (c->got < c->n)
		return ST_OK;
	*now = *c;
	c->is = false;
	gives[q->rank] = true;
	keep(q->rank);
	return ST_OK;
}

static size_t bytes_of_all(void)
{
	const struct copy *const each[] = { newest, coming, captured };
	bool seen[4097] = { false };
	size_t all = 0;
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < RANKS; i++) {
			const struct copy *c = &each[k][i];
			all += c->is && !seen[c->id] ? c->n : 0;
			seen[c->is ? c->id : 0] = true;
		}
	return all;
}

/* ---- both ---- */

static void compare_one(bool is, const struct rank_state *r, const struct copy *c)
{
	must(is == c->is);
	if (is)
		must(r->window == c->window && r->n == c->n && !memcmp(r->data, c->data, c->n));
}

static bool can_come(const void *ctx, uint32_t rank)
{
	return *(const uint8_t *)ctx >> rank & 1;
}

static void compare(const struct rank_states *s, uint8_t here)
{
	uint32_t awaited = 0, first = RANKS, its_first = RANKS;
	for (uint32_t i = RANKS; i--;) {
		struct rank_state r = { 0 };
		compare_one(rank_states_get(s, i, &r), &r, &newest[i]);
		compare_one(rank_states_captured(s, i, &r), &r, &captured[i]);
		must(!captured[i].is || (capturing && captured[i].window == capture_window));
		if (capturing && gives[i] && !captured[i].is && here >> i & 1) {
			awaited++;
			first = i;
		}
	}
	must(rank_states_awaited(s, can_come, &here, &its_first) == awaited && its_first == first);
	must(rank_states_bytes(s) == bytes_of_all());
}

static void put(struct rank_states *s, const uint8_t *d, const uint8_t *text)
{
	/* of sizes and offsets that often fit */
	struct state_portion q = { .rank = d[1] % (RANKS + 1),
				   .window = d[1] >> 2 & 3,
				   .total = d[2] % (MOST + 2),
				   .offset = d[3] % 8,
				   .n = d[3] >> 4,
				   .data = text };
	if (d[3] & 8 && q.rank < RANKS && coming[q.rank].is) { /* what comes next */
		const struct copy *c = &coming[q.rank];
		q.window = c->window;
		q.total = c->n;
		q.offset = c->got;
	}
	if (d[1] & 128 && q.offset < q.total) /* all the rest */
		q.n = q.total - q.offset;
	const size_t before = rank_states_bytes(s), need = rank_states_need(s, &q);
	uint64_t want = 0, got = 0;
	char why[240] = "";
	const enum status expected = expect_put(&q, &want), st = rank_states_put(s, &q, &got, why, sizeof(why));
	must(st == expected && (st ? *why != 0 : got == want));
	must(rank_states_bytes(s) <= before + need);
}

static void restore(struct rank_states *s, uint32_t rank, uint64_t window, const uint8_t *text, size_t n)
{
	must(rank_states_restore(s, rank, window, text, n) == ST_OK);
	if (rank >= RANKS || newest[rank].is)
		return;
	newest[rank] = (struct copy){ .is = true, .id = ++n_states, .window = window, .n = n, .got = n };
	memcpy(newest[rank].data, text, n);
}

static void release(struct rank_states *s)
{
	rank_states_release(s);
	capturing = false;
	memset(captured, 0, sizeof(captured));
}

static void one(struct rank_states *s, const uint8_t *d, const uint8_t *text)
{
	switch (d[0] % 8) {
	case 0:
		rank_states_capture(s, d[1] & 3);
		memset(captured, 0, sizeof(captured));
		capturing = true;
		capture_window = d[1] & 3;
		for (uint32_t i = 0; i < RANKS; i++)
			keep(i);
		break;
	case 1:
		release(s);
		break;
	case 2:
		restore(s, d[1] % (RANKS + 1), d[2] & 3, text, 1 + d[3] % MOST);
		break;
	default:
		put(s, d, text);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct rank_states *s = rank_states_new(RANKS, (struct rank_states_limits){ MOST, MOST_ALL, "all" });
	must(s != NULL);
	memset(newest, 0, sizeof(newest));
	memset(coming, 0, sizeof(coming));
	memset(captured, 0, sizeof(captured));
	memset(gives, 0, sizeof(gives));
	capturing = false;
	n_states = 0;
	for (size_t i = 0; i + 4 + 16 <= n && i < 4 * 4096; i += 4) {
		one(s, data + i, data + i + 4);
		compare(s, data[i + 1]);
	}
	rank_states_free(s);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the portions in which ranks register a job's tensors, and compares each with what other ranks have
 * given. For edge/registering.c: copying and comparing run in the pool, the short steps on the loop thread.
 * No state of its own. */
#include "control/collected.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSE(status, ...) (snprintf(why, n_why, __VA_ARGS__), (status))

static struct collected_rank *find(const struct collected *p, uint32_t rank)
{
	for (uint32_t i = 0; i < p->n_ranks; i++)
		if (p->rank[i].rank == rank)
			return &p->rank[i];
	return NULL;
}

uint64_t collected_from(const struct collected *p, uint32_t rank, uint64_t generation)
{
	const struct collected_rank *r = find(p, rank);
	return r && r->generation == generation ? r->received : 0;
}

enum status collected_admit(const struct collected *p, const struct portion *q, const struct tensor_set *known,
			    char *why, size_t n_why)
{
	uint64_t declared = known ? known->n : p->total, received = collected_from(p, q->rank, q->generation);
	if (q->total > ARENA_MAX_TENSORS)
		return REFUSE(ST_INVALID_ARGUMENT, "%" PRIu64 " tensors, must be 1 to %d", q->total, ARENA_MAX_TENSORS);
	if (q->n > q->total || q->first > q->total - q->n)
		return REFUSE(ST_INVALID_ARGUMENT,
			      "%" PRIu64 " tensors from tensor %" PRIu64 " on, but total is %" PRIu64, q->n, q->first,
			      q->total);
	if (declared && q->total != declared)
		return REFUSE(ST_LAYOUT_MISMATCH,
			      "rank %u: total is %" PRIu64 ", the job's set has %" PRIu64 " tensors", q->rank, q->total,
			      declared);
	if (q->first > received)
		return REFUSE(ST_OUT_OF_ORDER,
			      "rank %u: this portion begins with tensor %" PRIu64 ", but gaccd has %" PRIu64
			      " tensors of this session, so that tensor %" PRIu64 " is expected",
			      q->rank, q->first, received, received);
	return ST_OK;
}

/* ---- comparing ---- */

static enum status differ(const struct portion *q, const char *text, char *why, size_t n_why)
{
	return REFUSE(ST_LAYOUT_MISMATCH, "rank %u: %s", q->rank, text);
}

static enum status compare(const struct portion *q, const struct tensor_spec *mine, const struct tensor_spec *t,
			   uint64_t first, uint64_t n, char *why, size_t n_why)
{
	char text[256];
	return tensors_differ(mine, t, n, first, text, sizeof(text)) ? differ(q, text, why, n_why) : ST_OK;
}

/* Compares what the portion has in common with the tensors that are kept already. */
static enum status compare_blocks(const struct collected *p, const struct portion *q, const struct tensor_spec *t,
				  char *why, size_t n_why)
{
	uint64_t end = q->first + q->n < p->n ? q->first + q->n : p->n, at = 0;
	enum status st = ST_OK;
	for (uint32_t i = 0; i < p->n_blocks && at < end && !st; i++) {
		const struct collected_block *b = &p->block[i];
		uint64_t from = at > q->first ? at : q->first, to = at + b->n < end ? at + b->n : end;
		if (from < to)
			st = compare(q, &b->tensor[from - at], &t[from - q->first], from, to - from, why, n_why);
		at += b->n;
	}
	return st;
}

/* ---- keeping ---- */

static size_t bytes_of(const struct collected_block *b)
{
	size_t names = 1;
	for (uint64_t i = 0; i < b->n; i++)
		names += tensor_text_bytes(&b->tensor[i]);
	return names + b->n * sizeof(*b->tensor);
}

static enum status append(struct collected *p, const struct tensor_spec *t, uint64_t n)
{
	struct collected_block *all = array_grow(p->block, p->n_blocks, &p->blocks_capacity, sizeof(*all));
	struct collected_block b = { .n = n };
	if (!all)
		return ST_NO_MEMORY;
	p->block = all;
	enum status st = tensors_copy(t, n, &b.tensor, &b.names);
	if (st)
		return st;
	b.bytes = bytes_of(&b);
	p->block[p->n_blocks++] = b;
	p->n += n;
	p->bytes += b.bytes;
	return ST_OK;
}

enum status collected_take(struct collected *p, const struct portion *q, const struct tensor_spec *t,
			   const struct tensor_set *known, char *why, size_t n_why)
{
	if (known)
		return compare(q, known->tensor + q->first, t, q->first, q->n, why, n_why);
	enum status st = compare_blocks(p, q, t, why, n_why);
	uint64_t end = q->first + q->n;
	return st || end <= p->n ? st : append(p, t + (p->n - q->first), end - p->n);
}

enum status collected_note(struct collected *p, const struct portion *q, int64_t now_ns)
{
	struct collected_rank *r = find(p, q->rank);
	if (!r) {
		struct collected_rank *all = array_grow(p->rank, p->n_ranks, &p->ranks_capacity, sizeof(*all));
		if (!all)
			return ST_NO_MEMORY;
		p->rank = all;
		r = &p->rank[p->n_ranks++];
		*r = (struct collected_rank){ .rank = q->rank };
	}
	if (r->generation != q->generation)
		*r = (struct collected_rank){ .rank = q->rank, .generation = q->generation };
	if (q->first + q->n > r->received)
		r->received = q->first + q->n;
	p->total = q->total;
	p->last_ns = now_ns;
	return ST_OK;
}

/* ---- dropping ---- */

uint64_t collected_prune(struct collected *p, bool (*current)(const void *ctx, uint32_t rank, uint64_t generation),
			 const void *ctx)
{
	uint64_t most = 0;
	for (uint32_t i = p->n_ranks; i-- > 0;) {
		const struct collected_rank *r = &p->rank[i];
		if (!current(ctx, r->rank, r->generation))
			p->rank[i] = p->rank[--p->n_ranks];
		else if (r->received > most)
			most = r->received;
	}
	if (!p->n_ranks)
		p->total = 0;
	return most;
}

static void free_block(struct collected *p, struct collected_block *b)
{
	p->bytes -= b->bytes;
	p->n -= b->n;
	free(b->tensor);
	free(b->names);
}

/* A block that is cut in the middle keeps its memory. */
void collected_trim(struct collected *p, uint64_t n)
{
	while (p->n_blocks && p->n - p->block[p->n_blocks - 1].n >= n)
		free_block(p, &p->block[--p->n_blocks]);
	if (p->n <= n)
		return;
	p->block[p->n_blocks - 1].n -= p->n - n;
	p->n = n;
}

struct tensor_spec *collected_join(const struct collected *p)
{
	struct tensor_spec *all = malloc(p->n * sizeof(*all) + 1);
	uint64_t at = 0;
	for (uint32_t i = 0; i < p->n_blocks && all; i++) {
		memcpy(all + at, p->block[i].tensor, p->block[i].n * sizeof(*all));
		at += p->block[i].n;
	}
	return all;
}

bool collected_over(const struct collected *p, int64_t now_ns)
{
	return !p->n_ranks || now_ns - p->last_ns > COLLECTED_KEEP_NS;
}

void collected_fini(struct collected *p)
{
	collected_trim(p, 0);
	free(p->block);
	free(p->rank);
	*p = (struct collected){ 0 };
}

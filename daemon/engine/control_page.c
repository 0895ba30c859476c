/* SPDX-License-Identifier: Apache-2.0 */
/* The control segment: where its parts lie, and how its records are read and published. Written by the engine's main
 * thread only; gaccd reads it, on any thread, and keeps its own copies of the record in the same form. */
#include "engine/control_page.h"

#include "base/halves.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN UINT64_C(64)
#define READ_TRIES 1000

_Static_assert(sizeof(struct control_record) % 8 == 0, "what follows a record is aligned to 8");
_Static_assert(sizeof(struct control_rank) % 8 == 0 && sizeof(struct ledger_cell) == 32, "formats");
_Static_assert(sizeof(struct undo_stamp) <= ALIGN, "a stamp has a cache line of its own");
_Static_assert(offsetof(struct control_record, seq) == 0, "as halves.h has it");

static uint64_t align(uint64_t n)
{
	return (n + ALIGN - 1) & ~(ALIGN - 1);
}

size_t control_words(uint32_t ranks, uint32_t max_micro_size)
{
	return ((size_t)ranks * max_micro_size + 63) / 64;
}

static uint64_t record_bytes(uint32_t ranks, uint32_t max_micro_size)
{
	return align(sizeof(struct control_record) + ranks * sizeof(struct control_rank) +
		     3 * 8 * control_words(ranks, max_micro_size) + sizeof(uint64_t));
}

uint64_t control_page_bytes(uint32_t ranks, uint32_t max_micro_size, uint32_t threads, uint64_t n_tensors)
{
	uint64_t pairs = (uint64_t)ranks * max_micro_size;
	if (pairs > UINT64_C(1) << 48 || n_tensors > UINT64_C(1) << 48)
		return 0;
	return 2 * record_bytes(ranks, max_micro_size) + align(pairs * sizeof(struct ledger_cell)) +
	       (uint64_t)threads * UNDO_SHARES * (ALIGN + UNDO_AREA_BYTES) +
	       align(n_tensors * sizeof(struct tensor_norm)) + align(n_tensors * sizeof(double));
}

void control_page_view(struct control_page *p, void *data, uint32_t ranks, uint32_t max_micro_size, uint32_t threads,
		       uint64_t n_tensors)
{
	uint64_t pairs = (uint64_t)ranks * max_micro_size;
	*p = (struct control_page){
		.base = data, .ranks = ranks, .max_micro_size = max_micro_size, .shares = threads * UNDO_SHARES
	};
	p->record_bytes = record_bytes(ranks, max_micro_size);
	p->ledger_offset = 2 * p->record_bytes;
	p->stamps_offset = p->ledger_offset + align(pairs * sizeof(struct ledger_cell));
	p->undo_offset = p->stamps_offset + p->shares * ALIGN;
	p->norms_offset = p->undo_offset + (uint64_t)p->shares * UNDO_AREA_BYTES;
	p->trust_offset = p->norms_offset + align(n_tensors * sizeof(struct tensor_norm));
	p->bytes = p->trust_offset + align(n_tensors * sizeof(double));
}

enum status control_state_init(struct control_state *s, uint32_t ranks, uint32_t max_micro_size)
{
	unsigned char *image = calloc(1, record_bytes(ranks, max_micro_size));
	if (!image)
		return ST_NO_MEMORY;
	memset(s, 0, sizeof(*s));
	s->r.ranks = ranks;
	s->r.max_micro_size = max_micro_size;
	s->image = image;
	s->n_words = control_words(ranks, max_micro_size);
	s->rank = (struct control_rank *)(image + sizeof(s->r));
	s->counted = (uint64_t *)(s->rank + ranks);
	s->voided = s->counted + s->n_words;
	s->last_counted = s->voided + s->n_words;
	return ST_OK;
}

void control_state_fini(struct control_state *s)
{
	if (!s)
		return;
	free(s->image);
	memset(s, 0, sizeof(*s));
}

static struct halves records(const struct control_page *p)
{
	return (struct halves){ p->base, p->record_bytes };
}

/* Whether every index and every loop bound is in its range: the checksum detects damage, but not a faulty writer. */
static bool in_range(const struct control_page *p, const struct control_state *s)
{
	const struct control_record *r = &s->r;
	if (r->ranks != p->ranks || r->max_micro_size != p->max_micro_size)
		return false;
	if (r->micro_size > p->max_micro_size || r->commit_micro_size > p->max_micro_size)
		return false;
	if (r->phase > WINDOW_APPLYING || r->x > 1 || r->n_zero > SEGMENT_MAX_ZERO)
		return false;
	if (r->last_rank != UINT32_MAX && r->last_rank >= p->ranks)
		return false;
	for (uint32_t i = 0; i < p->ranks; i++)
		if (s->rank[i].flushed > RANK_LEFT)
			return false;
	return true;
}

static bool copy_valid(const struct control_page *p, struct control_state *out, unsigned half)
{
	const struct halves h = records(p);
	if (!halves_copy(&h, out->image, half))
		return false;
	memcpy(&out->r, out->image, sizeof(out->r));
	return in_range(p, out);
}

static uint64_t seq_of(const struct control_page *p, unsigned half)
{
	const struct halves h = records(p);
	return halves_number(&h, half);
}

uint64_t control_page_seq(const struct control_page *p)
{
	uint64_t a = seq_of(p, 0), b = seq_of(p, 1);
	return a > b ? a : b;
}

static bool all_zero(const struct control_page *p)
{
	for (size_t i = 0; i < 2 * p->record_bytes; i++)
		if (p->base[i])
			return false;
	return true;
}

bool control_page_read(const struct control_page *p, struct control_state *out, bool *corrupt)
{
	*corrupt = false;
	/* both fail only if a writer overtakes this reader, or both are damaged */
	for (int i = 0; i < READ_TRIES; i++) {
		unsigned newer = seq_of(p, 1) > seq_of(p, 0);
		if (copy_valid(p, out, newer) || copy_valid(p, out, 1 - newer))
			return true;
	}
	*corrupt = !all_zero(p);
	return false;
}

void control_page_publish(struct control_page *p, struct control_state *s)
{
	const struct halves h = records(p);
	s->r.seq++;
	memcpy(s->image, &s->r, sizeof(s->r));
	halves_publish(&h, s->image, s->r.seq);
}

struct ledger_cell *control_page_ledger(const struct control_page *p, uint32_t rank, uint32_t micro)
{
	return (struct ledger_cell *)(p->base + p->ledger_offset) + ((uint64_t)rank * p->max_micro_size + micro);
}

struct undo_stamp *control_page_stamp(const struct control_page *p, uint32_t share)
{
	return (struct undo_stamp *)(p->base + p->stamps_offset + share * ALIGN);
}

void *control_page_undo(const struct control_page *p, uint32_t share)
{
	return p->base + p->undo_offset + (size_t)share * UNDO_AREA_BYTES;
}

struct tensor_norm *control_page_norms(const struct control_page *p)
{
	return (struct tensor_norm *)(p->base + p->norms_offset);
}

double *control_page_trust(const struct control_page *p)
{
	return (double *)(p->base + p->trust_offset);
}

bool control_bit(const uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro)
{
	uint64_t i = (uint64_t)rank * max_micro_size + micro;
	return map[i / 64] >> (i % 64) & 1;
}

uint32_t control_count(const uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t n)
{
	uint64_t at = (uint64_t)rank * max_micro_size, end = at + n;
	uint32_t count = 0;
	while (at < end) {
		uint64_t stop = (at / 64 + 1) * 64, word = map[at / 64] >> at % 64;
		if (stop > end) {
			word &= (UINT64_C(1) << (end - at)) - 1;
			stop = end;
		}
		count += (uint32_t)__builtin_popcountll(word);
		at = stop;
	}
	return count;
}

void control_set_bit(uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro)
{
	uint64_t i = (uint64_t)rank * max_micro_size + micro;
	map[i / 64] |= UINT64_C(1) << (i % 64);
}

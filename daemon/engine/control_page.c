#include "engine/control_page.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALIGN UINT64_C(64)
#define READ_TRIES 1000

_Static_assert(sizeof(struct control_record) % 8 == 0, "what follows a record is aligned to 8");
_Static_assert(sizeof(struct control_rank) % 8 == 0 && sizeof(struct ledger_cell) == 32, "formats");
_Static_assert(sizeof(struct undo_stamp) <= ALIGN, "a stamp has a cache line of its own");
_Static_assert(offsetof(struct control_record, seq) == 0, "the checksum starts behind it");

static uint64_t align(uint64_t n)
{
	return (n + ALIGN - 1) & ~(ALIGN - 1);
}

static uint64_t n_words(uint64_t ranks, uint64_t max_micro_size)
{
	return (ranks * max_micro_size + 63) / 64;
}

/* Per-rank part and bitmaps of a record: contiguous, in a control_state too. */
static uint64_t tail_bytes(uint64_t ranks, uint64_t max_micro_size)
{
	return ranks * sizeof(struct control_rank) + 3 * 8 * n_words(ranks, max_micro_size);
}

static uint64_t record_bytes(uint64_t ranks, uint64_t max_micro_size)
{
	return align(sizeof(struct control_record) + tail_bytes(ranks, max_micro_size) + sizeof(uint64_t));
}

uint64_t control_page_bytes(uint32_t ranks, uint32_t max_micro_size, uint32_t threads)
{
	uint64_t pairs = (uint64_t)ranks * max_micro_size;
	if (pairs > UINT64_C(1) << 48)
		return 0;
	return 2 * record_bytes(ranks, max_micro_size) + align(pairs * sizeof(struct ledger_cell)) +
	       threads * (ALIGN + UNDO_AREA_BYTES);
}

void control_page_view(struct control_page *p, void *data, uint32_t ranks, uint32_t max_micro_size, uint32_t threads)
{
	uint64_t pairs = (uint64_t)ranks * max_micro_size;
	*p = (struct control_page){ .base = data, .ranks = ranks, .max_micro_size = max_micro_size, .threads = threads };
	p->record_bytes = record_bytes(ranks, max_micro_size);
	p->ledger_offset = 2 * p->record_bytes;
	p->stamps_offset = p->ledger_offset + align(pairs * sizeof(struct ledger_cell));
	p->undo_offset = p->stamps_offset + threads * ALIGN;
	p->bytes = p->undo_offset + (uint64_t)threads * UNDO_AREA_BYTES;
}

enum status control_state_init(struct control_state *s, uint32_t ranks, uint32_t max_micro_size)
{
	unsigned char *block = calloc(1, tail_bytes(ranks, max_micro_size));
	if (!block)
		return ST_NO_MEMORY;
	size_t words = n_words(ranks, max_micro_size);
	memset(s, 0, sizeof(*s));
	s->r.ranks = ranks;
	s->r.max_micro_size = max_micro_size;
	s->rank = (struct control_rank *)block;
	s->counted = (uint64_t *)(block + ranks * sizeof(struct control_rank));
	s->voided = s->counted + words;
	s->last_counted = s->voided + words;
	s->n_words = words;
	return ST_OK;
}

void control_state_fini(struct control_state *s)
{
	if (!s)
		return;
	free(s->rank);
	memset(s, 0, sizeof(*s));
}

static struct control_record *half(const struct control_page *p, uint64_t seq)
{
	return (struct control_record *)(p->base + (seq & 1) * p->record_bytes);
}

static uint64_t *checksum(const struct control_page *p, struct control_record *r)
{
	return (uint64_t *)((unsigned char *)r + p->record_bytes - sizeof(uint64_t));
}

static uint64_t compute(const struct control_page *p, const struct control_record *r, uint64_t seq)
{
	size_t n = p->record_bytes - sizeof(r->seq) - sizeof(uint64_t);
	return XXH3_64bits_withSeed((const unsigned char *)r + sizeof(r->seq), n, seq);
}

/* seq of the record in this half if it is whole, else 0. */
static uint64_t valid_seq(const struct control_page *p, unsigned h)
{
	struct control_record *r = half(p, h);
	uint64_t seq = __atomic_load_n(&r->seq, __ATOMIC_ACQUIRE);
	if (seq == 0 || (seq & 1) != h || *checksum(p, r) != compute(p, r, seq))
		return 0;
	return r->ranks == p->ranks && r->max_micro_size == p->max_micro_size ? seq : 0;
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
	for (int i = 0; i < READ_TRIES; i++) {
		uint64_t a = valid_seq(p, 0), b = valid_seq(p, 1), seq = a > b ? a : b;
		if (seq == 0)
			continue; /* a writer may be between two records; a dead one is not */
		struct control_record *r = half(p, seq);
		memcpy(&out->r, r, sizeof(*r));
		memcpy(out->rank, r + 1, tail_bytes(p->ranks, p->max_micro_size));
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&r->seq, __ATOMIC_RELAXED) == seq && out->r.seq == seq)
			return true;
	}
	*corrupt = !all_zero(p);
	return false;
}

/* seq is 0 while the rest is written, so that a reader which sees the same seq twice saw one record, and last. */
void control_page_publish(struct control_page *p, struct control_state *s)
{
	uint64_t seq = ++s->r.seq;
	struct control_record *r = half(p, seq);
	const size_t n = sizeof(r->seq);
	__atomic_store_n(&r->seq, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	memcpy((char *)r + n, (const char *)&s->r + n, sizeof(*r) - n);
	memcpy(r + 1, s->rank, tail_bytes(p->ranks, p->max_micro_size));
	*checksum(p, r) = compute(p, r, seq);
	__atomic_store_n(&r->seq, seq, __ATOMIC_RELEASE);
}

struct ledger_cell *control_page_ledger(const struct control_page *p, uint32_t rank, uint32_t micro)
{
	return (struct ledger_cell *)(p->base + p->ledger_offset) + ((uint64_t)rank * p->max_micro_size + micro);
}

struct undo_stamp *control_page_stamp(const struct control_page *p, uint32_t thread)
{
	return (struct undo_stamp *)(p->base + p->stamps_offset + thread * ALIGN);
}

void *control_page_undo(const struct control_page *p, uint32_t thread)
{
	return p->base + p->undo_offset + (size_t)thread * UNDO_AREA_BYTES;
}

bool control_bit(const uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro)
{
	uint64_t i = (uint64_t)rank * max_micro_size + micro;
	return map[i / 64] >> (i % 64) & 1;
}

void control_set_bit(uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro)
{
	uint64_t i = (uint64_t)rank * max_micro_size + micro;
	map[i / 64] |= UINT64_C(1) << (i % 64);
}

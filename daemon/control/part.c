/* SPDX-License-Identifier: Apache-2.0 */
/* Translates between a job's numbers of ranks and a part's, and between their bitmaps. For struct job and for the
 * coordinator, on any thread; no state. */
#include "control/part.h"

#include "engine/control_page.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint32_t part_local(const struct part_spec *p, uint32_t global)
{
	uint32_t lo = 0, hi = p->spec->ranks;
	if (!p->global)
		return global < hi ? global : PART_NO_RANK;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (p->global[mid] < global)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < p->spec->ranks && p->global[lo] == global ? lo : PART_NO_RANK;
}

void part_describe_ranks(const struct part_spec *p, char *text, size_t n)
{
	size_t at = 0;
	text[0] = '\0';
	for (uint32_t i = 0; i < p->spec->ranks;) {
		uint32_t first = part_global(p, i), last = first;
		while (++i < p->spec->ranks && part_global(p, i) == last + 1)
			last++;
		if (at + 32 > n) {
			snprintf(text + at, n - at, ", ...");
			return;
		}
		at += (size_t)snprintf(text + at, n - at, last > first ? "%s%u-%u" : "%s%u", at ? ", " : "", first,
				       last);
	}
}

/* ---- bitmaps ---- */

/* Up to 64 bits from bit `at` on. */
static uint64_t get_bits(const uint64_t *map, uint64_t at, uint32_t n)
{
	uint64_t bits = map[at / 64] >> at % 64;
	if (at % 64 + n > 64)
		bits |= map[at / 64 + 1] << (64 - at % 64);
	return n < 64 ? bits & ((UINT64_C(1) << n) - 1) : bits;
}

static void add_bits(uint64_t *map, uint64_t at, uint32_t n, uint64_t bits)
{
	map[at / 64] |= bits << at % 64;
	if (at % 64 + n > 64)
		map[at / 64 + 1] |= bits >> (64 - at % 64);
}

static void copy_bits(uint64_t *to, uint64_t to_at, const uint64_t *from, uint64_t from_at, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += 64) {
		uint32_t some = n - i < 64 ? (uint32_t)(n - i) : 64;
		add_bits(to, to_at + i, some, get_bits(from, from_at + i, some));
	}
}

void part_place_bits(const struct part_ranks *p, uint32_t max_micro_size, const uint64_t *of_part, uint64_t *of_job)
{
	uint64_t row = max_micro_size;
	if (!p->rank)
		copy_bits(of_job, 0, of_part, 0, p->n * row);
	for (uint32_t i = 0; p->rank && i < p->n; i++)
		copy_bits(of_job, p->rank[i] * row, of_part, i * row, row);
}

void part_pick_bits(const struct part_ranks *p, uint32_t max_micro_size, const uint64_t *of_job, uint64_t *of_part)
{
	uint64_t row = max_micro_size;
	memset(of_part, 0, control_words(p->n, max_micro_size) * sizeof(*of_part));
	if (!p->rank)
		copy_bits(of_part, 0, of_job, 0, p->n * row);
	for (uint32_t i = 0; p->rank && i < p->n; i++)
		copy_bits(of_part, i * row, of_job, p->rank[i] * row, row);
}

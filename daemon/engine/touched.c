/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps which tensors a window has touched, and how many steps have left each of them out. For push.c, step.c,
 * step_parts.c, stepping.c and the checkpoints; no I/O, no lock. */
#include "engine/touched.h"

#include <string.h>

#define ALIGN UINT64_C(64)

static uint64_t align(uint64_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t set_bytes(uint64_t n_tensors)
{
	return align((n_tensors + 7) / 8);
}

uint64_t touched_bytes(uint64_t n_tensors)
{
	return 2 * set_bytes(n_tensors) + 2 * align(n_tensors * sizeof(uint64_t));
}

uint64_t touched_control_bytes(uint32_t ranks, uint32_t max_micro_size, uint32_t threads, uint64_t n_tensors,
			       bool skips)
{
	const uint64_t n = control_page_bytes(ranks, max_micro_size, threads, n_tensors);
	return n && skips ? n + touched_bytes(n_tensors) : n;
}

struct touched touched_view(const struct plan *p, const struct control_page *page)
{
	struct touched t = { .n_bytes = set_bytes(p->n_tensors) };
	unsigned char *at = page->base + page->bytes;
	if (!p->skip_untouched)
		return t;
	t.plan = p;
	t.set[0] = at;
	t.set[1] = at + t.n_bytes;
	t.left_out[0] = (uint64_t *)(at + 2 * t.n_bytes);
	t.left_out[1] = (uint64_t *)(at + 2 * t.n_bytes + align(p->n_tensors * sizeof(uint64_t)));
	return t;
}

uint32_t touched_half(const struct plan *p, const struct control_record *r)
{
	return p->n_parts > 1 ? 1 - r->x : r->x;
}

static void set_bit(unsigned char *set, uint64_t i)
{
	set[i / 8] |= (unsigned char)(1u << i % 8);
}

static bool has_bit(const unsigned char *set, uint64_t i)
{
	return set[i / 8] >> (i % 8) & 1;
}

void touched_add(const struct touched *t, uint32_t dst, uint32_t src, bool first, const unsigned char *const *present,
		 uint32_t n)
{
	const struct plan_tensor *tensor = plan_tensors(t->plan);
	unsigned char *set = t->set[dst];
	const size_t n_present = (t->plan->n_tensors + 7) / 8;
	if (first)
		memset(set, 0, t->n_bytes);
	else
		memcpy(set, t->set[src], t->n_bytes);
	for (uint32_t i = 0; i < n; i++)
		for (size_t byte = 0; byte < n_present; byte++)
			set[byte] |= present[i] ? present[i][byte] : 0xff;
	for (uint64_t i = 0; i < t->plan->n_tensors; i++)
		if (tensor[i].alias >= 0 && has_bit(set, i))
			set_bit(set, (uint64_t)tensor[i].alias);
}

void touched_join(const struct touched *t, uint32_t dst, const unsigned char *sets, uint32_t n_parts)
{
	memset(t->set[dst], 0, t->n_bytes);
	for (uint32_t part = 0; part < n_parts; part++)
		for (size_t byte = 0; byte < t->n_bytes; byte++)
			t->set[dst][byte] |= sets[part * t->n_bytes + byte];
}

bool touched_has(const struct touched *t, uint32_t half, uint64_t tensor)
{
	return has_bit(t->set[half], tensor);
}

uint64_t touched_step(const struct touched *t, uint64_t step, uint64_t tensor)
{
	return step - t->left_out[(step - 1) % 2][tensor];
}

void touched_note(const struct touched *t, uint64_t step, uint32_t half)
{
	const uint64_t *before = t->left_out[(step - 1) % 2];
	for (uint64_t i = 0; i < t->plan->n_tensors; i++)
		t->left_out[step % 2][i] = before[i] + !has_bit(t->set[half], i);
}

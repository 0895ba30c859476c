/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and answers in a mailbox's memory: copies each request once, judges the copy by its shape, writes answers
 * and step block, and rings the trainer's bell. For push.c and boxes_wait.c; the engine's main thread. */
#include "engine/mailbox_cells.h"

#include "engine/commit.h"
#include "proto/box_check.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLAGS (GACC_BOX_ZERO_AFTER | GACC_BOX_RINGS)

/* ---- shared memory: each word is read once and written once, by one instruction ---- */

static void load_words(void *to, const void *from, size_t bytes)
{
	unsigned char *out = to;
	const uint64_t *in = from;
	for (size_t i = 0; i < bytes / sizeof(*in); i++) {
		uint64_t word = __atomic_load_n(&in[i], __ATOMIC_RELAXED);
		memcpy(out + i * sizeof(word), &word, sizeof(word));
	}
}

static void store_words(void *to, const void *from, size_t bytes)
{
	uint64_t *out = to;
	const unsigned char *in = from;
	for (size_t i = 0; i < bytes / sizeof(*out); i++) {
		uint64_t word;
		memcpy(&word, in + i * sizeof(word), sizeof(word));
		__atomic_store_n(&out[i], word, __ATOMIC_RELAXED);
	}
}

static uint32_t check_of(const void *p, size_t bytes)
{
	return box_check(p, bytes);
}

/* ---- requests ---- */

static bool all_zero(const void *p, size_t bytes)
{
	const unsigned char *at = p;
	unsigned char any = 0;
	for (size_t i = 0; i < bytes; i++)
		any |= at[i];
	return any == 0;
}

/* Only window is said. */
static bool is_plain_wait(const struct gacc_box_request *q)
{
	size_t behind_window = offsetof(struct gacc_box_request, window) + sizeof(q->window);
	return q->flags == 0 &&
	       all_zero((const unsigned char *)q + behind_window, GACC_BOX_REQUEST_CHECKED - behind_window);
}

static bool is_ready_sound(const struct gacc_box_request *q)
{
	if (q->ready_at == 0)
		return q->ready_value == 0 && !(q->flags & GACC_BOX_RINGS);
	return q->ready_at <= GACC_BOX_WORDS;
}

static bool is_bitmap_sound(const struct box_cells *c, const struct gacc_box_request *q)
{
	if (q->n_present == 0)
		return q->present_check == 0;
	return q->n_present == gacc_box_present_bytes(c->n_tensors);
}

static enum status judge(const struct box_cells *c, const struct gacc_box_request *q)
{
	if (q->kind == GACC_BOX_WAIT)
		return is_plain_wait(q) ? ST_OK : ST_INVALID_ARGUMENT;
	if (q->kind != GACC_BOX_PUSH || (q->flags & ~(uint32_t)FLAGS) || q->reserved0 ||
	    !all_zero(q->reserved, sizeof(q->reserved)))
		return ST_NOT_SUPPORTED;
	if (!isfinite(q->weight) || q->weight < DBL_MIN) /* engines take subnormal numbers for 0 */
		return ST_BAD_WEIGHT;
	if (q->slot >= c->slots)
		return ST_BAD_SLOT;
	if (!commit_is_lr(q->lr) || !is_ready_sound(q) || !is_bitmap_sound(c, q))
		return ST_INVALID_ARGUMENT;
	return ST_OK;
}

static bool is_ready(const struct box_cells *c, const struct gacc_box_request *q)
{
	if (q->ready_at == 0)
		return true;
	uint64_t word = __atomic_load_n(&c->mem->ready[q->ready_at - 1].value, __ATOMIC_ACQUIRE);
	return (int64_t)(word - q->ready_value) >= 0;
}

static bool has_bits_past_the_end(const unsigned char *present, uint64_t n_tensors)
{
	unsigned used = n_tensors % 8;
	return used && present[n_tensors / 8] >> used;
}

/* The bitmap of a push that has one. ST_CHECKSUM: it is not there yet. */
static enum status copy_bitmap(const struct box_cells *c, struct box_request *r)
{
	if (r->q.n_present == 0)
		return ST_OK;
	size_t stride = gacc_box_stride(c->n_tensors);
	const unsigned char *from = (const unsigned char *)c->mem + gacc_box_present_at(c->n_tensors, r->cell);
	unsigned char *copy = malloc(stride);
	if (!copy)
		return ST_NO_MEMORY;
	load_words(copy, from, stride);
	enum status st = ST_OK;
	if (check_of(copy, r->q.n_present) != r->q.present_check)
		st = ST_CHECKSUM;
	else if (has_bits_past_the_end(copy, c->n_tensors))
		st = ST_INVALID_ARGUMENT;
	if (st)
		free(copy);
	else
		r->present = copy;
	return st;
}

/* ---- answers ---- */

static void write_answer(struct box_cells *c, uint32_t cell, struct gacc_box_answer a)
{
	struct gacc_box_answer *to = &c->mem->answer[cell];
	memset(a.reserved, 0, sizeof(a.reserved));
	a.check = check_of(&a, GACC_BOX_ANSWER_CHECKED);
	store_words(&to->status, &a.status, sizeof(a) - sizeof(a.seq));
	__atomic_store_n(&c->mem->header.engine_cpu, (uint32_t)sched_getcpu(), __ATOMIC_RELAXED);
	__atomic_store_n(&to->seq, a.seq, __ATOMIC_RELEASE);
	c->bell_due = true;
	FAILPOINT(engine_box_answered);
}

static enum box_look refuse(struct box_cells *c, const struct box_request *r, enum status st)
{
	c->seen[r->cell] = r->q.seq;
	write_answer(c, r->cell,
		     (struct gacc_box_answer){ .seq = r->q.seq, .status = (uint32_t)st, .window = r->q.window });
	return BOX_REFUSED;
}

void box_answer(struct box_cells *c, uint32_t cell, uint64_t seq, const struct gacc_box_answer *a)
{
	assert(cell < GACC_BOX_CELLS && seq && c->open[cell] == seq);
	c->open[cell] = 0;
	if (c->seen[cell] != seq)
		return;
	struct gacc_box_answer mine = *a;
	mine.seq = seq;
	write_answer(c, cell, mine);
}

void box_write_step(struct box_cells *c, const struct gacc_box_step *step)
{
	struct gacc_box_step mine = *step;
	memset(mine.reserved, 0, sizeof(mine.reserved));
	mine.check = check_of(&mine, GACC_BOX_STEP_CHECKED);
	store_words(&c->mem->step, &mine, sizeof(mine));
	FAILPOINT(engine_box_block);
}

void box_set_closed(struct box_cells *c)
{
	__atomic_store_n(&c->mem->header.closed, 1, __ATOMIC_RELEASE);
	c->bell_due = true;
}

/* The counter only grows, as nobody reads it. Should it be full, it is emptied: a write that fails wakes nobody. */
void box_ring(struct box_cells *c, int bell)
{
	const uint64_t one = 1;
	uint64_t all;
	if (!c->bell_due)
		return;
	c->bell_due = false;
	while (write(bell, &one, sizeof(one)) < 0 && errno == EAGAIN)
		if (read(bell, &all, sizeof(all)) < 0 && errno != EAGAIN)
			break;
	FAILPOINT(engine_box_rung);
}

/* ---- cells ---- */

void box_take_over(struct box_cells *out, struct gacc_box *mem, uint64_t n_tensors, uint32_t slots)
{
	*out = (struct box_cells){ .mem = mem, .n_tensors = n_tensors, .slots = slots, .bell_due = true };
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		out->seen[i] = __atomic_load_n(&mem->answer[i].seq, __ATOMIC_RELAXED);
}

/* The whole request of this number, which nobody has looked at before. */
static bool copy_new(const struct box_cells *c, uint32_t cell, uint64_t number, struct gacc_box_request *q)
{
	if (number == 0 || number == c->seen[cell])
		return false;
	load_words(q, &c->mem->request[cell], sizeof(*q));
	return q->seq == number && q->check == check_of(q, GACC_BOX_REQUEST_CHECKED);
}

/* Another request than that of this number is left alone. `hold`: pushes are, too. */
static enum box_look look(struct box_cells *c, uint32_t cell, uint64_t number, bool hold, struct box_request *out)
{
	out->cell = cell;
	out->present = NULL;
	if (!copy_new(c, cell, number, &out->q))
		return BOX_NOTHING;
	enum status st = judge(c, &out->q);
	if (st == ST_OK && c->open[cell])
		st = ST_SLOT_BUSY;
	if (st)
		return refuse(c, out, st);
	if ((hold && out->q.kind == GACC_BOX_PUSH) || !is_ready(c, &out->q))
		return BOX_UNREADY;
	st = copy_bitmap(c, out);
	if (st == ST_CHECKSUM)
		return BOX_NOTHING;
	if (st)
		return refuse(c, out, st);
	c->seen[cell] = c->open[cell] = out->q.seq;
	FAILPOINT(engine_box_copied);
	return BOX_TAKEN;
}

static uint64_t read_number(const struct box_cells *c, uint32_t cell)
{
	return __atomic_load_n(&c->mem->request[cell].seq, __ATOMIC_ACQUIRE);
}

enum box_look box_look(struct box_cells *c, uint32_t cell, struct box_request *out)
{
	assert(cell < GACC_BOX_CELLS);
	return look(c, cell, read_number(c, cell), false, out);
}

/* The numbers in the cells, as they are now; returns the highest. */
static uint64_t read_numbers(const struct box_cells *c, uint64_t out[GACC_BOX_CELLS])
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++) {
		out[i] = read_number(c, i);
		most = out[i] > most ? out[i] : most;
	}
	return most;
}

/* The cell with the lowest number above `above` and not above `most`; GACC_BOX_CELLS: none. */
static uint32_t next_cell(const uint64_t number[GACC_BOX_CELLS], uint64_t above, uint64_t most)
{
	uint32_t best = GACC_BOX_CELLS;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (number[i] > above && number[i] <= most && (best == GACC_BOX_CELLS || number[i] < number[best]))
			best = i;
	return best;
}

/* The numbers are read twice. The first time says how far this turn goes; the second time everything up to there is
 * seen, even what was published into a cell that the first reading had passed. Two cells of one number are a lie: one
 * of them is looked at. */
uint32_t box_look_all(struct box_cells *c, struct box_request out[GACC_BOX_CELLS], uint32_t *unready)
{
	uint64_t number[GACC_BOX_CELLS];
	uint64_t most = read_numbers(c, number);
	uint32_t n = 0;
	bool hold = false;
	*unready = 0;
	read_numbers(c, number);
	for (uint32_t i = next_cell(number, 0, most); i < GACC_BOX_CELLS; i = next_cell(number, number[i], most)) {
		enum box_look found = look(c, i, number[i], hold, &out[n]);
		if (found == BOX_UNREADY && !hold && !(out[n].q.flags & GACC_BOX_RINGS))
			*unready |= 1u << i;
		hold = hold || found == BOX_UNREADY;
		n += found == BOX_TAKEN;
	}
	if (__atomic_load_n(&c->mem->header.closed, __ATOMIC_RELAXED))
		*unready = 0; /* who would have stored the word has left */
	return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer that writes any bytes anywhere into its mailbox, in several turns. Its checksums are repaired when the
 * input says so, or else nothing behind them would ever be reached. What is taken must be in range, and a turn may
 * write answers and the step block alone; the block is whole whatever was in its place.
 */
#include "engine/mailbox_cells.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { SLOTS = 2, MAX_TENSORS = 600 };

/* What is left of the input. */
struct input {
	const uint8_t *at;
	size_t n;
};

static unsigned take(struct input *in, unsigned bytes)
{
	unsigned v = 0;
	for (; bytes && in->n; bytes--, in->n--)
		v = v << 8 | *in->at++;
	return v;
}

struct fuzz {
	struct box_cells cells;
	unsigned char *mem, *before;
	size_t bytes;
};

static void write_bytes(struct fuzz *f, struct input *in)
{
	size_t at = take(in, 2) % f->bytes, n = take(in, 1);
	for (; n && in->n && at < f->bytes; n--)
		f->mem[at++] = (unsigned char)take(in, 1);
}

static void repair(struct fuzz *f, unsigned how)
{
	uint32_t cell = how % GACC_BOX_CELLS;
	struct gacc_box_request *q = &f->cells.mem->request[cell];
	size_t present = gacc_box_present_bytes(f->cells.n_tensors);
	if (how & 8) {
		q->n_present = (uint32_t)present;
		q->present_check =
			(uint32_t)crc32(0, f->mem + gacc_box_present_at(f->cells.n_tensors, cell), (uInt)present);
	}
	if (how & 16)
		q->kind = GACC_BOX_PUSH;
	if (how & 32)
		memset(q->reserved, 0, sizeof(q->reserved));
	q->check = (uint32_t)crc32(0, (const void *)q, GACC_BOX_REQUEST_CHECKED);
}

static void require(bool ok)
{
	if (!ok)
		abort();
}

static void judge_taken(const struct fuzz *f, const struct box_request *r)
{
	const struct gacc_box_request *q = &r->q;
	require(q->seq && (q->kind == GACC_BOX_PUSH || q->kind == GACC_BOX_WAIT));
	require(q->slot < SLOTS && q->flags <= 3 && q->ready_at <= GACC_BOX_WORDS && q->lr >= 0);
	require(q->kind == GACC_BOX_WAIT ? q->weight == 0 : q->weight >= DBL_MIN && isfinite(q->weight));
	require((r->present != NULL) == (q->n_present != 0));
	if (r->present)
		require(crc32(0, r->present, (uInt)gacc_box_present_bytes(f->cells.n_tensors)) == q->present_check);
}

/* Everything but the answers, the hint in the header and a block that was written is as it was. */
static void judge_memory(const struct fuzz *f, bool block)
{
	const size_t cpu = offsetof(struct gacc_box_header, engine_cpu), answers = offsetof(struct gacc_box, answer);
	const size_t step = offsetof(struct gacc_box, step),
		     behind = block ? step + sizeof(struct gacc_box_step) : step;
	require(memcmp(f->mem, f->before, cpu) == 0);
	require(memcmp(f->mem + cpu + 4, f->before + cpu + 4, answers - cpu - 4) == 0);
	require(memcmp(f->mem + behind, f->before + behind, f->bytes - behind) == 0);
}

static void judge_one(const struct fuzz *f, struct box_request *r, uint64_t open)
{
	require(!open && f->cells.open[r->cell] == r->q.seq);
	judge_taken(f, r);
	free(r->present);
}

/* Each cell by itself, or all at once. */
static void look(struct fuzz *f, bool at_once)
{
	struct box_request r[GACC_BOX_CELLS];
	uint64_t open[GACC_BOX_CELLS];
	uint32_t unready;
	memcpy(open, f->cells.open, sizeof(open));
	uint32_t n = at_once ? box_look_all(&f->cells, r, &unready) : 0;
	for (uint32_t c = 0; !at_once && c < GACC_BOX_CELLS; c++)
		n += box_look(&f->cells, c, &r[n]) == BOX_TAKEN;
	for (uint32_t i = 0; i < n; i++)
		judge_one(f, &r[i], open[r[i].cell]);
}

static void write_step(struct fuzz *f, unsigned window)
{
	const struct gacc_box_step step = { .window = window, .reserved = { 1 } }, *at = &f->cells.mem->step;
	box_write_step(&f->cells, &step);
	require(at->window == window && at->reserved[0] == 0);
	require(at->check == (uint32_t)crc32(0, (const void *)at, GACC_BOX_STEP_CHECKED));
}

/* `answered`: cells whose open request is answered in this turn; `block`: after the step block. */
static void turn(struct fuzz *f, bool at_once, bool block, unsigned answered)
{
	memcpy(f->before, f->mem, f->bytes);
	look(f, at_once);
	if (block)
		write_step(f, answered);
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		if ((answered >> c & 1) && f->cells.open[c])
			box_answer(&f->cells, c, f->cells.open[c], &(struct gacc_box_answer){ .result = 1 });
	judge_memory(f, block);
}

static void run(struct fuzz *f, struct input in)
{
	while (in.n) {
		unsigned op = take(&in, 1);
		switch (op % 4) {
		case 0:
			write_bytes(f, &in);
			break;
		case 1:
			repair(f, take(&in, 1));
			break;
		case 2:
			turn(f, op & 4, op & 8, take(&in, 1));
			break;
		default: /* the engine dies */
			box_take_over(&f->cells, f->cells.mem, f->cells.n_tensors, SLOTS);
		}
	}
	turn(f, false, false, 0xff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct input in = { data, n };
	uint64_t n_tensors = 1 + take(&in, 2) % MAX_TENSORS;
	struct fuzz f = { .bytes = gacc_box_bytes(n_tensors) };
	f.mem = aligned_alloc(64, f.bytes); /* of exactly this size: the sanitizer sees the next byte */
	f.before = malloc(f.bytes);
	require(f.mem && f.before);
	memset(f.mem, 0, f.bytes);
	box_take_over(&f.cells, (struct gacc_box *)(void *)f.mem, n_tensors, SLOTS);
	run(&f, in);
	free(f.mem);
	free(f.before);
	return 0;
}

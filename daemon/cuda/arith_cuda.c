/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of arith.h on a GPU's memory: turns the numbers of slots and halves into its addresses; the other
 * files of the room do the work. For the engine; main thread, reads also on the thread that writes checkpoints. */
#include "cuda/arith_cuda.h"

#include "cuda/bytes.h"
#include "cuda/params.h"
#include "cuda/parts.h"
#include "cuda/pass.h"
#include "cuda/update.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct on_cuda {
	struct arith arith;
	const struct cuda_memory *memory;
	const struct control_page *page;
	struct cuda_life life;
	struct gaps *gaps;
	struct cuda_results results;
	struct cuda_bytes bytes;
	struct cuda_passes *passes;
	struct cuda_looks *looks;
	struct cuda_updates *updates;
	struct cuda_first *first;
	struct cuda_parts *parts; /* of a job of several; else NULL */
};

static struct on_cuda *on_cuda(struct arith *a)
{
	return (struct on_cuda *)a;
}

/* ---- passes ---- */

static enum status add(struct arith *a, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
		       uint32_t n, uint64_t *nonfinite, struct arith_norm *norm)
{
	return cuda_passes_add(on_cuda(a)->passes, dst, src, first, s, n, nonfinite, norm);
}

static enum status inspect(struct arith *a, uint32_t half, struct arith_norm *out)
{
	return cuda_passes_inspect(on_cuda(a)->passes, half, out);
}

static enum status scale(struct arith *a, uint32_t dst, uint32_t src, double factor, double clip_value)
{
	return cuda_passes_scale(on_cuda(a)->passes, dst, src, factor, clip_value);
}

static enum status zero_slot(struct arith *a, uint32_t slot)
{
	return cuda_passes_zero(on_cuda(a)->passes, slot);
}

/* ---- parameters ---- */

static enum status put(struct arith *a, uint32_t slot, uint64_t offset, uint64_t bytes)
{
	return cuda_first_put(on_cuda(a)->first, slot, offset, bytes);
}

static enum status init(struct arith *a)
{
	return cuda_first_init(on_cuda(a)->first, a);
}

static enum status begin_update(struct arith *a, uint64_t window)
{
	return cuda_updates_begin(on_cuda(a)->updates, window);
}

static enum status can_resume_update(struct arith *a, uint64_t window, bool *out)
{
	return cuda_updates_can_resume(on_cuda(a)->updates, window, out);
}

static enum status run_update(struct arith *a, const struct control_record *r, uint32_t half, struct arith_params *out)
{
	return cuda_updates_run(on_cuda(a)->updates, r, half, out);
}

static enum status inspect_params(struct arith *a, struct arith_params *out)
{
	const enum status st = cuda_looks_digest(on_cuda(a)->looks, &out->digest);
	return st ? st : cuda_looks_nonfinite(on_cuda(a)->looks, &out->nonfinite);
}

static enum status digest_seen(struct arith *a, uint64_t *digest)
{
	return cuda_looks_seen(on_cuda(a)->looks, digest);
}

static enum status take_norms(struct arith *a, uint32_t half)
{
	return cuda_looks_norms(on_cuda(a)->looks, half);
}

/* ---- several parts ---- */

static enum status reduce(struct arith *a, struct coll *coll, uint32_t dst, uint32_t src, bool filled,
			  struct arith_norm *norm)
{
	(void)dst;
	(void)norm; /* of a sharded job */
	return cuda_parts_reduce(on_cuda(a)->parts, coll, src, filled);
}

static enum status reduced(struct arith *a, uint32_t dst)
{
	return cuda_parts_reduced(on_cuda(a)->parts, dst);
}

static enum status broadcast(struct arith *a, struct coll *coll, uint32_t root)
{
	return cuda_parts_broadcast(on_cuda(a)->parts, coll, root);
}

static enum status filled_params(struct arith *a)
{
	return cuda_parts_filled(on_cuda(a)->parts);
}

/* ---- bytes ---- */

static cu_memory place_of(const struct on_cuda *h, enum segment_role role, uint64_t offset, uint64_t n)
{
	const struct cuda_memory *m = h->memory;
	assert(offset <= plan_role_bytes(m->plan, role) && n <= plan_role_bytes(m->plan, role) - offset);
	switch (role) {
	case SEG_ACCUM0:
	case SEG_ACCUM1:
		return m->accum[role - SEG_ACCUM0] + offset;
	case SEG_MASTER:
		return m->master + offset;
	case SEG_STATE0:
	case SEG_STATE1:
		return m->state[role - SEG_STATE0] + offset;
	default:
		assert(role == SEG_PARAMS);
		return m->params + offset;
	}
}

static enum status read_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, void *to)
{
	const struct on_cuda *h = on_cuda(a);
	return cuda_bytes_read(&h->bytes, to, place_of(h, role, offset, n), n);
}

static enum status write_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, const void *from)
{
	const struct on_cuda *h = on_cuda(a);
	return cuda_bytes_write(&h->bytes, place_of(h, role, offset, n), from, n);
}

/* ---- life ---- */

static void close_cuda(struct arith *a)
{
	struct on_cuda *h = on_cuda(a);
	cuda_parts_free(h->parts);
	cuda_first_free(h->first);
	cuda_updates_free(h->updates);
	cuda_looks_free(h->looks);
	cuda_passes_free(h->passes);
	cuda_bytes_fini(&h->bytes);
	cuda_results_fini(&h->results);
	gaps_free(h->gaps);
	free(h);
}

static const struct arith_ops operations = {
	.close = close_cuda,
	.add = add,
	.inspect = inspect,
	.scale = scale,
	.zero_slot = zero_slot,
	.reduce = reduce,
	.reduced = reduced,
	.broadcast = broadcast,
	.filled = filled_params,
	.put = put,
	.init = init,
	.update_begin = begin_update,
	.update_can_resume = can_resume_update,
	.update_run = run_update,
	.inspect_params = inspect_params,
	.digest_seen = digest_seen,
	.norms = take_norms,
	.read = read_bytes,
	.write = write_bytes,
};

bool arith_cuda_takes(const struct plan *p, char *why, size_t n_why)
{
	const char *wrong = NULL;
	if (p->acc_dtype != DTYPE_F32)
		wrong = "a GPU's kernels sum in f32: accumulate_dtype f64 needs device: host";
	else if (plan_is_sharded(p))
		wrong = "optimizer state that is divided over parts needs device: host";
	else if (p->in_slot)
		wrong = "accumulate: none needs device: host";
	else if (p->optim.type == OPTIM_CLIENT && p->slots_on_host)
		wrong = "optimizer client needs device: host";
	if (wrong)
		snprintf(why, n_why, "%s", wrong);
	return !wrong;
}

static uint64_t blocks_of(const struct plan *p)
{
	/* of tensors and of ranges: each may end with a part of one */
	return p->n_elements / KERNEL_BLOCK + p->n_tensors + p->n_ranges;
}

/* If what follows fails. */
static void say_tables(const struct cuda_device *d, char *why, size_t n_why)
{
	size_t left = 0, total = 0;
	d->cu.cuMemGetInfo(&left, &total);
	snprintf(why, n_why,
		 "the job's tables and results do not fit into the rest of the GPU's memory, of whose %.1f MiB %.1f "
		 "are free",
		 (double)total / (1 << 20), (double)left / (1 << 20));
}

enum status arith_cuda_open(struct arith **out, const struct cuda_memory *m, const struct control_page *page,
			    bool others_are_over, uint64_t quiet_ns, char *why, size_t n_why)
{
	if (!arith_cuda_takes(m->plan, why, n_why))
		return ST_INVALID_CONFIG;
	struct on_cuda *h = calloc(1, sizeof(*h));
	if (!h)
		return ST_NO_MEMORY;
	*h = (struct on_cuda){ .arith = { .ops = &operations, .name = "cuda", .is_far = true },
			       .memory = m,
			       .page = page };
	enum status st = cuda_life_begin(&h->life, m, others_are_over, quiet_ns, why, n_why);
	if (!st) {
		say_tables(m->device, why, n_why);
		st = gaps_new(&h->gaps, m->plan);
	}
	if (!st)
		st = cuda_results_new(&h->results, &h->life, blocks_of(m->plan));
	if (!st)
		st = cuda_bytes_new(&h->bytes, &h->life);
	if (!st)
		st = cuda_passes_new(&h->passes, &h->life, &h->results, h->gaps);
	if (!st)
		st = cuda_looks_new(&h->looks, &h->life, &h->results, &h->bytes, page);
	if (!st)
		st = cuda_updates_new(&h->updates, &h->life, &h->results, h->looks, page);
	if (!st)
		st = cuda_first_new(&h->first, &h->life, &h->bytes, h->gaps);
	if (!st && m->plan->n_parts > 1) {
		snprintf(why, n_why, "the exchange with other parts needs %.1f MiB of pinned host memory (ulimit -l)",
			 (double)plan_exchange_bytes(m->plan) / (1 << 20));
		st = cuda_parts_new(&h->parts, &h->bytes);
	}
	if (st)
		close_cuda(&h->arith);
	else
		*out = &h->arith;
	return st;
}

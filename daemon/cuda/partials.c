/* SPDX-License-Identifier: Apache-2.0 */
/* Room for the results of blocks on the GPU, and the launches that add them up. For the operations of arith_cuda.c; the
 * engine's main thread. */
#include "cuda/partials.h"

#include "math/kernels_scalar.h"

#define RUN ((uint64_t)CUDA_LEAF * CUDA_THREADS) /* blocks for one total */

static uint64_t divided(uint64_t n, uint64_t by)
{
	return (n + by - 1) / by;
}

enum status cuda_results_new(struct cuda_results *out, const struct cuda_life *life, uint64_t n)
{
	const struct cuda_device *d = life->memory->device;
	struct cuda_results r = { .life = life, .n = n };
	enum status st = cuda_private(d, n * sizeof(double), &r.sumsq);
	if (!st)
		st = cuda_private(d, n * sizeof(cuda_word), &r.digest);
	if (!st)
		st = cuda_private(d, n * sizeof(uint32_t), &r.nonfinite);
	for (int i = 0; i < 2 && !st; i++)
		st = cuda_private(d, (divided(n, RUN) + 1) * sizeof(struct cuda_total), &r.total[i]);
	if (!st)
		st = cuda_private(d, sizeof(digest_key), &r.key);
	if (!st)
		st = cuda_upload(d, r.key, digest_key, sizeof(digest_key));
	if (st) {
		cuda_results_fini(&r);
		return st;
	}
	r.at = (struct cuda_partials){ cuda_pointer(r.sumsq), cuda_pointer(r.digest), cuda_pointer(r.nonfinite) };
	r.keys = cuda_pointer(r.key);
	*out = r;
	return ST_OK;
}

void cuda_results_fini(struct cuda_results *r)
{
	if (!r->life)
		return;
	const struct cuda_device *d = r->life->memory->device;
	const cu_memory all[] = { r->sumsq, r->digest, r->nonfinite, r->key, r->total[0], r->total[1] };
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		cuda_private_free(d, all[i]);
	*r = (struct cuda_results){ .life = NULL };
}

struct cuda_partials cuda_results_from(const struct cuda_results *r, uint64_t first)
{
	return (struct cuda_partials){ r->at.sumsq + first, r->at.digest + first, r->at.nonfinite + first };
}

enum status cuda_total_of(const struct cuda_results *r, struct cuda_partials in, uint64_t n, uint64_t bytes,
			  struct cuda_total *out)
{
	const struct cuda_device *d = r->life->memory->device;
	struct cuda_collect a = { .pass = r->life->pass, .in = in, .n = n, .out = cuda_pointer(r->total[0]) };
	int from = 0;
	uint64_t totals = divided(n, RUN);
	enum status st = cuda_launch(d, "collect_blocks", &a, cuda_blocks(d, totals));
	for (; totals > 1 && !st; totals = divided(totals, CUDA_THREADS), from = 1 - from) {
		a = (struct cuda_collect){ .pass = r->life->pass,
					   .from = cuda_pointer(r->total[from]),
					   .n = totals,
					   .out = cuda_pointer(r->total[1 - from]) };
		st = cuda_launch(d, "collect_totals", &a, cuda_blocks(d, divided(totals, CUDA_THREADS)));
	}
	if (!st)
		st = cuda_life_wait(r->life, bytes);
	return st ? st : cuda_download(d, out, r->total[from], sizeof(*out));
}

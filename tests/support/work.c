/* SPDX-License-Identifier: Apache-2.0 */
#include "support/work.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct work work_of(uint64_t steps, uint64_t micro_size, uint64_t ranks, size_t n_body)
{
	return (struct work){ micro_size, ranks, (size_t)(steps * micro_size * ranks), n_body };
}

uint64_t work_number(const struct work *w, const gacc_position *at, int rank)
{
	return (at->window * w->micro_size + at->micro) * w->ranks + (uint64_t)rank;
}

double work_weight(const gacc_position *at, int rank)
{
	return 0.5 + 0.25 * (double)((5 * at->window + 3 * at->micro + 7 * (uint64_t)rank) % 12);
}

/* In [-2^-10, 2^-10), from a mixed number of micro-batch and element (Fibonacci hashing). */
static float noise(uint64_t g, size_t i)
{
	uint64_t h = (g * 0x9e3779b97f4a7c15u) ^ (i * 0xc2b2ae3d27d4eb4fu);

	h *= 0x9e3779b97f4a7c15u;
	return (float)(int32_t)(h >> 32) * 0x1p-41f;
}

void work_initial(const struct work *w, float *ledger, float *body)
{
	memset(ledger, 0, w->n_ledger * sizeof(*ledger));
	for (size_t i = 0; i < w->n_body; i++)
		body[i] = 1024 * noise(0, i);
}

void work_gradient(const struct work *w, uint64_t g, const float *params, float *out_ledger, float *out_body)
{
	memset(out_ledger, 0, w->n_ledger * sizeof(*out_ledger));
	if (g < w->n_ledger)
		out_ledger[g] = 1;
	for (size_t i = 0; i < w->n_body; i++)
		out_body[i] = noise(g, i) + 0x1p-10f * params[i];
}

gacc_status work_enter(const struct work *w, gacc_job *job, const float *ledger, const float *body, gacc_position *out)
{
	const gacc_tensor tensors[] = {
		{ .name = "ledger", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)w->n_ledger } },
		{ .name = "body", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)w->n_body } },
	};
	const void *values[] = { ledger, body };
	gacc_status st = gacc_register(job, tensors, 2);

	if (!st && ledger && gacc_params_needed(job))
		st = gacc_put_params(job, values);
	return st ? st : gacc_ready(job, -1, out);
}

bool work_write(const char *path, const struct iovec *part, int n)
{
	char temporary[4096];
	bool ok;
	FILE *f;

	if (snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)gettid()) >= (int)sizeof(temporary))
		return false;
	f = fopen(temporary, "we");
	ok = f != NULL;
	for (int i = 0; i < n && ok; i++)
		ok = fwrite(part[i].iov_base, 1, part[i].iov_len, f) == part[i].iov_len;
	if (f && fclose(f))
		ok = false;
	return ok && !rename(temporary, path);
}

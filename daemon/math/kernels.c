/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the table of kernels for this CPU, once at the start of an engine (tests ask for each by name), and
 * restores what an undo area has saved. The tables themselves are immutable and used by all of the engine's threads. */
#include "math/kernels_scalar.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#ifdef __x86_64__
extern const struct kernels kernels_sse2, kernels_avx2, kernels_avx512;

/* __builtin_cpu_supports knows f16c in newer compilers only. */
static bool has_f16c(void)
{
	unsigned eax, ebx, ecx, edx;
	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}

static bool has_v3(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
	       __builtin_cpu_supports("bmi2") && has_f16c();
}

static bool has_v4(void)
{
	return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}

int kernels_list(const struct kernels *const **out)
{
	static const struct kernels *const tables[] = { &kernels_reference, &kernels_sse2, &kernels_avx2,
							&kernels_avx512 };
	*out = tables;
	return has_v4() ? 4 : has_v3() ? 3 : 2;
}
#else
int kernels_list(const struct kernels *const **out)
{
	static const struct kernels *const tables[] = { &kernels_reference };
	*out = tables;
	return 1;
}
#endif

const struct kernels *kernels_get(const char *name_or_null)
{
	const struct kernels *const *table;
	int n = kernels_list(&table);
	if (!name_or_null)
		return table[n - 1];
	for (int i = 0; i < n; i++)
		if (strcmp(table[i]->name, name_or_null) == 0)
			return table[i];
	return NULL;
}

void kernel_undo_restore(const void *area, uint64_t number, const struct kernel_params *a, size_t n)
{
	memcpy(a->p ? (void *)a->p : a->p16, undo_place(area, number, 0), n * (a->p ? 4 : 2));
	if (a->m)
		memcpy(a->m, undo_place(area, number, 1), n * sizeof(*a->m));
	if (a->v)
		memcpy(a->v, undo_place(area, number, 2), n * sizeof(*a->v));
}

/* Splits at the largest power of two below n, so that the tree over [0, 2^k) is a subtree of every longer one. */
double kernel_sum(const double *block_sumsq, size_t n_blocks)
{
	if (n_blocks <= 8) {
		double sum = 0;
		for (size_t i = 0; i < n_blocks; i++)
			sum += block_sumsq[i];
		return sum;
	}
	size_t half = (size_t)1 << (63 - __builtin_clzll(n_blocks - 1));
	return kernel_sum(block_sumsq, half) + kernel_sum(block_sumsq + half, n_blocks - half);
}

uint64_t kernel_digest_combine(const uint64_t *block_digest, size_t n_blocks, uint64_t first_block)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < n_blocks; i++) {
		uint64_t x = block_digest[i] + (first_block + i + 1) * GOLDEN;
		sum += MIX(x);
	}
	return sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the kernels for GPUs that are the same wherever they run. For an engine whose memory is on a device, on
 * its main thread, and for tests. Pure. */
#include "math/cuda/launches.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

void cuda_add_name(enum dtype t, uint32_t n_sources, bool norm, char out[CUDA_NAME_MAX])
{
	uint32_t k = 1;
	while (k < n_sources)
		k *= 2;
	assert(k <= KERNEL_MAX_SLOTS && (t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16));
	snprintf(out, CUDA_NAME_MAX, "add_%s_%u%s", dtype_name(t), (unsigned)k, norm ? "_norm" : "");
}

void cuda_scalars_of(const struct kernel_update *u, struct cuda_scalars *out)
{
	*out = (struct cuda_scalars){
		.scale = u->scale,
		.limit = u->clip_value > 0 ? u->clip_value : INFINITY,
		.lr = u->lr,
		.weight_decay = u->weight_decay,
		.momentum = u->momentum,
		.one_minus_dampening = u->one_minus_dampening,
		.one_minus_beta1 = u->one_minus_beta1,
		.beta2 = u->beta2,
		.one_minus_beta2 = u->one_minus_beta2,
		.eps = u->eps,
		.step_size = u->step_size,
		.inv_bias2_sqrt = u->inv_bias2_sqrt,
		.decay = u->decay,
		.inv_bias1 = u->inv_bias1,
		.nesterov = u->nesterov,
		.first = u->first,
	};
}

int cuda_gate_unsettled(const struct cuda_gate *gate, uint64_t settled)
{
	_Static_assert(CUDA_GENERATIONS == 64, "a bit for each cell");
	for (int i = 0; i < CUDA_GENERATIONS; i++)
		if (gate->begun[i] != gate->ended[i] && !(settled >> i & 1))
			return i;
	return -1;
}

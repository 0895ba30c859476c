/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded initial values, drawn in the daemon: counter-based (Philox4x32-10, Salmon et al. 2011), so that value i of
 * tensor t depends on (seed, t's name, i) alone and not on threads, chunks or other tensors. */
#ifndef GACC_MATH_INIT_H
#define GACC_MATH_INIT_H

#include <stddef.h>
#include <stdint.h>

/* Numbers are those of gacc.v1.InitType. */
enum init_type {
	INIT_ZEROS = 1,
	INIT_ONES = 2,
	INIT_NORMAL = 3,
	INIT_UNIFORM = 4,
	INIT_KAIMING_UNIFORM = 5,
	INIT_KAIMING_NORMAL = 6,
	INIT_XAVIER_UNIFORM = 7,
	INIT_XAVIER_NORMAL = 8
};

struct init_rule {
	enum init_type type;
	double a, b; /* as in gacc.v1.InitRule */
};

/* fan_in, fan_out of a shape as torch.nn.init._calculate_fan_in_and_fan_out: dims 1, 0 times the receptive field.
 * With fewer than two dims both are the element count (torch refuses those; a bias wants zeros or uniform). */
void init_fans(const int64_t *shape, int n_dims, double *fan_in, double *fan_out);

/* dst[0..n) = values `first`..first+n of the tensor with this key (a hash of its name). */
void init_fill(float *dst, uint64_t first, size_t n, const struct init_rule *, double fan_in, double fan_out,
	       uint64_t seed, uint64_t tensor_key);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The arena: all tensors of a job laid out flat, in an order that depends on the tensor set alone.
 *
 * Tensors are grouped by (parameter dtype, gradient dtype); groups come in the order F32, BF16, F16 of the parameter
 * dtype, tensors within a group in the order of declaration. Each tensor starts at a multiple of ARENA_ALIGN elements
 * and each group at a multiple of KERNEL_BLOCK elements; gaps are zero and stay zero, so that kernels may run across
 * tensor borders. One element index addresses a value in every role: accumulator, master, optimizer state; slots and
 * parameters add per-group byte offsets because their element size varies by group. Aliases share
 * their target's range. All sizes are 64-bit; overflow is an error.
 */
#ifndef GACC_MATH_ARENA_H
#define GACC_MATH_ARENA_H

#include "math/dtype.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ARENA_ALIGN 32 /* elements: 64 bytes of the smallest dtype */
#define ARENA_MAX_GROUPS 12
#define ARENA_MAX_DIMS 8
#define ARENA_MAX_TENSORS 1000000
#define ARENA_MAX_NAME 255

struct tensor_spec {
	const char *name;
	enum dtype dtype; /* of the parameter */
	int n_dims;
	int64_t shape[ARENA_MAX_DIMS];
	const char *alias_of; /* NULL or "": own storage */
};

struct arena_tensor {
	uint64_t start; /* element index in the arena */
	uint64_t count;
	uint64_t slot_offset;  /* bytes */
	uint64_t param_offset; /* bytes */
	uint32_t group;	       /* index of the dtype group */
	int32_t alias;	       /* index of the tensor whose range this shares, or -1 */
};

struct arena_group {
	uint64_t start, count;		    /* elements, padding included; count is a multiple of KERNEL_BLOCK */
	uint64_t slot_offset, param_offset; /* bytes */
	enum dtype param_dtype, grad_dtype;
};

struct arena {
	struct arena_tensor *tensor;
	uint64_t n_tensors;
	struct arena_group group[ARENA_MAX_GROUPS];
	int n_groups;
	uint64_t n_elements;   /* padded; length of accumulator, master and state arenas */
	uint64_t n_parameters; /* without padding and aliases */
	uint64_t slot_bytes, param_bytes;
	uint64_t fingerprint; /* XXH3-64 over names, dtypes, shapes, aliases and the gradient dtype */
};

/* Lays out n tensors. grad_dtype NONE: each tensor's own. On error `why` (n_why bytes) says which tensor
 * and what is wrong with it, and *out is untouched. ST_INVALID_ARGUMENT or ST_NO_MEMORY. Free with arena_fini. */
enum status arena_init(struct arena *out, const struct tensor_spec *t, uint64_t n, enum dtype grad_dtype, char *why,
		       size_t n_why);
void arena_fini(struct arena *); /* NULL or zeroed is fine */

/* First difference between two tensor sets, as a sentence into `why`; true if there is one. */
bool tensor_set_differs(const struct tensor_spec *a, uint64_t n_a, const struct tensor_spec *b, uint64_t n_b, char *why,
			size_t n_why);
/* The same of n tensors that stand from `first` on in both sets. */
bool tensors_differ(const struct tensor_spec *a, const struct tensor_spec *b, uint64_t n, uint64_t first, char *why,
		    size_t n_why);

#endif

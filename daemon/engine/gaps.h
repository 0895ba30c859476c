/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between the tensors of the arena: up to ARENA_ALIGN - 1 elements behind each, and the rest of a dtype
 * group's last KERNEL_BLOCK. Kernels run across it, so it must hold zeros in slots and parameters; but trainers write
 * there what they like (parameters go through a slot, whose tensors lie elsewhere when gradients have another size).
 * The engine zeroes it in what it is about to read. Any thread.
 */
#ifndef GACC_ENGINE_GAPS_H
#define GACC_ENGINE_GAPS_H

#include "engine/plan.h"

#include <stddef.h>

struct gaps;

struct gap {
	uint64_t from, to; /* bytes */
};

/* ST_NO_MEMORY. The plan is not kept. */
enum status gaps_new(struct gaps **out, const struct plan *);
void gaps_free(struct gaps *); /* NULL is fine */

/* Zeroes what of bytes [from, to) of a slot, or of the parameters, belongs to no tensor. */
void gaps_zero_slot(const struct gaps *, unsigned char *slot, uint64_t from, uint64_t to);
void gaps_zero_params(const struct gaps *, unsigned char *params, uint64_t from, uint64_t to);
/* All of them, in ascending order, as bytes of a slot and of the parameters; *n is how many. */
const struct gap *gaps_of_slot(const struct gaps *, uint64_t *n);
const struct gap *gaps_of_params(const struct gaps *, uint64_t *n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/manifest_commit.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum kind { U64, U32, F64 };

/* X(kind, field); the names are promised to later versions. */
#define FIELDS(X)                                                                                                      \
	X(U64, window)                                                                                                 \
	X(U64, applied_step)                                                                                           \
	X(U32, outcome)                                                                                                \
	X(U32, skip_reason)                                                                                            \
	X(U32, micro_size)                                                                                             \
	X(U32, next_micro_size)                                                                                        \
	X(F64, scale)                                                                                                  \
	X(F64, clip_value)                                                                                             \
	X(F64, lr)                                                                                                     \
	X(F64, loss_scale)                                                                                             \
	X(F64, usual_norm)                                                                                             \
	X(F64, total_weight)                                                                                           \
	X(F64, divisor)                                                                                                \
	X(F64, grad_norm)                                                                                              \
	X(F64, mean_loss)                                                                                              \
	X(U64, micro_count)                                                                                            \
	X(U32, last_rank)                                                                                              \
	X(U64, last_lag_ns)                                                                                            \
	X(U64, unix_nanos)                                                                                             \
	X(F64, wait_fraction)                                                                                          \
	X(U64, digest)                                                                                                 \
	X(U64, params_digest)                                                                                          \
	X(F64, next.scale.scale)                                                                                       \
	X(U32, next.scale.good)                                                                                        \
	X(U32, next.scale.allowance)                                                                                   \
	X(F64, next.norms.sum)                                                                                         \
	X(F64, next.norms.weight)                                                                                      \
	X(U32, next.norms.steps)                                                                                       \
	X(U32, next.norms.refused)                                                                                     \
	X(U64, next.counters.applied)                                                                                  \
	X(U64, next.counters.skipped_nonfinite)                                                                        \
	X(U64, next.counters.skipped_outlier)                                                                          \
	X(U64, next.counters.dropped)                                                                                  \
	X(U64, next.counters.empty)                                                                                    \
	X(U64, next.counters.rejected_micros)                                                                          \
	X(U64, next.counters.partial)

static const struct {
	const char *name;
	enum kind kind;
	size_t offset;
} fields[] = {
#define X(kind, field) { #field, kind, offsetof(struct commit, field) },
	FIELDS(X)
#undef X
};
enum { N_FIELDS = sizeof(fields) / sizeof(*fields) };
_Static_assert(N_FIELDS <= MANIFEST_MAX_VALUES, "a manifest has room for all");

void manifest_put_commit(struct manifest *m, const struct commit *k)
{
	for (size_t i = 0; i < N_FIELDS; i++) {
		const void *from = (const char *)k + fields[i].offset;
		struct manifest_value *v = &m->last[m->n_last++];
		*v = (struct manifest_value){ .name = fields[i].name, .is_real = fields[i].kind == F64 };
		if (fields[i].kind == F64)
			memcpy(&v->real, from, sizeof(v->real));
		else if (fields[i].kind == U64)
			memcpy(&v->whole, from, sizeof(v->whole));
		else
			v->whole = *(const uint32_t *)from;
	}
}

static const struct manifest_value *find(const struct manifest *m, const char *name)
{
	for (size_t i = 0; i < m->n_last; i++)
		if (!strcmp(m->last[i].name, name))
			return &m->last[i];
	return NULL;
}

static bool makes_sense(const struct commit *k)
{
	return k->outcome >= OUTCOME_APPLIED && k->outcome <= OUTCOME_DROPPED && isfinite(k->next.scale.scale) &&
	       k->next.scale.scale > 0 && isfinite(k->next.norms.sum) && isfinite(k->next.norms.weight);
}

bool manifest_take_commit(const struct manifest *m, struct commit *out)
{
	struct commit k;
	memset(&k, 0, sizeof(k));
	for (size_t i = 0; i < N_FIELDS; i++) {
		const struct manifest_value *v = find(m, fields[i].name);
		void *to = (char *)&k + fields[i].offset;
		if (!v)
			continue;
		if (fields[i].kind == F64)
			memcpy(to, &v->real, sizeof(v->real));
		else if (v->is_real || (fields[i].kind == U32 && v->whole > UINT32_MAX))
			return false;
		else if (fields[i].kind == U64)
			memcpy(to, &v->whole, sizeof(v->whole));
		else
			*(uint32_t *)to = (uint32_t)v->whole;
	}
	if (!makes_sense(&k))
		return false;
	*out = k;
	return true;
}

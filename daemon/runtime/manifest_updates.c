/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/manifest_updates.h"

#include <stddef.h>
#include <string.h>

_Static_assert(UPDATES_MAX_PENDING + 1 <= MANIFEST_MAX_UPDATES, "a manifest has room for all");

/* The names are promised to later versions. */
static const struct {
	const char *name;
	uint32_t bit;
	bool is_whole; /* uint32_t, else double */
	size_t offset;
} rows[] = {
	{ "micro_size", VALUE_MICRO_SIZE, true, offsetof(struct values, micro_size) },
	{ "lr", VALUE_LR, false, offsetof(struct values, lr) },
	{ "clip_norm", VALUE_CLIP_NORM, false, offsetof(struct values, clip_norm) },
	{ "clip_value", VALUE_CLIP_VALUE, false, offsetof(struct values, clip_value) },
};
enum { N_ROWS = sizeof(rows) / sizeof(*rows) };
_Static_assert(N_ROWS <= MANIFEST_MAX_CHANGES, "an update has room for all");

void manifest_put_updates(struct manifest *m, const struct update *u, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct manifest_update *to = &m->update[m->n_updates++];
		to->window = u[i].window;
		for (size_t k = 0; k < N_ROWS; k++) {
			const char *from = (const char *)&u[i].to + rows[k].offset;
			if (!(u[i].set & rows[k].bit))
				continue;
			struct manifest_value *v = &to->to[to->n++];
			*v = (struct manifest_value){ .name = rows[k].name, .is_real = !rows[k].is_whole };
			if (rows[k].is_whole)
				v->whole = *(const uint32_t *)from;
			else
				memcpy(&v->real, from, sizeof(v->real));
		}
	}
}

/* What is out of range becomes a value that update_check refuses. */
static bool take(const struct manifest_value *v, struct update *u)
{
	for (size_t k = 0; k < N_ROWS; k++) {
		char *to = (char *)&u->to + rows[k].offset;
		if (strcmp(v->name, rows[k].name))
			continue;
		u->set |= rows[k].bit;
		if (rows[k].is_whole)
			*(uint32_t *)to = v->is_real || v->whole > UINT32_MAX ? 0 : (uint32_t)v->whole;
		else
			memcpy(to, &v->real, sizeof(v->real));
		return true;
	}
	return false;
}

uint32_t manifest_take_updates(const struct manifest *m, struct update out[MANIFEST_MAX_UPDATES], const char **unknown)
{
	*unknown = NULL;
	for (size_t i = 0; i < m->n_updates; i++) {
		out[i] = (struct update){ .window = m->update[i].window };
		for (size_t k = 0; k < m->update[i].n; k++)
			if (!take(&m->update[i].to[k], &out[i]))
				*unknown = m->update[i].to[k].name;
	}
	return (uint32_t)m->n_updates;
}

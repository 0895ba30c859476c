/* SPDX-License-Identifier: Apache-2.0 */
/* Builds, matches and frees a job's tensor set, and copies tensors. daemon/runtime and daemon/edge build large sets
 * in the pool and hand them to the job. No state; any thread. */
#include "control/tensor_set.h"

#include <stdlib.h>
#include <string.h>

size_t tensor_text_bytes(const struct tensor_spec *t)
{
	return strlen(t->name) + 1 + (t->alias_of ? strlen(t->alias_of) + 1 : 0);
}

static const char *keep(char **at, const char *text)
{
	char *kept = *at;
	*at = stpcpy(kept, text) + 1;
	return kept;
}

enum status tensors_copy(const struct tensor_spec *t, uint64_t n, struct tensor_spec **out, char **out_names)
{
	size_t bytes = 1;
	for (uint64_t i = 0; i < n; i++)
		bytes += tensor_text_bytes(&t[i]);
	struct tensor_spec *all = calloc(n, sizeof(*all));
	char *names = malloc(bytes), *at = names;
	if (!all || !names) {
		free(all);
		free(names);
		return ST_NO_MEMORY;
	}
	for (uint64_t i = 0; i < n; i++) {
		all[i] = t[i];
		all[i].name = keep(&at, t[i].name);
		if (t[i].alias_of)
			all[i].alias_of = keep(&at, t[i].alias_of);
	}
	*out = all;
	*out_names = names;
	return ST_OK;
}

enum status tensor_set_init(struct tensor_set *out, const struct job_spec *spec, const struct tensor_spec *t,
			    uint64_t n, char *why, size_t n_why)
{
	struct tensor_set s = { .n = n };
	enum status st = arena_init(&s.arena, t, n, spec->gradient_dtype, why, n_why);
	if (st)
		return st;
	st = tensors_copy(t, n, &s.tensor, &s.names);
	if (st)
		tensor_set_fini(&s);
	else
		*out = s;
	return st;
}

enum status tensor_set_match(struct tensor_set *s, const struct job_spec *spec, char *why, size_t n_why)
{
	enum status st = s->matched ? ST_OK : spec_match(spec, s->tensor, s->n, &s->match, why, n_why);
	if (!st)
		s->matched = true;
	return st;
}

void tensor_set_fini(struct tensor_set *s)
{
	arena_fini(&s->arena);
	spec_match_fini(&s->match);
	free(s->tensor);
	free(s->names);
	*s = (struct tensor_set){ 0 };
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a job's specification for its coordinator and its parts; a large one also packed, since it is part of many
 * answers and then only has to be copied. Loop thread. */
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"
#include "runtime/specification.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_SPEC (16u << 10) /* bytes; a smaller one is packed again quickly */

static bool keep_packed(struct specification *s, const struct prepared *p)
{
	s->field = malloc(p->n + 10);
	if (!s->field)
		return false;
	uint64_t left = p->n;
	for (; left >= 0x80; left >>= 7)
		s->field[s->at++] = (uint8_t)(left | 0x80);
	s->field[s->at++] = (uint8_t)left;
	memcpy(s->field + s->at, p->bytes, p->n);
	s->n_field = s->at + p->n;
	return true;
}

struct specification *specification_new(struct prepared *p)
{
	struct specification *s = calloc(1, sizeof(*s));
	if (!s || (p && p->n >= LARGE_SPEC && !keep_packed(s, p))) {
		free(s);
		return NULL;
	}
	s->holders = 1;
	if (!p)
		return s;
	memcpy(s->sum, p->sum, sizeof(s->sum));
	s->pb = p->pb;
	s->spec = p->spec;
	p->pb = NULL;
	p->spec = (struct job_spec){ 0 };
	return s;
}

struct specification *specification_new_packed(struct prepared *p)
{
	struct specification *s = calloc(1, sizeof(*s));
	if (!s || !keep_packed(s, p)) {
		free(s);
		return NULL;
	}
	s->holders = 1;
	memcpy(s->sum, p->sum, sizeof(s->sum));
	s->spec = p->spec;
	p->spec = (struct job_spec){ 0 };
	return s;
}

struct specification *specification_hold(struct specification *s)
{
	s->holders++;
	return s;
}

Gacc__V1__JobSpec *specification_strip(struct specification *s)
{
	Gacc__V1__JobSpec *pb = s->pb;
	job_spec_fini(&s->spec);
	free(s->field);
	s->field = NULL;
	s->n_field = s->at = 0;
	s->pb = NULL;
	return pb;
}

void specification_drop(struct specification *s)
{
	if (!s)
		return;
	assert(s->holders);
	if (--s->holders)
		return;
	Gacc__V1__JobSpec *pb = specification_strip(s);
	if (pb)
		gacc__v1__job_spec__free_unpacked(pb, NULL);
	free(s);
}

void *specification_pack(const struct specification *s, size_t *out_n)
{
	size_t n = s->field ? s->n_field - s->at : gacc__v1__job_spec__get_packed_size(s->pb);
	uint8_t *bytes = malloc(n + 1);
	if (!bytes)
		return NULL;
	if (s->field)
		memcpy(bytes, s->field + s->at, n);
	else
		gacc__v1__job_spec__pack(s->pb, bytes);
	*out_n = n;
	return bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Specifications on their way to be jobs: checked, packed, and matched with their tensors, in the pool before Submit
 * and Attach are handled, or on the loop's thread at a start. */
#include "runtime/prepared.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"
#include "runtime/spec_message.h"

#include <stdlib.h>
#include <string.h>

static enum status take_spec(struct prepared *p)
{
	spec_message_sum(p->bytes, p->n, p->sum);
	p->pb = gacc__v1__job_spec__unpack(NULL, p->n, p->bytes);
	return p->pb ? spec_from_message(p->pb, &p->spec, &p->field, p->why, sizeof(p->why)) : ST_MALFORMED;
}

static enum status take_tensors(struct prepared *p)
{
	struct tensor_spec *t = NULL;
	if (!p->pb->n_tensors)
		return ST_OK;
	enum status st = tensors_from_message(p->pb->tensors, p->pb->n_tensors, &t, p->why, sizeof(p->why));
	if (!st)
		st = tensor_set_init(&p->set, &p->spec, t, p->pb->n_tensors, p->why, sizeof(p->why));
	if (!st)
		st = tensor_set_match(&p->set, &p->spec, p->why, sizeof(p->why));
	free(t);
	return st;
}

struct prepared *prepared_new(const Gacc__V1__JobSpec *spec)
{
	struct prepared *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->bytes = bytes_pack(&spec->base, &p->n);
	p->status = p->bytes ? take_spec(p) : ST_NO_MEMORY;
	if (!p->status)
		p->status = take_tensors(p);
	return p;
}

struct prepared *prepared_from_journal(const void *bytes, size_t n)
{
	struct prepared *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->bytes = malloc(n + 1);
	p->n = n;
	if (p->bytes)
		memcpy(p->bytes, bytes, n);
	p->status = p->bytes ? take_spec(p) : ST_NO_MEMORY;
	return p;
}

void prepared_free(struct prepared *p)
{
	if (!p)
		return;
	free(p->bytes);
	if (p->pb)
		gacc__v1__job_spec__free_unpacked(p->pb, NULL);
	job_spec_fini(&p->spec);
	tensor_set_fini(&p->set);
	free(p);
}

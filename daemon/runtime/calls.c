/* SPDX-License-Identifier: Apache-2.0 */
/* A set of calls that wait for something of a job, by their ids: its watchers, and calls that want the norms of its
 * tensors. Used by edge's methods and hosted_norms.c. Loop thread. */
#include "base/array.h"
#include "runtime/calls.h"

#include <stdlib.h>

bool calls_add(struct calls *c, uint64_t call, uint32_t rank)
{
	struct waiting_call *item = array_grow(c->item, c->n, &c->capacity, sizeof(*item));
	if (!item)
		return false;
	c->item = item;
	c->item[c->n++] = (struct waiting_call){ call, rank };
	return true;
}

void calls_remove(struct calls *c, uint64_t call)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->item[i].call == call) {
			c->item[i] = c->item[--c->n];
			return;
		}
}

bool calls_take(struct calls *c, uint64_t *out_call)
{
	if (!c->n)
		return false;
	*out_call = c->item[--c->n].call;
	return true;
}

void calls_fini(struct calls *c)
{
	free(c->item);
	*c = (struct calls){ 0 };
}

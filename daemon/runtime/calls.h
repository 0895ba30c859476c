/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait for something of a job, by their ids. Whether one still lives is asked of rpc_find. Loop thread. */
#ifndef GACC_RUNTIME_CALLS_H
#define GACC_RUNTIME_CALLS_H

#include <stdbool.h>
#include <stdint.h>

struct waiting_call {
	uint64_t call;
	uint32_t rank; /* whose session it belongs to; UINT32_MAX: none's */
};

struct calls { /* zero: none */
	struct waiting_call *item;
	uint32_t n, capacity;
};

bool calls_add(struct calls *, uint64_t call, uint32_t rank); /* false: no memory */
void calls_remove(struct calls *, uint64_t call);	      /* one that is not there is fine */
/* Takes one out, no matter which; false: there is none. */
bool calls_take(struct calls *, uint64_t *out_call);
void calls_fini(struct calls *); /* leaves none */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A job's specification as it was submitted, shared by the job's coordinator and its parts on this node. Loop thread;
 * the pool may read it while somebody holds it.
 */
#ifndef GACC_RUNTIME_SPECIFICATION_H
#define GACC_RUNTIME_SPECIFICATION_H

#include "control/spec.h"

#include <stddef.h>
#include <stdint.h>

struct Gacc__V1__JobSpec;
struct prepared;

struct specification {
	uint32_t holders;
	struct job_spec spec;
	/* NULL: the job is over, and the journal has it; or this is a part's, which has it packed */
	struct Gacc__V1__JobSpec *pb;
	uint8_t sum[16]; /* of the packed message: spec_message_sum */
	/* a large one as the value of a field: its length, and it packed. NULL: pack pb */
	uint8_t *field;
	size_t n_field, at; /* at: where the length ends */
};

/* Takes pb and spec out of the prepared one; for a job that is over `prepared` is NULL, and the caller fills in what is
 * known. With one holder. NULL: no memory. */
struct specification *specification_new(struct prepared *);
/* For a part: takes the spec, and has the message only packed, however small it is. NULL: no memory. */
struct specification *specification_new_packed(struct prepared *);
struct specification *specification_hold(struct specification *);
void specification_drop(struct specification *); /* takes NULL */
/* For when no holder needs more than the plain values of `spec` from here on: the job is over, its part is about to go.
 * The message is returned, for gacc__v1__job_spec__free_unpacked, which may take long. */
struct Gacc__V1__JobSpec *specification_strip(struct specification *);
/* The packed message, malloc'ed; NULL: no memory. */
void *specification_pack(const struct specification *, size_t *out_n);

#endif

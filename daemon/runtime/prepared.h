/* SPDX-License-Identifier: Apache-2.0 */
/* A specification prepared to become a job: all the slow work that needs nothing of the daemon's state. Any thread.
 */
#ifndef GACC_RUNTIME_PREPARED_H
#define GACC_RUNTIME_PREPARED_H

#include "control/tensor_set.h"
#include "runtime/spec_message.h"

struct Gacc__V1__JobSpec;

struct prepared {
	enum status status; /* why it can be no job: `why`, and `field` (static) or NULL */
	const char *field;
	char why[320];
	void *bytes; /* packed */
	size_t n;
	uint8_t sum[16];	      /* of bytes: spec_message_sum */
	struct Gacc__V1__JobSpec *pb; /* unpacked from them */
	struct job_spec spec;
	struct tensor_set set; /* matched; n == 0: the specification has no tensors */
};

/* From a message, which is only read. NULL: no memory; else errors are in `status`. */
struct prepared *prepared_new(const struct Gacc__V1__JobSpec *);
/* From a packed message of the journal: without the set, so that it is the same short work for all jobs. */
struct prepared *prepared_from_journal(const void *bytes, size_t n);
void prepared_free(struct prepared *); /* what was taken out of it is NULL or zero; takes NULL */

#endif

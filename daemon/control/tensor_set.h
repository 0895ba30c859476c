/* SPDX-License-Identifier: Apache-2.0 */
/* A job's tensors: checked, copied, laid out, and matched with the specification's rules.
 *
 * A set of a million tensors takes a second to build, so gaccd builds sets in the pool and hands them to the job whole.
 * Once a job has its set, that does not change while the job lives; any thread may read it then.
 */
#ifndef GACC_CONTROL_TENSOR_SET_H
#define GACC_CONTROL_TENSOR_SET_H

#include "control/spec_match.h"

struct tensor_set {
	uint64_t n; /* 0: there is none */
	struct tensor_spec *tensor;
	char *names; /* storage of the tensors' strings */
	struct arena arena;
	bool matched;
	struct spec_match match; /* when `matched` */
};

/* Copies t. ST_INVALID_ARGUMENT with why, ST_NO_MEMORY; *out is then as it was. Any thread. */
enum status tensor_set_init(struct tensor_set *out, const struct job_spec *, const struct tensor_spec *t, uint64_t n,
			    char *why, size_t n_why);
/* Fills `match`, unless that has been done. Errors as spec_match. Any thread. */
enum status tensor_set_match(struct tensor_set *, const struct job_spec *, char *why, size_t n_why);
void tensor_set_fini(struct tensor_set *);

/* Bytes that the tensor's strings take in *names below. */
size_t tensor_text_bytes(const struct tensor_spec *);
/* Copies of n > 0 tensors, and of their strings; two blocks for free(). ST_NO_MEMORY. Any thread. */
enum status tensors_copy(const struct tensor_spec *, uint64_t n, struct tensor_spec **out, char **out_names);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A job's specification and its tensor set as protobuf messages.
 *
 * The generated structs are named here and defined by headers that only .c files include. Any thread.
 */
#ifndef GACC_RUNTIME_SPEC_MESSAGE_H
#define GACC_RUNTIME_SPEC_MESSAGE_H

#include "control/spec.h"
#include "control/tensor_set.h"

struct Gacc__V1__JobSpec;
struct Gacc__V1__TensorSpec;

/* Filled in and checked. On error `field` and `why` as job_spec_check. Free with job_spec_fini. */
enum status spec_from_message(const struct Gacc__V1__JobSpec *, struct job_spec *out, const char **field, char *why,
			      size_t n_why);
/* A checksum of a packed specification, by which it is told from others. */
void spec_message_sum(const void *spec, size_t n, uint8_t out[16]);

/* Milliseconds of a message as nanoseconds; INT64_MAX when they are too many. */
int64_t spec_ms(uint64_t ms);

/* *out is one block for free(), its strings are borrowed from `t`. ST_INVALID_ARGUMENT names the tensor. */
enum status tensors_from_message(struct Gacc__V1__TensorSpec *const *t, size_t n, struct tensor_spec **out, char *why,
				 size_t n_why);

/* A packed JobSpec with these tensors and nothing else; for free(). NULL: no memory. */
void *tensors_to_message(const struct tensor_spec *, uint64_t n, size_t *out_n);

#endif

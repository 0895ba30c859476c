/* SPDX-License-Identifier: Apache-2.0 */
/* Between protobuf messages and control's plain structs. The only place where both are known.
 *
 * `pb` structs are named here and defined by the generated headers, which only .c files include. Loop thread.
 */
#ifndef GACC_EDGE_CONVERT_H
#define GACC_EDGE_CONVERT_H

#include "control/coordinator.h"
#include "control/job.h"

struct Gacc__V1__JobSpec;
struct Gacc__V1__TensorSpec;
struct Gacc__V1__StepResult;
struct Gacc__V1__RankStatus;
struct Gacc__V1__Event;
struct history_event;

/* A job's spec from the wire: filled in, checked. On error `field` and `why` as job_spec_check. Free with
 * job_spec_fini. */
enum status convert_spec(const struct Gacc__V1__JobSpec *, struct job_spec *out, const char **field, char *why,
			 size_t n_why);
/* A sum of a packed spec, by which it is told from others. */
void convert_spec_sum(const void *spec, size_t n, uint8_t out[16]);

/* Milliseconds of the wire as nanoseconds; INT64_MAX when they are too many. */
int64_t convert_ms(uint64_t ms);

/* Tensors from the wire; *out is one block for free(), its strings are borrowed from `t`. ST_INVALID_ARGUMENT names the
 * tensor. */
enum status convert_tensors(struct Gacc__V1__TensorSpec *const *t, size_t n, struct tensor_spec **out, char *why,
			    size_t n_why);

/* A packed JobSpec with these tensors and nothing else; for free(). NULL: no memory. Any thread. */
void *convert_pack_tensors(const struct tensor_spec *, uint64_t n, size_t *out_n);

/* Fills an initialised message. */
void convert_step(const struct commit *, struct Gacc__V1__StepResult *out);
/* A message for free with gacc__v1__event__free_unpacked; NULL: no memory. */
struct Gacc__V1__Event *convert_event(const struct history_event *);
/* Fills an initialised message; `detail` (n bytes) is its text's storage. */
void convert_rank(const struct coord *, const struct rank_progress *, struct now, struct Gacc__V1__RankStatus *out,
		  char *detail, size_t n);

#endif

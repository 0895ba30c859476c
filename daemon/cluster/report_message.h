/* SPDX-License-Identifier: Apache-2.0 */
/* Reports as messages of gacc/internal/v1/cluster.proto. A report looks at every rank, so its columns are copied and
 * not encoded number by number: about a microsecond for 8 ranks and 13 ns for each of many
 * (tests/bench/bench_messages). Any thread; no state. */
#ifndef GACC_CLUSTER_REPORT_MESSAGE_H
#define GACC_CLUSTER_REPORT_MESSAGE_H

#include "cluster/commit_message.h"
#include "control/messages.h"
#include "control/part.h"

#include <stddef.h>

/* For free(); NULL: no memory. Text that is no UTF-8 is mended on the way. */
void *report_pack(const struct report *, size_t *out_n);
/* A report about a part with these ranks, of a job with these bounds. ST_VERSION_SKEW: `why` is one
 * sentence that names field and value; ST_NO_MEMORY. *out is written only with ST_OK: then for report_release. */
enum status report_unpack(const void *bytes, size_t n, const struct part_ranks *, const struct message_bounds *,
			  struct report *out, char *why, size_t n_why);
void report_release(struct report *); /* of report_unpack */

#endif

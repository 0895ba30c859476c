/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator's wish for a checkpoint, and what became of it at a part, as messages of
 * gacc/internal/v1/checkpoint.proto. Any thread; no state.
 */
#ifndef GACC_CLUSTER_SAVE_MESSAGE_H
#define GACC_CLUSTER_SAVE_MESSAGE_H

#include "control/messages.h"

#include <stddef.h>

/* For free(); NULL: no memory. Text that is no UTF-8 is mended on the way. */
void *save_pack(const struct save *, size_t *out_n);
void *saved_pack(const struct part_saved *, size_t *out_n);
/* ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is whole with ST_OK; with
 * ST_VERSION_SKEW it has the numbers alone, so that the sender can be answered, and `number` 0 where it has none. */
enum status save_unpack(const void *bytes, size_t n, struct save *out, char *why, size_t n_why);
/* `ranks`: of the whole job. *out is written only with ST_OK. A text that is too long is cut at a character. */
enum status saved_unpack(const void *bytes, size_t n, uint32_t ranks, struct part_saved *out, char *why, size_t n_why);

#endif

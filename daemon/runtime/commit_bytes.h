/* SPDX-License-Identifier: Apache-2.0 */
/* A struct commit inside a record of the journal: as it is, or as an older gaccd has written it. */
#ifndef GACC_RUNTIME_COMMIT_BYTES_H
#define GACC_RUNTIME_COMMIT_BYTES_H

#include "control/messages.h"

#include <stdbool.h>
#include <stddef.h>

#define COMMIT_LACKED sizeof(uint64_t) /* bytes that the older form has less: params_before */

/* How many bytes of a record it is. */
size_t commit_bytes(bool older);
/* From so many bytes, which need not be aligned; params_before is 0 in what an older gaccd has written. */
void commit_read(struct commit *, const void *bytes, bool older);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads pieces of the logs that launched ranks have on this node, across rotations. Blocks: for a pool thread.
 *
 * Logs are their owner's: where gaccd may not read one it takes the owner's rights (setfsuid), which apply only to the
 * calling thread, and only regular files of that owner are read.
 */
#ifndef GACC_RUNTIME_RANK_LOG_H
#define GACC_RUNTIME_RANK_LOG_H

#include "cluster/log_message.h"

#define RANK_LOG_SCAN (4u << 20) /* bytes at the end of a log in which its last lines are looked for */
#define RANK_LOG_OF_DIR UINT32_MAX

/* What follows in the log of a rank in `dir`. `owner`: the uid whose file it must be; RANK_LOG_OF_DIR: the owner of
 * `dir`. Fills in all of *out but its job and number; the data go to `room`, which has LOG_PIECE_BYTES. */
void rank_log_read(const char *dir, uint32_t owner, const struct log_ask *, uint8_t *room, struct log_piece *out);

#endif

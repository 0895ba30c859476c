/* SPDX-License-Identifier: Apache-2.0 */
/* What the journal gets of a running job. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_JOURNAL_H
#define GACC_EDGE_HOSTED_JOURNAL_H

#include "edge/hosted.h"

/* coord_ports.persist_commit; ctx is the hosted. */
void hosted_persist_commit(void *ctx, const struct commit *, const uint64_t *counted, uint32_t n_words);
/* Its end, when nothing comes before it any more. */
void hosted_write_end(struct hosted *, enum status end, const char *reason);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* All jobs of the journal, after a restart. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_RECOVER_H
#define GACC_EDGE_HOSTED_RECOVER_H

#include "edge/daemon.h"

/* With their memory from the fd store. ST_STORE_FAILED, ST_NO_MEMORY, ST_RESOURCE_EXHAUSTED; ST_MALFORMED:
 * d->journal_lost is set. */
enum status hosted_recover(struct daemon *d);

#endif

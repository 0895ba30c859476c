/* SPDX-License-Identifier: Apache-2.0 */
/* What is left in the descriptor store when all parts have been made at a start. Private to the edge; loop thread. */
#ifndef GACC_EDGE_STORED_CHECK_H
#define GACC_EDGE_STORED_CHECK_H

#include "edge/daemon.h"

/* ST_NO_MEMORY (logged): memory that a part needs is left, and would be dropped: gaccd starts again. */
enum status stored_check_taken(const struct daemon *);
/* Drops what is of jobs that are over, or of none that the journal knows. */
void stored_drop_strangers(struct daemon *);

#endif

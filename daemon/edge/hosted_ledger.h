/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a window's ledger (cluster/ledger_message.h): its portions are put together in struct
 * hosted until the window goes into the history. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_HOSTED_LEDGER_H
#define GACC_EDGE_HOSTED_LEDGER_H

#include "edge/links.h"

links_take hosted_take_ledger; /* a portion, of a part of a job that is coordinated here */

#endif

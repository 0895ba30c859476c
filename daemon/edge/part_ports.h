/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of all parts of this gaccd. Private to the edge; loop thread. */
#ifndef GACC_EDGE_PART_PORTS_H
#define GACC_EDGE_PART_PORTS_H

#include "runtime/part.h"

struct part_ports part_ports(void);

#endif

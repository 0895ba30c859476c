/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of all parts of this gaccd. Private to the edge; loop thread. */
#ifndef GACC_EDGE_PART_PORTS_H
#define GACC_EDGE_PART_PORTS_H

#include "edge/links.h"
#include "runtime/part.h"

const struct part_ports *part_ports(void);
links_take part_take_order; /* an order for a part here, whoever coordinates its job */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of all parts of this gaccd. Private to the edge; loop thread. */
#ifndef GACC_EDGE_PART_PORTS_H
#define GACC_EDGE_PART_PORTS_H

#include "edge/links.h"
#include "runtime/part.h"

const struct part_ports *part_ports(void);
/* An order for a part here, whoever coordinates its job; the addresses of all engines; what has become of its tensor
 * set; a checkpoint that is wanted of it. */
links_take part_take_order, part_take_board, part_take_kept, part_take_save;
/* Asks the coordinator to keep the part's tensor set, which is packed; part_take_kept has the answer. */
void part_send_tensors(struct part *);

#endif

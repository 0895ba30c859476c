/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a job: its ports, and the messages that arrive for it. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_PORTS_H
#define GACC_EDGE_HOSTED_PORTS_H

#include "edge/hosted.h"
#include "edge/links.h"

struct coord_ports hosted_coord_ports(struct hosted *);
/* A report about a part of a job that is coordinated here; the address of its engine; what has become of its placement;
 * its events. */
links_take hosted_take_report, hosted_take_blob, hosted_take_placed, hosted_take_event;

#endif

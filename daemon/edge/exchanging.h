/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange slots of the jobs that this gaccd coordinates (control/exchanges.h): between them and the coordinators'
 * ports. Private to the edge; loop thread. */
#ifndef GACC_EDGE_EXCHANGING_H
#define GACC_EDGE_EXCHANGING_H

#include "edge/hosted.h"

/* Before any job is made. ST_NO_MEMORY. */
enum status exchanging_open(struct daemon *);
/* No job has machines any more. */
void exchanging_close(struct daemon *);
/* The job has its parts, on their nodes. Nothing for one with one part. ST_NO_MEMORY. */
enum status exchanging_add(struct hosted *);
/* Its coordinator goes. */
void exchanging_remove(struct hosted *);

/* coord_ports; ctx is the hosted. */
bool exchanging_ask(void *ctx, struct now);
void exchanging_give(void *ctx, struct now);
void exchanging_waits(void *ctx, char *text, size_t n, struct now);

#endif

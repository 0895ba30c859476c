/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of what is shown of a part (cluster/part_view_message.h): the newest view is kept in struct
 * hosted. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_HOSTED_SEEN_H
#define GACC_EDGE_HOSTED_SEEN_H

#include "edge/links.h"

links_take hosted_take_view; /* the view of a part of a job that is coordinated here */

#endif

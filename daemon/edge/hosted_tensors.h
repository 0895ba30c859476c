/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a tensor set that ranks have registered: it is made durable, and the node of the part hears
 * what has become of it. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_HOSTED_TENSORS_H
#define GACC_EDGE_HOSTED_TENSORS_H

#include "edge/links.h"

links_take hosted_take_tensors; /* the tensor set of a part of a job that is coordinated here */

#endif

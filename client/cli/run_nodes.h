/* SPDX-License-Identifier: Apache-2.0 */
/* `gaccctl run --nodes`. */
#ifndef GACCCTL_RUN_NODES_H
#define GACCCTL_RUN_NODES_H

#include "command.h"

/* The exit status, as of `gaccctl run`. A signal cancels the job. */
int run_on_nodes(struct invocation *inv);

#endif

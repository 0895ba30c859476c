/* SPDX-License-Identifier: Apache-2.0 */
/* Registering a job that others start. */
#ifndef GACCCTL_SUBMIT_H
#define GACCCTL_SUBMIT_H

#include "command.h"

/* Submits it, says its id, and follows it by the options --dry-run, --wait and --tee. With --wait, signals_block() must
 * have been called before. Returns the exit status. */
int submit_job(struct invocation *inv, gacc_spec *spec);

#endif

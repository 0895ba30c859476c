/* The job that `gaccctl run` registers: its job file, then --set, then its own options. */
#ifndef GACCCTL_RUN_SPEC_H
#define GACCCTL_RUN_SPEC_H

#include "command.h"

/* NULL: fail_with() was called. */
gacc_spec *run_spec(struct invocation *inv, int *exit_status);
/* The one key without a default is there. False: fail_with() was called. */
bool spec_has_optimizer(struct invocation *inv, gacc_spec *spec, int *exit_status);

#endif

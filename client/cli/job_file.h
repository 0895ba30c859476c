/* SPDX-License-Identifier: Apache-2.0 */
/* The job that a command registers: its job file (-f), then --set, then the command's own options. All return NULL or
 * false after fail_with(). */
#ifndef GACCCTL_JOB_FILE_H
#define GACCCTL_JOB_FILE_H

#include "command.h"

/* For `gaccctl run`: ranks are started here. */
gacc_spec *run_spec(struct invocation *inv, int *out_exit);
/* For `gaccctl run --nodes`: gaccds start the ranks. */
gacc_spec *nodes_spec(struct invocation *inv, int *out_exit);
/* For `gaccctl submit`. */
gacc_spec *submit_spec(struct invocation *inv, int *out_exit);
/* --set KEY=VALUE and what other options of the command stand for. */
bool spec_apply(struct invocation *inv, gacc_spec *spec, int *out_exit);
bool spec_set(struct invocation *inv, gacc_spec *spec, const char *key, const char *value, int *out_exit);
/* The file, as it is; `path` NULL: all defaults. */
gacc_spec *spec_read(struct invocation *inv, const char *path, int *out_exit);
/* The one key without a default is there. */
bool spec_has_optimizer(struct invocation *inv, gacc_spec *spec, int *out_exit);

#endif

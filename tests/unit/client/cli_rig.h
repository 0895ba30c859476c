/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of gaccctl share: an invocation whose output and errors go to memory. */
#ifndef GACC_TEST_CLI_RIG_H
#define GACC_TEST_CLI_RIG_H

#include "cli/command.h"

extern struct invocation inv;
extern char *out, *err; /* what was written; valid after fflush(inv.out), fflush(inv.err) */
extern size_t n_out, n_err;

/* A checked fixture. */
void cli_setup(void);
void cli_teardown(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* From the words of a command line to an invocation. */
#ifndef GACCCTL_PARSE_H
#define GACCCTL_PARSE_H

#include "command.h"

/* Reads argv[1..] into *inv, whose `out` and `err` are set; inv->table becomes `table`, which must outlive it. Returns
 * -1 to go on with inv->command->run, else the exit status of what was answered at once (help, an error). */
int parse(const struct command_table *table, int argc, char **argv, struct invocation *inv);

#endif

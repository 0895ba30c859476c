/* SPDX-License-Identifier: Apache-2.0 */
/* Help and the man page, made from a table of commands. */
#ifndef GACCCTL_HELP_H
#define GACCCTL_HELP_H

#include "command.h"

/* What `gaccctl --help` says: all commands, and the options of every one. */
void print_help(FILE *out, const struct command_table *table);
/* `c` is a row of the table. */
void print_command_help(FILE *out, const struct command_table *table, const struct command *c);
/* In roff. */
void print_man(FILE *out, const struct command_table *table);

#endif

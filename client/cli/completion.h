/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts for shells, made from a table of commands. */
#ifndef GACCCTL_COMPLETION_H
#define GACCCTL_COMPLETION_H

#include "command.h"

/* shell: "bash", "zsh", "fish"; false: another, and nothing is printed. */
bool print_completion(FILE *out, const struct command_table *table, const char *shell);

#endif

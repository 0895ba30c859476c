/* SPDX-License-Identifier: Apache-2.0 */
/* Commands by name, and names that are nearly right. */
#ifndef GACCCTL_FIND_H
#define GACCCTL_FIND_H

#include "command.h"

/* Command with this name or alias, or NULL. */
const struct command *command_find(const struct command_table *table, const char *word);
/* The nearest name by edits among `n` names, or NULL if none is near. */
const char *nearest(const char *word, const char *const *names, size_t n);

#endif

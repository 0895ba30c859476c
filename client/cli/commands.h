/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of gaccctl. */
#ifndef GACCCTL_COMMANDS_H
#define GACCCTL_COMMANDS_H

#include "command.h"

/* Constant. Handlers find it in their invocation, so that only the main program and tests name it. */
extern const struct command_table gaccctl_commands;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The last line of a terminal, which shows how something gets on. Whoever prints anything else there clears it before;
 * it comes back with the next status_line_show. gaccctl's main thread. */
#ifndef GACCCTL_STATUS_LINE_H
#define GACCCTL_STATUS_LINE_H

#include <stdbool.h>
#include <stdio.h>

/* From now on there is such a line, if `out` is a terminal that can erase one. */
void status_line_open(FILE *out);
bool status_line_is_open(void);
bool status_line_is_visible(void);
/* Shows this text (ASCII, without line breaks) in place of the one before, as much of it as the terminal is wide. */
void status_line_show(const char *text);
void status_line_clear(void);

#endif

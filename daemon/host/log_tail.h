/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a log, as lines that a message can carry. */
#ifndef GACC_HOST_LOG_TAIL_H
#define GACC_HOST_LOG_TAIL_H

#include <stddef.h>

#define LOG_TAIL_LINE 512 /* bytes of one line, its NUL included; what is longer is cut */

/* The last `max` lines of n bytes of text: out[] gets them, malloc'ed, oldest first, as UTF-8 with a '?' for each byte
 * that is none and for each control character but the tab. Empty lines at the end are left out. How many there are;
 * without memory it is fewer. */
size_t log_tail(const char *text, size_t n, char **out, size_t max);

#endif

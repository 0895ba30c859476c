/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files that the configuration names. A FIFO would make open() wait until somebody writes to it, with the
 * whole of gaccd where that is on the loop. Any thread. */
#ifndef GACC_BASE_REGULAR_H
#define GACC_BASE_REGULAR_H

#include <stdbool.h>
#include <stdio.h>

/* A regular file, to be read; never waits. -1: *out_why says why (static, or valid until the next strerror), and errno
 * is EINVAL if it is another kind of file. */
int regular_open_fd(const char *path, const char **out_why);
/* The same as a stream; NULL instead of -1. */
FILE *regular_open(const char *path, const char **out_why);
/* There is something at this path which is no regular file. */
bool regular_is_not(const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite's default VFS with one fault: the n-th write, truncate or sync fails, once. */
#ifndef FAULTY_VFS_H
#define FAULTY_VFS_H

#include <stdbool.h>

/* Makes it the default VFS of this process. */
void faulty_vfs_install(void);
/* The disk is full from now on: no file gets longer than it is. */
void faulty_vfs_fill(bool full);
/* Counts from now on and fails the n-th call with `code` (an SQLITE_IOERR_* or SQLITE_FULL); n = 0: none. */
void faulty_vfs_arm(int n, int code);
/* Calls counted since; at least n if the fault happened. */
int faulty_vfs_calls(void);
/* Of these, syncs. */
int faulty_vfs_syncs(void);

#endif

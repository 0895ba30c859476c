/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the store: what checkpoint.c needs of the directories that checkpoints lie in. Calls block; any thread. */
#ifndef GACC_STORE_CHECKPOINT_DIRS_H
#define GACC_STORE_CHECKPOINT_DIRS_H

#include "store/checkpoint.h"

/* One errno into one sentence and one line of the log: ST_IO_ERROR. */
enum status checkpoint_failed(const char *what, const char *name, int error, char *why, size_t n_why);
/* The same, not logged, for a path that somebody has asked for: no fault of ours. ST_INVALID_ARGUMENT,
 * ST_PERMISSION_DENIED, ST_IO_ERROR. */
enum status checkpoint_refused(const char *path, int error, char *why, size_t n_why);

/* openat without following a link anywhere in the path: ELOOP. */
int checkpoint_open_at(int dir_fd, const char *path, int flags, mode_t mode);
/* The directory that was made, whatever has been given its path since. ST_IO_ERROR: it is another one, and that is
 * logged. */
enum status checkpoint_open_made(const char *path, const struct checkpoint_dir *made, int *out_fd, uint32_t *out_uid,
				 char *why, size_t n_why);
/* Makes the names of an open directory and of those on the way to it durable, whoever has made them, up to the root of
 * its file system; but for those in directories that this process may not read. false: errno. */
bool checkpoint_sync_way(int dir_fd);
/* checkpoint_open_dir of what a path's last name lies in, and that name. */
enum status checkpoint_open_parent(const char *path, bool create, int *out_fd, const char **name, char *why,
				   size_t n_why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Folders in which only gaccd may make files: state_dir and runtime_dir. At the start, before other threads. */
#ifndef GACC_HOST_OWN_DIR_H
#define GACC_HOST_OWN_DIR_H

#include "proto/status.h"

#include <sys/types.h>

/* Makes a folder that is not there yet; one that is there must be safe from other users, because a user that may rename
 * in it can put a socket or a journal of their own there: it belongs to root or to this process's user, and if all
 * users may write there it is sticky. `key` is the configuration's, for messages. ST_IO_ERROR: it cannot be made;
 * ST_PERMISSION_DENIED: it is not safe. Both are logged. */
enum status own_dir_make(const char *path, mode_t mode, const char *key);

#endif

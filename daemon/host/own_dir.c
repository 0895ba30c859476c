/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and checks the directories of gaccd's sockets and its journal: they must belong to gaccd's user, and nobody
 * else may write to them. At the start, on the main thread. */
#include "host/own_dir.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status own_dir_make(const char *path, mode_t mode, const char *key)
{
	struct stat s;

	if (!mkdir(path, mode))
		return ST_OK;
	if (errno != EEXIST || stat(path, &s)) {
		log_error("cannot make %s (%s): %s", path, key, strerror(errno));
		return ST_IO_ERROR;
	}
	if ((s.st_uid && s.st_uid != geteuid()) || (s.st_mode & (S_IWOTH | S_ISVTX)) == S_IWOTH) {
		log_error("%s (%s) belongs to user %u and has mode %04o: its files could be replaced; give it to user "
			  "%u with chown, with mode 0755 at most, or set another %s",
			  path, key, s.st_uid, s.st_mode & 07777, geteuid(), key);
		return ST_PERMISSION_DENIED;
	}
	return ST_OK;
}

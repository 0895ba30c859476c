/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file with a token: the one that TCP callers show, or the one for the coordinator. For the start of gaccd.
 * Loop thread. */
#include "host/token_file.h"

#include "base/log.h"
#include "base/regular.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status token_file_read(const char *key, const char *path, char out[TOKEN_MAX])
{
	struct stat s;
	const char *why = NULL;
	int fd = regular_open_fd(path, &why);
	ssize_t n = fd < 0 ? -1 : read(fd, out, TOKEN_MAX - 1);
	if (n < 0 || fstat(fd, &s)) {
		log_error("%s %s: %s", key, path, why ? why : strerror(errno));
		n = -1;
	} else if (s.st_mode & 077) {
		log_error("%s %s is readable by others (mode %03o): chmod 600", key, path, s.st_mode & 0777);
		n = -1;
	} else {
		out[n] = '\0';
		out[strcspn(out, "\r\n")] = '\0';
		if (strlen(out) < 16) {
			log_error("%s %s has %zu characters, at least 16 are needed", key, path, strlen(out));
			n = -1;
		}
	}
	if (fd >= 0)
		close(fd);
	return n < 0 ? ST_INVALID_CONFIG : ST_OK;
}

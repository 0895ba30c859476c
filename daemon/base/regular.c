/* SPDX-License-Identifier: Apache-2.0 */
/* Opens regular files only, and says what is wrong with others: a folder can be opened, too, and a FIFO or a terminal
 * has no end. */
#include "base/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOT_REGULAR "not a regular file"

int regular_open_fd(const char *path, const char **out_why)
{
	struct stat s;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &s)) {
		*out_why = regular_is_not(path) ? NOT_REGULAR : strerror(errno); /* a socket cannot be opened */
	} else if (!S_ISREG(s.st_mode)) {
		errno = EINVAL;
		*out_why = NOT_REGULAR;
	} else {
		return fd;
	}
	const int error = errno;
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

FILE *regular_open(const char *path, const char **out_why)
{
	int fd = regular_open_fd(path, out_why);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	if (fd >= 0 && !file) {
		*out_why = strerror(errno);
		close(fd);
	}
	return file;
}

bool regular_is_not(const char *path)
{
	struct stat s;
	const int error = errno;
	const bool is_not = !stat(path, &s) && !S_ISREG(s.st_mode);
	errno = error;
	return is_not;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's configuration file. */
#include "host/conf.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static int fd = -1;
	static char path[64];
	if (fd < 0) {
		fd = memfd_create("fuzz", 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	if (ftruncate(fd, 0) || pwrite(fd, data, n, 0) != (ssize_t)n)
		return 0;
	struct conf_sources sources = { .file = path };
	struct conf *c = NULL;
	char why[512] = "";
	enum status st = conf_load(&sources, &c, why, sizeof(why));
	if (st && (c || !*why))
		abort();
	conf_free(c);
	return 0;
}

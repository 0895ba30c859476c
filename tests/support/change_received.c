/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into a gaccd of the tests, before libc: changes a bit of what an engine receives from another one, as a broken
 * network card would, or memory on the way.
 *
 * GACC_CHANGE_FILE in gaccd's environment names a file; engines have no environment of their own. While it is not
 * there, nothing happens. When it holds "PID BYTES\n", engine PID has a bit changed in the first call that brings at
 * least 1000 bytes (so headers of messages stay whole) and BYTES with all such calls since the file was there. The file
 * is removed then. One thread of an engine receives, hence no lock. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define VARIABLE "GACC_CHANGE_FILE="
enum { LEAST = 1000, ENVIRONMENT = 64 << 10, NAME = 512 };

/* The variable's value in the parent's environment; "": it has none. */
static void find_file(char out[NAME])
{
	static char all[ENVIRONMENT];
	char name[64];
	snprintf(name, sizeof(name), "/proc/%d/environ", (int)getppid());
	const int fd = open(name, O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : read(fd, all, sizeof(all) - 1);
	if (fd >= 0)
		close(fd);
	out[0] = '\0';
	for (const char *at = all; n > 0 && at < all + n; at += strlen(at) + 1)
		if (!strncmp(at, VARIABLE, sizeof(VARIABLE) - 1))
			snprintf(out, NAME, "%s", at + sizeof(VARIABLE) - 1);
}

/* The bytes with which this process is due; 0: it is not meant. */
static unsigned long due(const char *name)
{
	long pid = 0;
	unsigned long bytes = 0;
	FILE *f = fopen(name, "re");
	if (!f)
		return 0;
	const int n = fscanf(f, "%ld %lu", &pid, &bytes);
	fclose(f);
	return n == 2 && pid == (long)getpid() ? bytes : 0;
}

ssize_t recv(int fd, void *to, size_t n, int flags)
{
	static unsigned long seen;
	char name[NAME] = "";
	union {
		void *object;
		ssize_t (*call)(int, void *, size_t, int);
	} real = { dlsym(RTLD_NEXT, "recv") };
	const ssize_t got = real.call(fd, to, n, flags);
	if (got < LEAST)
		return got;
	find_file(name);
	const unsigned long bytes = name[0] ? due(name) : 0;
	seen = bytes ? seen + (unsigned long)got : 0;
	if (bytes && seen >= bytes) {
		((unsigned char *)to)[got / 2] ^= 4;
		unlink(name);
	}
	return got;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD: kills the process right before or after it syncs the journal, so that a test can die between COMMIT and
 * its broadcast.
 *
 * GACC_KILL_FILE names a file. While it is not there, nothing happens. When it holds "before N\n" or "after N\n", the
 * N-th sync (fsync or fdatasync) of the journal's write-ahead log is the process's last act; the file is removed first,
 * so that the next life is spared. Syncs of the journal's anchor do not count: they come whenever the journal has been
 * idle. One thread of gaccd writes the journal, hence no lock. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd);
int fdatasync(int fd);

static int is_log(int fd)
{
	char link[64], path[4096];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return 0;
	path[n] = '\0';
	return strstr(path, "journal.sqlite-wal") != NULL;
}

/* Counts this sync; what is to happen with it: "before", "after" or "" in `when`. */
static void take_turn(char when[8])
{
	const char *name = getenv("GACC_KILL_FILE");
	unsigned long left = 0;
	when[0] = '\0';
	FILE *f = name ? fopen(name, "re") : NULL;
	if (!f)
		return;
	int n = fscanf(f, "%7s %lu", when, &left);
	fclose(f);
	if (n == 2 && left <= 1) {
		unlink(name);
		return;
	}
	f = n == 2 ? fopen(name, "we") : NULL;
	if (f) {
		fprintf(f, "%s %lu\n", when, left - 1);
		fclose(f);
	}
	when[0] = '\0';
}

static int sync_or_die(const char *function, int fd)
{
	union {
		void *object;
		int (*call)(int);
	} real = { dlsym(RTLD_NEXT, function) };
	char when[8] = "";
	if (is_log(fd))
		take_turn(when);
	if (strcmp(when, "before") == 0)
		raise(SIGKILL);
	int r = real.call(fd);
	if (strcmp(when, "after") == 0)
		raise(SIGKILL);
	return r;
}

int fsync(int fd)
{
	return sync_or_die("fsync", fd);
}

int fdatasync(int fd)
{
	return sync_or_die("fdatasync", fd);
}

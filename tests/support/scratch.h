/* A folder for the files of a test that syncs them thousands of times: in memory where there is room, for none of these
 * tests cuts the power; else in TMPDIR. Who makes one removes it. */
#ifndef GACC_TESTS_SCRATCH_H
#define GACC_TESTS_SCRATCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#define SCRATCH_PATH 64
#define SCRATCH_FREE_BYTES (256u << 20)

/* False when it cannot be made. `name` says in its path whose it is. */
static inline bool scratch_make(char out_dir[SCRATCH_PATH], const char *name)
{
	struct statvfs fs;
	const char *tmp = getenv("TMPDIR");
	const char *root = tmp ? tmp : "/tmp";
	if (statvfs("/dev/shm", &fs) == 0 && fs.f_bavail * fs.f_frsize >= SCRATCH_FREE_BYTES)
		root = "/dev/shm";
	int n = snprintf(out_dir, SCRATCH_PATH, "%s/gacc-%s-XXXXXX", root, name);
	return n < SCRATCH_PATH && mkdtemp(out_dir);
}

#endif

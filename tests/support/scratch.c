/* SPDX-License-Identifier: Apache-2.0 */
#include "support/scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define FREE_BYTES (256u << 20)

static char root[SCRATCH_PATH];

static bool make(char out_dir[SCRATCH_PATH], const char *parent, const char *name)
{
	int n = snprintf(out_dir, SCRATCH_PATH, "%s/%s-XXXXXX", parent, name);
	return n < SCRATCH_PATH && mkdtemp(out_dir);
}

bool scratch_begin(void)
{
	struct statvfs fs;
	char name[32];
	const char *tmp = getenv("TMPDIR"), *given = getenv("GACC_TEST_SCRATCH");
	snprintf(name, sizeof(name), "gacc-%s", program_invocation_short_name);
	if (given) /* tests/mutants/run.py, which removes it: a mutant may hang, and is killed then */
		tmp = given;
	else if (statvfs("/dev/shm", &fs) == 0 && fs.f_bavail * fs.f_frsize >= FREE_BYTES)
		tmp = "/dev/shm";
	/* a test that opens its own folder to another user means it */
	return make(root, tmp ? tmp : "/tmp", name) && chmod(root, 0711) == 0;
}

bool scratch_make(char out_dir[SCRATCH_PATH])
{
	return make(out_dir, root, "t");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

void scratch_end(void)
{
	if (nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS))
		perror(root);
}

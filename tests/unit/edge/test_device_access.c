/* SPDX-License-Identifier: Apache-2.0 */
/* Which device nodes gaccd says that it may use: a folder stands for /dev. What the unit's rules for devices refuse
 * (EPERM) needs a cgroup, and is not tried. */
#include "edge/device_access.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dev[SCRATCH_PATH];
static struct device_access told;

static void setup(void)
{
	scratch_make(dev);
}

static const char *path_of(const char *name)
{
	static char path[SCRATCH_PATH + 32];
	snprintf(path, sizeof(path), "%s/%s", dev, name);
	return path;
}

static void make(const char *name, mode_t mode)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
}

/* What is said of a node; NULL: it is not listed. */
static const char *error_of(const char *name)
{
	for (uint32_t i = 0; i < told.n; i++)
		if (!strcmp(told.node[i].path, path_of(name)))
			return told.node[i].error;
	return NULL;
}

START_TEST(no_gpu_no_nodes)
{
	make("null", 0666);
	make("nvidia-modeset", 0666);
	make("nvidia", 0666);
	device_access_read(dev, &told);
	ck_assert_uint_eq(told.n, 0);
}
END_TEST

START_TEST(nodes_are_listed)
{
	make("nvidiactl", 0666);
	make("nvidia-uvm", 0666);
	make("nvidia0", 0666);
	make("nvidia31", 0666);
	ck_assert_int_eq(symlink("nvidia7", path_of("nvidia7")), 0);
	device_access_read(dev, &told);
	ck_assert_uint_eq(told.n, 5);
	ck_assert_str_eq(error_of("nvidiactl"), "");
	ck_assert_str_eq(error_of("nvidia-uvm"), "");
	ck_assert_str_eq(error_of("nvidia0"), "");
	ck_assert_str_eq(error_of("nvidia31"), "");
	ck_assert_str_eq(error_of("nvidia7"), "ELOOP");
}
END_TEST

/* As nobody, whom modes concern also when root runs this, and who may not walk to the folder. */
static int modes_count(void)
{
	if (chdir(dev))
		return 3;
	snprintf(dev, sizeof(dev), ".");
	if (!geteuid() && setresuid(65534, 65534, 65534))
		return 2;
	device_access_read(dev, &told);
	return strcmp(error_of("nvidia0"), "EACCES") || strcmp(error_of("nvidia1"), "");
}

START_TEST(modes_are_asked)
{
	int status;
	make("nvidia0", 0444);
	make("nvidia1", 0666);
	ck_assert_int_eq(chmod(dev, 0755), 0);
	pid_t child = fork();
	if (!child)
		_exit(modes_count());
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(memlock_is_that_of_the_process)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = 4096;
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	device_access_read(dev, &told);
	ck_assert_uint_eq(told.memlock, 4096);
	limit = (struct rlimit){ RLIM_INFINITY, RLIM_INFINITY };
	if (setrlimit(RLIMIT_MEMLOCK, &limit))
		return; /* needs a right that only root has */
	device_access_read(dev, &told);
	ck_assert_uint_eq(told.memlock, UINT64_MAX);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("device_access");
	TCase *t = tcase_create("device_access");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, no_gpu_no_nodes);
	tcase_add_test(t, nodes_are_listed);
	tcase_add_test(t, modes_are_asked);
	tcase_add_test(t, memlock_is_that_of_the_process);
	suite_add_tcase(s, t);
	return suite_run(s);
}

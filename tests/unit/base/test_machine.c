/* SPDX-License-Identifier: Apache-2.0 */
#include "base/machine.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)

static char root[SCRATCH_PATH];

static void setup(void)
{
	ck_assert(scratch_make(root));
}

static void teardown(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r %s", root);
	ck_assert_int_eq(system(command), 0);
}

static void put(const char *path, const char *text)
{
	char full[256];
	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *c = full + strlen(root) + 1; (c = strchr(c, '/')); c++) {
		*c = '\0';
		mkdir(full, 0700);
		*c = '/';
	}
	FILE *f = fopen(full, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

/* 8 GiB, 6 of them available. */
static void put_machine(void)
{
	put("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    6291456 kB\n");
}

static void is(uint64_t total, uint64_t available)
{
	struct machine_memory m;
	ck_assert_int_eq(machine_memory_read(root, &m), ST_OK);
	ck_assert_uint_eq(m.total, total);
	ck_assert_uint_eq(m.available, available);
}

START_TEST(without_groups_it_is_the_machines)
{
	put_machine();
	is(8 * GIB, 6 * GIB);
	put("/proc/self/cgroup", "12:memory:/docker/1\n1:name=systemd:/\n");
	is(8 * GIB, 6 * GIB);
	put("/proc/self/cgroup", "0::/\n");
	is(8 * GIB, 6 * GIB);
	put("/sys/fs/cgroup/memory.max", "max\n");
	put("/sys/fs/cgroup/memory.current", "1\n");
	is(8 * GIB, 6 * GIB);
}
END_TEST

START_TEST(the_tightest_group_counts)
{
	put_machine();
	put("/proc/self/cgroup", "1:name=systemd:/x\n0::/system.slice/gaccd.service\n");
	put("/sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/system.slice/memory.current", "1073741824\n");
	is(4 * GIB, 3 * GIB);
	put("/sys/fs/cgroup/system.slice/gaccd.service/memory.max", "max\n");
	is(4 * GIB, 3 * GIB);
	put("/sys/fs/cgroup/system.slice/gaccd.service/memory.max", "2147483648\n");
	is(2 * GIB, 2 * GIB);				  /* nothing is said to be used */
	put("/sys/fs/cgroup/memory.max", "1073741824\n"); /* a container's root has one, too */
	put("/sys/fs/cgroup/memory.current", "2147483648\n");
	is(GIB, 0);
}
END_TEST

START_TEST(page_cache_that_can_be_dropped_is_available)
{
	put_machine();
	put("/proc/self/cgroup", "0::/a\n");
	put("/sys/fs/cgroup/a/memory.max", "4294967296\n");
	put("/sys/fs/cgroup/a/memory.current", "4294967296\n");
	put("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 3221225472\nactive_file 9\ninactive_file 1073741824\n");
	is(4 * GIB, GIB);
}
END_TEST

START_TEST(a_roomy_group_changes_nothing)
{
	put_machine();
	put("/proc/self/cgroup", "0::/a/b\n");
	put("/sys/fs/cgroup/a/memory.max", "17179869184\n");
	put("/sys/fs/cgroup/a/memory.current", "1\n");
	is(8 * GIB, 6 * GIB);
}
END_TEST

START_TEST(a_group_of_another_namespace_is_not_looked_for)
{
	put_machine();
	put("/proc/self/cgroup", "0::/../x\n");
	put("/sys/fs/cgroup/memory.max", "1\n");
	is(8 * GIB, 6 * GIB);
}
END_TEST

START_TEST(without_meminfo_nothing_is_known)
{
	struct machine_memory m = { 7, 7 };
	ck_assert_int_eq(machine_memory_read(root, &m), ST_IO_ERROR);
	ck_assert_uint_eq(m.total, 7);
	ck_assert_int_eq(machine_memory_read("", &m), ST_OK);
	ck_assert(m.total > m.available && m.available > 0);
}
END_TEST

static long resident_mb(void)
{
	long all, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%ld %ld", &all, &resident), 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

/* The last piece stays, so that the top of the heap has nothing to give. */
START_TEST(what_is_freed_goes_back)
{
	enum { PIECES = 1024, PIECE = 64 << 10 };
	static char *piece[PIECES];
	for (int i = 0; i < PIECES; i++) {
		piece[i] = malloc(PIECE);
		ck_assert_ptr_nonnull(piece[i]);
		memset(piece[i], 1, PIECE);
	}
	for (int i = 0; i < PIECES - 1; i++)
		free(piece[i]);
	long before = resident_mb();
	/* no other allocator, as sanitizers have, is in its place */
	bool glibc = mallinfo2().fordblks >= (PIECES - 1) * PIECE;
	machine_memory_trim(128u << 20);
	ck_assert(!glibc || resident_mb() >= before - 8);
	machine_memory_trim(1u << 20);
	ck_assert(!glibc || resident_mb() <= before - 48);
	free(piece[PIECES - 1]);
}
END_TEST

START_TEST(mappings_are_what_the_kernel_says)
{
	ck_assert_uint_eq(machine_max_mappings(root), UINT64_MAX);
	put("/proc/sys/vm/max_map_count", "65530\n");
	ck_assert_uint_eq(machine_max_mappings(root), 65530);
	ck_assert_uint_ne(machine_max_mappings(""), UINT64_MAX);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("machine");
	TCase *c = tcase_create("machine");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, mappings_are_what_the_kernel_says);
	tcase_add_test(c, without_groups_it_is_the_machines);
	tcase_add_test(c, the_tightest_group_counts);
	tcase_add_test(c, page_cache_that_can_be_dropped_is_available);
	tcase_add_test(c, a_roomy_group_changes_nothing);
	tcase_add_test(c, a_group_of_another_namespace_is_not_looked_for);
	tcase_add_test(c, without_meminfo_nothing_is_known);
	tcase_add_test(c, what_is_freed_goes_back);
	return suite_run(s);
}

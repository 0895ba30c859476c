/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's file by its UUID, from lists of the driver's format below a folder of the test. */
#include "proto/cuda_driver.h"
#include "cuda/device_file.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/gacc-device-file.XXXXXX", why[256];
static const struct cu_uuid second = { "\x12\x34\x56\x78\x9a\xbc\xde\xf0\x0f\xed\xcb\xa9\x87\x65\x43\x21" };
static const char *const second_text = "GPU-12345678-9abc-def0-0fed-cba987654321";

static const char *in_root(const char *name)
{
	static char path[2][256];
	static int turn;
	char *out = path[turn++ % 2];
	snprintf(out, sizeof(path[0]), "%s/%s", root, name);
	return out;
}

static void make_file(const char *name, const char *text)
{
	FILE *f = fopen(in_root(name), "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static void gpu(const char *bus, const char *text)
{
	char name[64];
	snprintf(name, sizeof(name), "proc/gpus/%s", bus);
	mkdir(in_root(name), 0700);
	strcat(name, "/information");
	make_file(name, text);
}

static void set_up(void)
{
	ck_assert_ptr_nonnull(mkdtemp(root));
	mkdir(in_root("proc"), 0700);
	mkdir(in_root("proc/gpus"), 0700);
	mkdir(in_root("dev"), 0700);
	make_file("dev/nvidia0", "0");
	make_file("dev/nvidia3", "3");
	gpu("0000:19:00.0", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 402\n"
			    "GPU UUID: \t GPU-00000000-9abc-def0-0fed-cba987654321\nVideo BIOS: \t 96.00.74.00.01\n"
			    "Bus Type: \t PCIe\nDevice Minor: \t 0\nGPU Excluded:\t No\n");
	gpu("0000:3b:00.0", "Model: \t\t NVIDIA H100 80GB HBM3\n"
			    "GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba987654321\nDevice Minor: \t 3\n");
}

static void tear_down(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r %s", root);
	ck_assert_int_eq(system(command), 0);
}

static enum status open_second(int *out)
{
	*why = 0;
	return device_file_open(in_root("proc"), in_root("dev"), &second, out, why, sizeof(why));
}

START_TEST(the_text_of_a_uuid)
{
	char text[CUDA_UUID_TEXT];
	cuda_uuid_text(&second, text);
	ck_assert_str_eq(text, second_text);
}
END_TEST

START_TEST(the_file_with_the_number_of_that_gpu_is_opened)
{
	int fd;
	char digit;
	ck_assert_int_eq(open_second(&fd), ST_OK);
	ck_assert_int_eq(read(fd, &digit, 1), 1);
	ck_assert_int_eq(digit, '3');
	ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
	close(fd);
}
END_TEST

/* What is no list of one GPU: none of them may be taken for the GPU's. */
static const char *const lists[] = {
	"",
	"GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba987654321\n",
	"GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba987654321\nDevice Minor: \t none\n",
	"GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba987654321\nDevice Minor: \t -1\n",
	"GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba9876543210\nDevice Minor: \t 3\n",
	"GPU UUID: \t GPU-12345678-9abc-def0-0fed\nDevice Minor: \t 3\n",
	"Device Minor: \t 3\n",
	"Old GPU UUID: \t GPU-12345678-9abc-def0-0fed-cba987654321\nDevice Minor: \t 3\n",
};

START_TEST(a_gpu_that_is_not_listed_is_refused)
{
	int fd = 0;
	gpu("0000:3b:00.0", lists[_i]);
	ck_assert_int_eq(open_second(&fd), ST_INVALID_CONFIG);
	ck_assert_int_eq(fd, -1);
	ck_assert_msg(strstr(why, second_text) && strstr(why, "MIG"), "%s", why);
}
END_TEST

START_TEST(no_list_is_told_from_a_gpu_that_is_not_listed)
{
	int fd = 0;
	ck_assert_int_eq(device_file_open(in_root("none"), in_root("dev"), &second, &fd, why, sizeof(why)),
			 ST_IO_ERROR);
	ck_assert_int_eq(fd, -1);
	ck_assert_msg(strstr(why, "none/gpus: No such file"), "%s", why);
}
END_TEST

START_TEST(a_file_that_is_not_there_is_named)
{
	int fd = 0;
	unlink(in_root("dev/nvidia3"));
	ck_assert_int_eq(open_second(&fd), ST_IO_ERROR);
	ck_assert_int_eq(fd, -1);
	ck_assert_msg(strstr(why, "dev/nvidia3: No such file"), "%s", why);
}
END_TEST

/* A FIFO in the place of a list does not make the engine wait. */
START_TEST(what_is_no_file_is_no_list)
{
	int fd = 0;
	unlink(in_root("proc/gpus/0000:3b:00.0/information"));
	ck_assert_int_eq(mkfifo(in_root("proc/gpus/0000:3b:00.0/information"), 0600), 0);
	ck_assert_int_eq(open_second(&fd), ST_INVALID_CONFIG);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_device_file");
	TCase *t = tcase_create("device_file");
	tcase_add_checked_fixture(t, set_up, tear_down);
	tcase_add_test(t, the_text_of_a_uuid);
	tcase_add_test(t, the_file_with_the_number_of_that_gpu_is_opened);
	tcase_add_loop_test(t, a_gpu_that_is_not_listed_is_refused, 0, sizeof(lists) / sizeof(*lists));
	tcase_add_test(t, no_list_is_told_from_a_gpu_that_is_not_listed);
	tcase_add_test(t, a_file_that_is_not_there_is_named);
	tcase_add_test(t, what_is_no_file_is_no_list);
	suite_add_tcase(s, t);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of checkpoints: their names and modes, and what others put under these names. */
#include "checkpoint_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(what_a_killed_writer_left_is_swept)
{
	struct checkpoint_file f[CHECKPOINT_PARTS];
	uint8_t other[16] = { 1 };
	char foreign[CHECKPOINT_MAX_PATH];
	uint64_t last = 0;
	struct stat s;
	seal(2, false);
	write_parts(partial, 2, f);
	checkpoint_partial_path(foreign, dir, other, 9);
	write_parts(foreign, 1, f);
	ck_assert_int_eq(checkpoint_sweep(dir, uuid, &last, why, sizeof(why)), ST_OK);
	ck_assert_uint_eq(last, 3);
	ck_assert(stat(partial, &s) != 0 && stat(foreign, &s) == 0 && stat(final, &s) == 0);
}
END_TEST

static void *delete_as_rm_does(void *arg)
{
	char path[CHECKPOINT_MAX_PATH + 64];
	for (int i = 0; i < CHECKPOINT_PARTS; i++) {
		snprintf(path, sizeof(path), "%s/%s", final, checkpoint_part_name((enum checkpoint_part)i));
		unlink(path);
	}
	rmdir(final);
	if (arg)
		rmdir(dir);
	return arg;
}

/* Both are at it at once, so each round ends in another moment. At 1 the user deletes the folder, too. */
START_TEST(a_sweep_and_a_user_who_deletes_get_on)
{
	char path[CHECKPOINT_MAX_PATH + 64];
	pthread_t user;
	struct stat s;
	for (int round = 0; round < 400; round++) {
		uint64_t last = 0;
		ck_assert(!mkdir(dir, 0755) || errno == EEXIST);
		ck_assert_int_eq(mkdir(final, 0755), 0);
		for (int i = 0; i < CHECKPOINT_PARTS; i++) {
			snprintf(path, sizeof(path), "%s/%s", final, checkpoint_part_name((enum checkpoint_part)i));
			fclose(fopen(path, "w"));
		}
		ck_assert_int_eq(pthread_create(&user, NULL, delete_as_rm_does, _i ? dir : NULL), 0);
		enum status st = checkpoint_sweep(dir, uuid, &last, why, sizeof(why));
		pthread_join(user, NULL);
		ck_assert_msg(!st, "round %d: %s", round, why);
		ck_assert(stat(final, &s) != 0);
	}
}
END_TEST

START_TEST(names_are_of_one_job)
{
	static const uint8_t other[16] = { 0xab, 0xcd, 0, 1 };
	char name[CHECKPOINT_MAX_PATH], long_dir[CHECKPOINT_MAX_PATH + 8];
	ck_assert_str_eq(final + strlen(dir), "/step-12-3-abcd0000");
	checkpoint_final_path(name, dir, other, 12, 3);
	ck_assert_str_eq(name + strlen(dir), "/step-12-3-abcd0001");
	memset(long_dir, 'd', sizeof(long_dir));
	for (size_t n = CHECKPOINT_MAX_PATH - 40; n < sizeof(long_dir); n++) { /* they end where there is no room */
		long_dir[n] = '\0';
		checkpoint_final_path(name, long_dir, uuid, 12, 3);
		checkpoint_partial_path(name, long_dir, uuid, 3);
		ck_assert_uint_lt(strlen(name), sizeof(name));
		long_dir[n] = 'd';
	}
}
END_TEST

START_TEST(ids_that_nobody_can_follow_are_no_ids)
{
	char path[CHECKPOINT_MAX_PATH + 64];
	uint64_t last = 5;
	snprintf(path, sizeof(path), "%s/step-1-18446744073709551615", dir);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_assert_int_eq(checkpoint_sweep(dir, uuid, &last, why, sizeof(why)), ST_OK);
	ck_assert_uint_eq(last, 5);
}
END_TEST

static mode_t mode_of(const char *path)
{
	struct stat s;
	return stat(path, &s) == 0 ? s.st_mode & 07777 : 0;
}

START_TEST(modes_are_as_promised_whatever_the_umask)
{
	char at[CHECKPOINT_MAX_PATH], deep[CHECKPOINT_MAX_PATH + 16], file[CHECKPOINT_MAX_PATH + 64];
	struct checkpoint_file f[CHECKPOINT_PARTS];
	snprintf(at, sizeof(at), "%.200s/way", dir);
	snprintf(deep, sizeof(deep), "%s/.deep", at);
	umask(077);
	ck_assert_int_eq(chmod(dir, _i ? 0755 : 0711), 0); /* who may list it may list what is made in it */
	write_parts(deep, 1, f);
	ck_assert_uint_eq(mode_of(at), _i ? 0755 : 0711);
	ck_assert_uint_eq(mode_of(deep), CHECKPOINT_DIR_MODE);
	snprintf(file, sizeof(file), "%s/model.safetensors", deep);
	ck_assert_uint_eq(mode_of(file), CHECKPOINT_FILE_MODE);
}
END_TEST

/* Whoever can write in the directory on the way may have put other files under our names. */
START_TEST(what_others_put_under_our_names_is_left_alone)
{
	char theirs[CHECKPOINT_MAX_PATH + 16], name[CHECKPOINT_MAX_PATH + 64];
	struct manifest m = example();
	struct stat s;
	uint8_t sum[32];
	int fd;
	m.inside_window = false;
	write_parts(partial, 2, m.file);
	snprintf(theirs, sizeof(theirs), "%s/theirs", dir);
	FILE *f = fopen(theirs, "w");
	fputs("precious", f);
	fclose(f);
	snprintf(name, sizeof(name), "%s/manifest.json.partial", partial);
	ck_assert_int_eq(link(theirs, name), 0);
	ck_assert_int_eq(checkpoint_seal(partial, &made, final, &m, 65534, 65534, sum, why, sizeof(why)), ST_IO_ERROR);
	ck_assert(stat(theirs, &s) == 0 && s.st_size == 8);
	unlink(name);
	snprintf(name, sizeof(name), "%s/window.safetensors", partial); /* the manifest does not name it */
	ck_assert_int_eq(link(theirs, name), 0);
	ck_assert_msg(!checkpoint_seal(partial, &made, final, &m, 65534, 65534, sum, why, sizeof(why)), "%s", why);
	ck_assert(stat(theirs, &s) == 0 && s.st_uid == geteuid());
	if (geteuid() != 0)
		return;
	ck_assert(stat(final, &s) == 0 && s.st_uid == 65534);
	snprintf(name, sizeof(name), "%s/model.safetensors", final);
	ck_assert(stat(name, &s) == 0 && s.st_uid == 65534);
	ck_assert_int_eq(checkpoint_open_dir(final, false, &fd, why, sizeof(why)), ST_OK);
	int model;
	ck_assert_int_eq(checkpoint_open_file(fd, "model.safetensors", 65534, &model, why, sizeof(why)), ST_OK);
	close(model);
	ck_assert_int_eq(checkpoint_open_file(fd, "window.safetensors", 65534, &model, why, sizeof(why)), ST_MALFORMED);
	ck_assert_msg(strstr(why, "window.safetensors: its owner is not"), "%s", why);
	close(fd);
}
END_TEST

/* `secret`, somebody's directory with files in it, as it was. */
static void check_secret(const char *at)
{
	char name[CHECKPOINT_MAX_PATH + 64];
	struct stat s;
	ck_assert(stat(at, &s) == 0 && s.st_uid == geteuid() && (s.st_mode & 07777) == 0700);
	snprintf(name, sizeof(name), "%s/manifest.json", at);
	ck_assert(stat(name, &s) != 0);
	snprintf(name, sizeof(name), "%s/model.safetensors", at);
	ck_assert(stat(name, &s) == 0 && s.st_uid == geteuid() && s.st_size == 3);
}

static void make_secret(const char *at)
{
	char name[CHECKPOINT_MAX_PATH + 64];
	ck_assert_int_eq(mkdir(at, 0700), 0);
	snprintf(name, sizeof(name), "%s/model.safetensors", at);
	FILE *f = fopen(name, "w");
	fputs("key", f);
	fclose(f);
}

/* The submitter, whose directory it is in, gives another directory of gaccd's user the name of the one being written.
 */
START_TEST(another_directory_is_not_sealed)
{
	char away[SCRATCH_PATH + 16], secret[SCRATCH_PATH + 16];
	struct manifest m = example();
	struct stat s;
	uint8_t sum[32];
	m.inside_window = false;
	snprintf(away, sizeof(away), "%s/away", dir);
	snprintf(secret, sizeof(secret), "%s/secret", dir);
	make_secret(secret);
	write_parts(partial, 1, m.file);
	ck_assert(rename(partial, away) == 0 && rename(secret, partial) == 0);
	ck_assert_int_eq(checkpoint_seal(partial, &made, final, &m, 65534, 65534, sum, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "not the directory that was written"), "%s", why);
	check_secret(partial);
	ck_assert(stat(final, &s) != 0);
	ck_assert(rename(partial, secret) == 0 && rename(away, partial) == 0);
	ck_assert_msg(!checkpoint_seal(partial, &made, final, &m, 65534, 65534, sum, why, sizeof(why)), "%s", why);
	ck_assert(stat(final, &s) == 0 && s.st_uid == (geteuid() ? geteuid() : 65534));
}
END_TEST

START_TEST(a_directory_that_is_there_is_not_written_into)
{
	int fd;
	make_secret(partial);
	ck_assert_int_eq(checkpoint_make_dir(partial, &made, &fd, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "File exists"), "%s", why);
	check_secret(partial);
}
END_TEST

START_TEST(removing_leaves_what_is_not_ours)
{
	char path[CHECKPOINT_MAX_PATH + 16];
	struct manifest *m;
	uint32_t owner;
	struct stat s;
	seal(2, false);
	snprintf(path, sizeof(path), "%s/notes", final);
	fclose(fopen(path, "w"));
	ck_assert_int_eq(checkpoint_remove(final, why, sizeof(why)), ST_OK);
	ck_assert(stat(path, &s) == 0);
	ck_assert_int_eq(checkpoint_load(final, &m, &owner, why, sizeof(why)), ST_INVALID_ARGUMENT);
	unlink(path);
	ck_assert_int_eq(checkpoint_remove(final, why, sizeof(why)), ST_OK);
	ck_assert(stat(final, &s) != 0);
	ck_assert_int_eq(checkpoint_remove(final, why, sizeof(why)), ST_OK);
}
END_TEST

START_TEST(links_on_the_way_are_refused)
{
	char link[CHECKPOINT_MAX_PATH + 16], resolved[CHECKPOINT_MAX_PATH], model[CHECKPOINT_MAX_PATH + 32];
	struct manifest *m;
	uint32_t owner;
	int fd;
	seal(2, false);
	snprintf(link, sizeof(link), "%s/link", dir);
	ck_assert_int_eq(symlink(final, link), 0);
	ck_assert_int_eq(checkpoint_load(link, &m, &owner, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_msg(strstr(why, "symbolic link"), "%s", why);
	ck_assert_int_eq(checkpoint_make_dir(link, &made, &fd, why, sizeof(why)), ST_IO_ERROR);
	snprintf(model, sizeof(model), "%s/link/below", dir);
	ck_assert_int_eq(checkpoint_make_dir(model, &made, &fd, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "there is a symbolic link on the way"), "%s", why);
	ck_assert_int_eq(checkpoint_resolve(link, resolved, why, sizeof(why)), ST_OK);
	ck_assert_str_eq(resolved, final);
	snprintf(model, sizeof(model), "%s/model.safetensors", final);
	unlink(model);
	ck_assert_int_eq(symlink("/etc/passwd", model), 0);
	ck_assert_int_eq(checkpoint_load(final, &m, &owner, why, sizeof(why)), ST_INVALID_ARGUMENT);
}
END_TEST

START_TEST(paths_are_resolved)
{
	char out[CHECKPOINT_MAX_PATH], in[CHECKPOINT_MAX_PATH + 32], expected[CHECKPOINT_MAX_PATH + 32];
	snprintf(in, sizeof(in), "%s/../%s//new//./deep/.", dir, strrchr(dir, '/') + 1);
	snprintf(expected, sizeof(expected), "%s/new/deep", dir);
	ck_assert_int_eq(checkpoint_resolve(in, out, why, sizeof(why)), ST_OK);
	ck_assert_str_eq(out, expected);
	ck_assert_int_eq(checkpoint_resolve("relative", out, why, sizeof(why)), ST_INVALID_ARGUMENT);
	snprintf(in, sizeof(in), "%s/new/../../etc", dir);
	ck_assert_int_eq(checkpoint_resolve(in, out, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert(checkpoint_beneath("/a/b", "/a") && checkpoint_beneath("/a", "/a") && checkpoint_beneath("/a", "/"));
	ck_assert(!checkpoint_beneath("/ab", "/a") && !checkpoint_beneath("/", "/a"));
}
END_TEST

/* The names that we put behind a directory must have room, also where a short link leads to it. */
START_TEST(a_link_to_a_long_path_is_refused)
{
	char target[CHECKPOINT_MAX_PATH], link[CHECKPOINT_MAX_PATH], out[CHECKPOINT_MAX_PATH];
	int at = snprintf(target, sizeof(target), "%s", dir);
	while (at < CHECKPOINT_MAX_PATH - 40) {
		int name = CHECKPOINT_MAX_PATH - 20 - at > 200 ? 200 : CHECKPOINT_MAX_PATH - 20 - at;
		at += snprintf(target + at, sizeof(target) - (size_t)at, "/%0*d", name, 0);
		ck_assert_int_eq(mkdir(target, 0700), 0);
	}
	snprintf(link, sizeof(link), "%.3000s/link", dir);
	ck_assert_int_eq(symlink(target, link), 0);
	ck_assert_int_eq(checkpoint_resolve(link, out, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "too long"), "%s", why);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("checkpoint directories");
	TCase *c = tcase_create("checkpoint directories");
	tcase_add_checked_fixture(c, checkpoint_setup, checkpoint_teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, what_a_killed_writer_left_is_swept);
	tcase_add_test(c, ids_that_nobody_can_follow_are_no_ids);
	tcase_add_loop_test(c, a_sweep_and_a_user_who_deletes_get_on, 0, 2);
	tcase_add_test(c, names_are_of_one_job);
	tcase_add_loop_test(c, modes_are_as_promised_whatever_the_umask, 0, 2);
	tcase_add_test(c, what_others_put_under_our_names_is_left_alone);
	tcase_add_test(c, another_directory_is_not_sealed);
	tcase_add_test(c, a_directory_that_is_there_is_not_written_into);
	tcase_add_test(c, removing_leaves_what_is_not_ours);
	tcase_add_test(c, links_on_the_way_are_refused);
	tcase_add_test(c, paths_are_resolved);
	tcase_add_test(c, a_link_to_a_long_path_is_refused);
	return suite_run(s);
}

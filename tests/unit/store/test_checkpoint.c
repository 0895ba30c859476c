/* SPDX-License-Identifier: Apache-2.0 */
#include "store/checkpoint.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
static const uint8_t uuid[16] = { 0xab, 0xcd };
static struct checkpoint_dir made; /* by write_parts */

static void setup(void)
{
	ck_assert(scratch_make(dir));
	checkpoint_partial_path(partial, dir, uuid, 3);
	checkpoint_final_path(final, dir, uuid, 12, 3);
	why[0] = '\0';
}

static void teardown(void)
{
	char command[96];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

/* n bytes into each of the parts; the manifest's files. */
static void write_parts(const char *path, int n_parts, struct checkpoint_file *out)
{
	int fd;
	ck_assert_int_eq(checkpoint_make_dir(path, &made, &fd, why, sizeof(why)), ST_OK);
	for (int i = 0; i < n_parts; i++) {
		struct checkpoint_writer *w;
		ck_assert_int_eq(checkpoint_create(fd, (enum checkpoint_part)i, &w, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_reserve(w, 5, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_write(w, "ab", 2, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_write(w, "c", 1, why, sizeof(why)), ST_OK);
		ck_assert_int_eq(checkpoint_finish(w, &out[i], why, sizeof(why)), ST_OK);
	}
	close(fd);
}

static struct manifest example(void)
{
	struct manifest m = { .id = 3,
			      .job = 7,
			      .name = "n \"x\"",
			      .uid = 1000,
			      .created_unix_ns = 5,
			      .window = 20,
			      .applied_step = 12,
			      .inside_window = true,
			      .ranks = 4,
			      .micro_size = 2,
			      .optimizer = "adamw",
			      .accumulate_dtype = "f32",
			      .loss_scale = 1024,
			      .params_digest = UINT64_MAX,
			      .count = 3,
			      .sum_weight = 0.1,
			      .sum_loss = NAN,
			      .last_rank = 1,
			      .lr = 0.3,
			      .lr_rank = 2,
			      .spec = "spec",
			      .n_spec = 4,
			      .n_last = 4 };
	memcpy(m.uuid, uuid, 16);
	m.last[0] = (struct manifest_value){ .name = "window", .whole = 19 };
	m.last[1] = (struct manifest_value){ .name = "digest", .whole = UINT64_C(1) << 63 };
	m.last[2] = (struct manifest_value){ .name = "lr", .is_real = true, .real = 1.0 / 3 };
	m.last[3] = (struct manifest_value){ .name = "norm", .is_real = true, .real = -INFINITY };
	return m;
}

static void seal(int n_parts, bool inside)
{
	struct manifest m = example();
	uint8_t sum[32];
	m.inside_window = inside;
	write_parts(partial, n_parts, m.file);
	ck_assert_msg(!checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
}

START_TEST(a_checkpoint_is_read_as_it_was_sealed)
{
	struct manifest *r, m = example();
	uint32_t owner;
	seal(4, true);
	ck_assert_msg(!checkpoint_load(final, &r, &owner, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(owner, geteuid());
	ck_assert_str_eq(r->name, m.name);
	ck_assert_mem_eq(r->uuid, uuid, 16);
	ck_assert_mem_eq(r->spec, "spec", 4);
	ck_assert_uint_eq(r->n_spec, 4);
	ck_assert(r->window == 20 && r->applied_step == 12 && r->inside_window && r->ranks == 4 && r->micro_size == 2);
	ck_assert(r->params_digest == UINT64_MAX && r->count == 3 && r->sum_weight == 0.1 && isnan(r->sum_loss));
	ck_assert(r->lr == 0.3 && r->lr_rank == 2);
	ck_assert_uint_eq(r->n_last, 4);
	ck_assert(!r->last[1].is_real && r->last[1].whole == UINT64_C(1) << 63);
	ck_assert(r->last[2].is_real && r->last[2].real == 1.0 / 3 && r->last[3].real == -INFINITY);
	ck_assert_uint_eq(r->file[CHECKPOINT_WINDOW].bytes, 3);
	char hex[SHA256_HEX];
	sha256_to_hex(r->file[CHECKPOINT_MODEL].sha256, hex);
	/* FIPS 180-4: "abc" */
	ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	manifest_free(r);
	struct stat s;
	ck_assert(stat(final, &s) == 0 && (s.st_mode & 07777) == CHECKPOINT_DIR_MODE);
	ck_assert(stat(partial, &s) != 0);
}
END_TEST

START_TEST(sealing_overwrites_nothing)
{
	seal(2, false);
	struct manifest m = example();
	uint8_t sum[32];
	m.inside_window = false;
	write_parts(partial, 2, m.file);
	ck_assert_int_eq(checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof(why)),
			 ST_IO_ERROR);
	ck_assert_msg(strstr(why, "File exists"), "%s", why);
}
END_TEST

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
	ck_assert_int_eq(checkpoint_open_file(fd, CHECKPOINT_MODEL, 65534, &model, why, sizeof(why)), ST_OK);
	close(model);
	ck_assert_int_eq(checkpoint_open_file(fd, CHECKPOINT_WINDOW, 65534, &model, why, sizeof(why)), ST_MALFORMED);
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

START_TEST(only_the_files_of_the_manifest_are_sealed)
{
	char name[CHECKPOINT_MAX_PATH + 64];
	struct manifest m = example();
	struct stat s;
	uint8_t sum[32];
	m.inside_window = false;
	write_parts(partial, 2, m.file);
	m.file[1].bytes++;
	ck_assert_int_eq(checkpoint_seal(partial, &made, final, &m, 65534, 65534, sum, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "optimizer.safetensors: its size"), "%s", why);
	snprintf(name, sizeof(name), "%s/manifest.json", partial);
	ck_assert(stat(name, &s) != 0 && stat(partial, &s) == 0 && s.st_uid == geteuid());
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

static void replace(const char *from, const char *to)
{
	char path[CHECKPOINT_MAX_PATH + 32], text[8192], out[8192];
	snprintf(path, sizeof(path), "%s/manifest.json", final);
	FILE *f = fopen(path, "r");
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	char *at = strstr(text, from);
	ck_assert_ptr_nonnull(at);
	snprintf(out, sizeof(out), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	f = fopen(path, "w");
	fputs(out, f);
	fclose(f);
}

START_TEST(wrong_manifests_are_refused)
{
	static const struct {
		const char *from, *to, *says;
		enum status status;
	} changes[] = {
		{ "\"version\": 1", "\"version\": 3", "version 3", ST_VERSION_SKEW },
		{ "\"version\": 1", "\"version\": 0", "version 0", ST_VERSION_SKEW },
		{ "\"updates\": []", "\"updates\": {}", "\"updates\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [{\"window\": 3}]", "\"updates\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [{\"window\": -3, \"values\": {}}]", "\"updates\"", ST_MALFORMED },
		{ "gacc checkpoint", "other", "not the manifest", ST_MALFORMED },
		{ "\"window\": 20", "\"window\": -1", "\"window\"", ST_MALFORMED },
		{ "\"window\": 20", "\"window\": 20, \"window\": 21", "duplicate", ST_MALFORMED },
		{ "\"ranks\": 4", "\"ranks\": 4294967296", "\"ranks\"", ST_MALFORMED },
		{ "abcd0000", "ABCD0000", "\"uuid\"", ST_MALFORMED },
		{ "c3BlYw==", "c3BlYw=", "\"spec\"", ST_MALFORMED },
		{ "c3BlYw==", "c3Bl!w==", "\"spec\"", ST_MALFORMED },
		{ "model.safetensors", "../etc/passwd", "\"files\"", ST_MALFORMED },
		{ "optimizer.safetensors", "model.safetensors", "\"files\"", ST_MALFORMED },
		{ "ba7816bf", "Ba7816bf", "\"files\"", ST_MALFORMED },
		{ "\"bytes\": 3", "\"bytes\": 4", "model.safetensors: its size", ST_MALFORMED },
		{ "\"inside_window\": false", "\"inside_window\": true", "\"files\"", ST_MALFORMED },
		{ "}", "", "manifest.json:", ST_MALFORMED },
	};
	struct manifest *m;
	uint32_t owner;
	seal(2, false);
	replace(changes[_i].from, changes[_i].to);
	ck_assert_int_eq(checkpoint_load(final, &m, &owner, why, sizeof(why)), changes[_i].status);
	ck_assert_msg(strstr(why, changes[_i].says), "%s", why);
}
END_TEST

START_TEST(a_full_disk_is_an_error)
{
	struct checkpoint_writer *w;
	int fd;
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(checkpoint_make_dir(partial, &made, &fd, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(checkpoint_create(fd, CHECKPOINT_MODEL, &w, why, sizeof(why)), ST_OK);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 4, 4 });
	ck_assert_int_eq(checkpoint_write(w, "abcdefgh", 8, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(!strcmp(why, "writing model.safetensors: File too large"), "%s", why);
	checkpoint_abandon(w);
	close(fd);
}
END_TEST

START_TEST(what_may_not_be_read_is_said_with_who)
{
	static const char *const name[] = { "model.safetensors", "manifest.json" };
	struct manifest *m;
	uint32_t owner;
	char path[CHECKPOINT_MAX_PATH + 32], uid[32];
	bool root = geteuid() == 0; /* whom no mode keeps from reading */
	seal(4, true);
	ck_assert_int_eq(chmod(dir, 0711), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", final, name[i]);
		ck_assert_int_eq(chmod(path, 0), 0);
		if (root)
			ck_assert_int_eq(seteuid(65534), 0);
		snprintf(uid, sizeof(uid), "uid %u, as which gaccd", (unsigned)geteuid());
		enum status st = checkpoint_load(final, &m, &owner, why, sizeof(why));
		if (root)
			ck_assert_int_eq(seteuid(0), 0);
		ck_assert_int_eq(st, ST_PERMISSION_DENIED);
		ck_assert_msg(strstr(why, final) && strstr(why, uid) && (root || strstr(why, name[i])), "%s", why);
	}
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("checkpoint");
	TCase *c = tcase_create("checkpoint");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_checkpoint_is_read_as_it_was_sealed);
	tcase_add_test(c, sealing_overwrites_nothing);
	tcase_add_test(c, what_a_killed_writer_left_is_swept);
	tcase_add_test(c, ids_that_nobody_can_follow_are_no_ids);
	tcase_add_test(c, names_are_of_one_job);
	tcase_add_loop_test(c, modes_are_as_promised_whatever_the_umask, 0, 2);
	tcase_add_test(c, what_others_put_under_our_names_is_left_alone);
	tcase_add_test(c, another_directory_is_not_sealed);
	tcase_add_test(c, a_directory_that_is_there_is_not_written_into);
	tcase_add_test(c, only_the_files_of_the_manifest_are_sealed);
	tcase_add_test(c, removing_leaves_what_is_not_ours);
	tcase_add_test(c, what_may_not_be_read_is_said_with_who);
	tcase_add_test(c, links_on_the_way_are_refused);
	tcase_add_test(c, paths_are_resolved);
	tcase_add_test(c, a_link_to_a_long_path_is_refused);
	tcase_add_loop_test(c, wrong_manifests_are_refused, 0, 18);
	tcase_add_test(c, a_full_disk_is_an_error);
	return suite_run(s);
}

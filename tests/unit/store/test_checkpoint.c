/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a checkpoint: sealed, read again, and refused when it is damaged. */
#include "checkpoint_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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
	ck_assert(r->params_digest == UINT64_MAX && r->carry.count == 3 && r->carry.sum_weight == 0.1 &&
		  isnan(r->carry.sum_loss));
	ck_assert(r->carry.lr == 0.3 && r->carry.lr_rank == 2);
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
		{ "\"version\": 1", "\"version\": 6", "version 6", ST_VERSION_SKEW },
		{ "\"version\": 1", "\"version\": 0", "version 0", ST_VERSION_SKEW },
		{ "\"updates\": []", "\"updates\": {}", "\"updates\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [{\"window\": 3}]", "\"updates\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [{\"window\": -3, \"values\": {}}]", "\"updates\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [], \"shares\": 1", "\"shares\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [], \"shares\": 17", "\"shares\"", ST_MALFORMED },
		{ "\"updates\": []", "\"updates\": [], \"shares\": 2", "\"files\"", ST_MALFORMED },
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
	tcase_add_checked_fixture(c, checkpoint_setup, checkpoint_teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_checkpoint_is_read_as_it_was_sealed);
	tcase_add_test(c, sealing_overwrites_nothing);
	tcase_add_test(c, only_the_files_of_the_manifest_are_sealed);
	tcase_add_test(c, what_may_not_be_read_is_said_with_who);
	tcase_add_loop_test(c, wrong_manifests_are_refused, 0, 21);
	tcase_add_test(c, a_full_disk_is_an_error);
	return suite_run(s);
}

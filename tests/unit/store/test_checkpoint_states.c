/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states in a checkpoint: what comes back, and what is refused. */
#include "checkpoint_rig.h"

#include "store/checkpoint_states.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct trainer_state given[] = { { 0, 5, "zero\n" }, { 3, 1, "" } }; /* of 4 ranks; one byte of 0 */
static struct manifest *loaded;
static uint32_t owner;

static void save(const struct trainer_state *state, uint32_t n)
{
	struct manifest m = example();
	uint8_t sum[SHA256_BYTES];
	m.inside_window = false;
	write_parts(partial, 2, m.file);
	ck_assert_int_eq(checkpoint_write_states(partial, &made, state, n, &m.states, why, sizeof(why)), ST_OK);
	m.n_states = n;
	ck_assert_msg(!checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
}

static enum status load(struct trainer_states *out)
{
	enum status st = checkpoint_load(final, &loaded, &owner, why, sizeof(why));
	return st ? st : checkpoint_read_states(final, loaded, owner, out, why, sizeof(why));
}

static void setup(void)
{
	checkpoint_setup();
	loaded = NULL;
}

static void teardown(void)
{
	manifest_free(loaded);
	checkpoint_teardown();
}

START_TEST(they_come_back)
{
	struct trainer_states is;
	save(given, 2);
	ck_assert_msg(!load(&is), "%s", why);
	ck_assert_uint_eq(is.n, 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(is.state[i].rank, given[i].rank);
		ck_assert_uint_eq(is.state[i].n, given[i].n);
		ck_assert_mem_eq(is.state[i].data, given[i].data, given[i].n);
	}
	ck_assert_uint_eq(checkpoint_states_bytes(final), loaded->states.bytes);
	trainer_states_fini(&is);
	ck_assert_int_eq(checkpoint_remove(final, why, sizeof(why)), ST_OK);
	ck_assert_int_ne(access(final, F_OK), 0);
	ck_assert_uint_eq(checkpoint_states_bytes(final), 0);
}
END_TEST

START_TEST(a_checkpoint_without_has_none)
{
	struct trainer_states is;
	seal(2, false);
	ck_assert_int_eq(load(&is), ST_OK);
	ck_assert(!is.n && !is.file && !loaded->n_states);
}
END_TEST

/* What the file has then is in text. */
static char text[1 << 14];
static size_t edit(const char *folder, const char *file, const char *from, const char *to)
{
	char name[CHECKPOINT_MAX_PATH + 64];
	snprintf(name, sizeof(name), "%s/%s", folder, file);
	FILE *f = fopen(name, "r+");
	size_t n = fread(text, 1, sizeof(text), f);
	char *at = memmem(text, n, from, strlen(from));
	ck_assert_ptr_nonnull(at);
	ck_assert_uint_eq(strlen(from), strlen(to));
	memcpy(at, to, strlen(to));
	rewind(f);
	fwrite(text, 1, n, f);
	fclose(f);
	return n;
}

START_TEST(what_was_changed_is_refused)
{
	static const struct {
		const char *file, *from, *to, *says;
		enum status st;
	} rows[] = {
		{ "states.safetensors", "zero", "Zero", "SHA-256", ST_CHECKSUM },
		{ "manifest.json", "\"states\": 2", "\"states\": 1", "not as many states", ST_MALFORMED },
		{ "manifest.json", "\"states\": 2", "\"states\": 0", "\"states\"", ST_MALFORMED },
		{ "manifest.json", "\"states\": 2", "\"states\": 5", "\"states\"", ST_MALFORMED },
		{ "manifest.json", "\"states\": 2", "\"stated\": 2", "\"files\"", ST_MALFORMED },
		{ "manifest.json", "states.safetensors", "status.safetensors", "\"files\"", ST_MALFORMED },
		{ "manifest.json", "\"ranks\": 4", "\"ranks\": 3", "no rank's state", ST_MALFORMED },
	};
	struct trainer_states is;
	save(given, 2);
	edit(final, rows[_i].file, rows[_i].from, rows[_i].to);
	ck_assert_int_eq(load(&is), rows[_i].st);
	ck_assert_msg(strstr(why, rows[_i].says), "%s", why);
}
END_TEST

/* A checkpoint from elsewhere, whose sums are right. */
START_TEST(what_is_no_ranks_state_is_refused)
{
	static const struct {
		uint32_t rank;
		const char *from, *to;
	} rows[] = { { 10, "rank.10", "rank.01" },
		     { 10, "rank.10", "rank.+1" },
		     { 10, "rank.10", "rank.1x" },
		     { 1, "rank.1", "rink.1" },
		     { 1, "\"U8\"", "\"I8\"" } };
	const struct trainer_state one = { rows[_i].rank, 5, "12345" };
	struct manifest m = example();
	struct trainer_states is;
	uint8_t sum[SHA256_BYTES];
	m.inside_window = false;
	m.n_states = 1;
	write_parts(partial, 2, m.file);
	ck_assert_int_eq(checkpoint_write_states(partial, &made, &one, 1, &m.states, why, sizeof(why)), ST_OK);
	struct sha256 *s = sha256_new();
	sha256_add(s, text, edit(partial, "states.safetensors", rows[_i].from, rows[_i].to));
	sha256_end(s, m.states.sha256);
	sha256_free(s);
	ck_assert_int_eq(checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof(why)),
			 ST_OK);
	ck_assert_int_eq(load(&is), ST_MALFORMED);
	ck_assert_msg(strstr(why, "no rank's state"), "%s", why);
}
END_TEST

START_TEST(a_state_that_is_too_large_is_refused)
{
	struct trainer_state large = { 1, TRAINER_STATE_MAX + 1, calloc(1, TRAINER_STATE_MAX + 1) };
	struct trainer_states is;
	save(&large, 1);
	ck_assert_int_eq(load(&is), ST_MALFORMED);
	free((void *)large.data);
}
END_TEST

START_TEST(another_directory_gets_none)
{
	struct checkpoint_file f[CHECKPOINT_PARTS], states;
	char moved[CHECKPOINT_MAX_PATH + 8];
	write_parts(partial, 2, f);
	snprintf(moved, sizeof(moved), "%s.moved", partial);
	ck_assert_int_eq(rename(partial, moved), 0);
	ck_assert_int_eq(mkdir(partial, 0755), 0);
	ck_assert_int_eq(checkpoint_write_states(partial, &made, given, 2, &states, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_int_eq(rmdir(partial), 0); /* it is empty */
}
END_TEST

START_TEST(what_a_killed_writer_left_is_swept)
{
	struct checkpoint_file f[CHECKPOINT_PARTS], states;
	uint64_t last = 0;
	write_parts(partial, 2, f);
	ck_assert_int_eq(checkpoint_write_states(partial, &made, given, 2, &states, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(checkpoint_sweep(dir, uuid, &last, why, sizeof(why)), ST_OK);
	ck_assert_int_ne(access(partial, F_OK), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("checkpoint_states");
	TCase *c = tcase_create("checkpoint_states");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, they_come_back);
	tcase_add_test(c, a_checkpoint_without_has_none);
	tcase_add_loop_test(c, what_was_changed_is_refused, 0, 7);
	tcase_add_loop_test(c, what_is_no_ranks_state_is_refused, 0, 5);
	tcase_add_test(c, a_state_that_is_too_large_is_refused);
	tcase_add_test(c, another_directory_gets_none);
	tcase_add_test(c, what_a_killed_writer_left_is_swept);
	suite_add_tcase(s, c);
	return suite_run(s);
}

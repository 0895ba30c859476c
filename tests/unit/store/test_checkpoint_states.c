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

/* ---- of several parts ---- */

enum { WORLD = 4, PARTS = 3 };

static struct states_of_part part[PARTS];
static struct checkpoint_dir whole; /* part 0's */
static char of_part[CHECKPOINT_MAX_PATH];

/* What gaccd of a part's node does; part 0's directory is its engine's. */
static void write_part(uint32_t i, const struct trainer_state *s, uint32_t n)
{
	struct checkpoint_dir own = whole;
	int fd;
	checkpoint_part_path(of_part, partial, i);
	if (i) {
		ck_assert_int_eq(checkpoint_make_dir(of_part, &own, &fd, why, sizeof(why)), ST_OK);
		close(fd);
	}
	part[i] = (struct states_of_part){ .n = n, .has_dir = true };
	if (n)
		ck_assert_int_eq(checkpoint_write_states(of_part, &own, s, n, &part[i].file, why, sizeof(why)), ST_OK);
}

static enum status join(struct manifest *m, uint32_t n_gathered)
{
	return checkpoint_join_states(partial, &whole, part, PARTS, n_gathered, m, why, sizeof(why));
}

static struct manifest begin_parts(void)
{
	struct manifest m = example();
	m.inside_window = false;
	m.n_parts = 0;
	write_parts(partial, 2, m.file);
	whole = made;
	memset(part, 0, sizeof(part));
	return m;
}

static void seal_joined(struct manifest *m)
{
	uint8_t sum[SHA256_BYTES];
	ck_assert_msg(!checkpoint_seal(partial, &whole, final, m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
}

/* Whichever part has which rank, and whether part 0 has some. */
START_TEST(those_of_all_parts_are_one_file)
{
	const struct trainer_state first[] = { { 0, 4, "zero" }, { 2, 3, "two" } },
				   third[] = { { 1, 3, "one" }, { 3, 5, "three" } };
	struct manifest m = begin_parts();
	struct trainer_states is;
	write_part(0, first, _i ? 2 : 0);
	write_part(2, third, 2);
	ck_assert_msg(!join(&m, 1), "%s", why);
	ck_assert_int_ne(access(of_part, F_OK), 0);
	ck_assert_uint_eq(m.n_states, _i ? 4 : 2);
	seal_joined(&m);
	ck_assert_msg(!load(&is), "%s", why);
	ck_assert_uint_eq(is.n, m.n_states);
	for (uint32_t i = 0; i < is.n; i++) {
		const struct trainer_state *s = _i ? &(i % 2 ? third : first)[i / 2] : &third[i];
		ck_assert_uint_eq(is.state[i].rank, s->rank);
		ck_assert_uint_eq(is.state[i].n, s->n);
		ck_assert_mem_eq(is.state[i].data, s->data, s->n);
	}
	trainer_states_fini(&is);
}
END_TEST

/* Part 0's stay as they are, and the others' directories go; those of whom there is more to take do not. */
START_TEST(those_of_part_0_alone_are_the_file)
{
	struct manifest m = begin_parts();
	struct trainer_states is;
	write_part(0, given, 2);
	write_part(2, NULL, 0);
	ck_assert_int_eq(join(&m, _i ? PARTS : 1), ST_OK);
	ck_assert_int_eq(access(of_part, F_OK), _i ? 0 : -1);
	ck_assert_mem_eq(m.states.sha256, part[0].file.sha256, SHA256_BYTES);
	seal_joined(&m);
	ck_assert_int_eq(load(&is), ST_OK);
	ck_assert_uint_eq(is.n, 2);
	trainer_states_fini(&is);
}
END_TEST

START_TEST(without_any_there_is_no_file)
{
	struct manifest m = begin_parts();
	m.n_states = 7; /* whatever was there */
	m.states.bytes = 7;
	ck_assert_int_eq(join(&m, 1), ST_OK);
	ck_assert(!m.n_states && !m.states.bytes);
}
END_TEST

/* Not what the part has told, not there, a rank of two parts. */
START_TEST(wrong_ones_of_a_part_are_refused)
{
	static const struct trainer_state one[] = { { 3, 5, "three" } }, beyond[] = { { WORLD, 1, "x" } };
	struct manifest m = begin_parts();
	char file[CHECKPOINT_MAX_PATH + 32];
	enum status st = ST_CHECKSUM;
	write_part(0, given, 2);
	write_part(1, _i == 3 ? beyond : _i == 2 ? one : &given[0], 1);
	snprintf(file, sizeof(file), "%s/states.safetensors", of_part);
	if (_i == 0) {
		edit(of_part, "states.safetensors", "zero", "null");
	} else if (_i == 1) {
		ck_assert_int_eq(unlink(file), 0);
		ck_assert_int_eq(rmdir(of_part), 0);
		st = ST_IO_ERROR;
	} else {
		st = ST_MALFORMED;
	}
	ck_assert_int_eq(join(&m, 1), st);
	static const char *const says[] = { "SHA-256", "all nodes of a job must see",
					    "two parts have saved the state of rank 3", "no rank's state" };
	ck_assert_msg(strstr(why, says[_i]) != NULL, "%s", why);
}
END_TEST

/* Seen in the files' sizes, or when they are read. */
START_TEST(too_many_bytes_of_all_are_refused)
{
	enum { MOST = 10 };
	const uint32_t N = _i ? MOST : 9;
	struct trainer_state large[2 * MOST];
	void *data = calloc(1, TRAINER_STATE_MAX);
	struct manifest m = begin_parts();
	m.ranks = 2 * N;
	for (uint32_t i = 0; i < 2 * N; i++)
		large[i] = (struct trainer_state){ i, TRAINER_STATE_MAX, data };
	write_part(0, large, N);
	write_part(1, &large[N], N);
	if (_i) { /* before it reads them */
		checkpoint_part_path(of_part, partial, 1);
		ck_assert_int_eq(checkpoint_remove(of_part, why, sizeof(why)), ST_OK);
	}
	ck_assert_int_eq(join(&m, 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, _i ? "bytes, and may have 67108864" : "75497472 bytes, and may have 67108864") !=
			      NULL,
		      "%s", why);
	free(data);
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
	tcase_add_loop_test(c, those_of_all_parts_are_one_file, 0, 2);
	tcase_add_loop_test(c, those_of_part_0_alone_are_the_file, 0, 2);
	tcase_add_test(c, without_any_there_is_no_file);
	tcase_add_loop_test(c, wrong_ones_of_a_part_are_refused, 0, 4);
	tcase_add_loop_test(c, too_many_bytes_of_all_are_refused, 0, 2);
	suite_add_tcase(s, c);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints inside a window of a job of several parts: their files come from several directories into one. */
#include "checkpoint_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARTS = 3, EMPTY = 2 }; /* part EMPTY has counted nothing */

static struct checkpoint_dir of[PARTS];

static void write_file(int dir_fd, enum checkpoint_part p, const char *text, struct checkpoint_file *out)
{
	struct checkpoint_writer *w;
	ck_assert_int_eq(checkpoint_create(dir_fd, p, &w, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(checkpoint_write(w, text, strlen(text), why, sizeof(why)), ST_OK);
	ck_assert_int_eq(checkpoint_finish(w, out, why, sizeof(why)), ST_OK);
}

/* As the engines do: part 0 the model, each its window. */
static void write_all(struct manifest *m)
{
	char path[CHECKPOINT_MAX_PATH];
	int fd;
	*m = example();
	m->n_parts = PARTS;
	for (uint32_t i = 0; i < PARTS; i++) {
		checkpoint_part_path(path, partial, i);
		ck_assert_int_eq(checkpoint_make_dir(path, &of[i], &fd, why, sizeof(why)), ST_OK);
		if (!i)
			write_file(fd, CHECKPOINT_MODEL, "model", &m->file[CHECKPOINT_MODEL]);
		if (i != EMPTY) {
			m->part[i].carry = (struct manifest_carry){ 1 + i, 0.25 * (i + 1), -1, i, 0.5, i };
			write_file(fd, CHECKPOINT_CARRY, i ? "sum 1" : "sum 0", &m->part[i].file[CHECKPOINT_CARRY]);
			write_file(fd, CHECKPOINT_WINDOW, i ? "who of 1" : "who of 0",
				   &m->part[i].file[CHECKPOINT_WINDOW]);
		}
		close(fd);
	}
}

static enum status gather(const struct manifest *m, uint32_t i)
{
	return checkpoint_gather(partial, &of[0], &of[i], i, m, why, sizeof(why));
}

static void seal_all(struct manifest *m)
{
	uint8_t sum[32];
	write_all(m);
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert_msg(!gather(m, i), "%s", why);
	ck_assert_msg(!checkpoint_seal(partial, &of[0], final, m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
}

static void holds(const char *name, const char *text)
{
	char path[CHECKPOINT_MAX_PATH + 64], is[64] = "";
	snprintf(path, sizeof(path), "%s/%s", final, name);
	int fd = open(path, O_RDONLY);
	ck_assert_msg(fd >= 0, "%s is missing", name);
	ck_assert_int_eq(read(fd, is, sizeof(is) - 1), (ssize_t)strlen(text));
	ck_assert_str_eq(is, text);
	close(fd);
}

static bool is_there(const char *base, uint32_t part)
{
	char path[CHECKPOINT_MAX_PATH];
	checkpoint_part_path(path, base, part);
	return access(path, F_OK) == 0;
}

START_TEST(each_part_has_its_files_in_the_whole)
{
	struct manifest m, *r;
	uint32_t owner;
	seal_all(&m);
	ck_assert_msg(!checkpoint_load(final, &r, &owner, why, sizeof(why)), "%s", why);
	ck_assert(r->n_parts == PARTS && r->inside_window && !r->file[CHECKPOINT_CARRY].bytes && r->carry.count == 3);
	for (uint32_t i = 0; i < PARTS; i++) {
		const struct manifest_carry *is = &r->part[i].carry, *was = &m.part[i].carry;
		ck_assert(is->count == was->count && is->sum_weight == was->sum_weight &&
			  is->sum_loss == was->sum_loss);
		ck_assert(is->last_rank == was->last_rank && is->lr == was->lr && is->lr_rank == was->lr_rank);
		ck_assert_mem_eq(r->part[i].file, m.part[i].file, sizeof(m.part[i].file));
	}
	manifest_free(r);
	holds("model.safetensors", "model");
	holds("carry-00001-of-00003.safetensors", "sum 0");
	holds("window-00001-of-00003.safetensors", "who of 0");
	holds("carry-00002-of-00003.safetensors", "sum 1");
	holds("window-00002-of-00003.safetensors", "who of 1");
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert(!is_there(partial, i));
}
END_TEST

START_TEST(it_is_deleted_with_the_files_of_its_parts)
{
	struct manifest m;
	seal_all(&m);
	ck_assert_msg(!checkpoint_remove(final, why, sizeof(why)), "%s", why);
	ck_assert(!is_there(final, 0));
}
END_TEST

/* Whenever gaccd dies: nothing has the name of a checkpoint, and the next sweep deletes all of it. */
START_TEST(what_a_killed_gaccd_left_is_swept)
{
	struct manifest m;
	uint64_t last = 0;
	write_all(&m);
	for (uint32_t i = 0; i < (uint32_t)_i; i++)
		ck_assert_msg(!gather(&m, i), "%s", why);
	ck_assert(!is_there(final, 0));
	ck_assert_int_eq(checkpoint_sweep(dir, uuid, &last, why, sizeof(why)), ST_OK);
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert(!is_there(partial, i));
}
END_TEST

START_TEST(another_directory_is_not_gathered)
{
	struct manifest m;
	struct stat s;
	char path[CHECKPOINT_MAX_PATH + 64];
	write_all(&m);
	of[_i].ino++;
	ck_assert_int_eq(gather(&m, 1), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "is not the directory that was written"), "%s", why);
	snprintf(path, sizeof(path), "%s.p1/carry.safetensors", partial);
	ck_assert(stat(path, &s) == 0);
}
END_TEST

START_TEST(a_file_that_is_not_gathered_is_not_sealed)
{
	struct manifest m;
	uint8_t sum[32];
	write_all(&m);
	ck_assert_msg(!gather(&m, 0), "%s", why);
	ck_assert_int_eq(checkpoint_seal(partial, &of[0], final, &m, geteuid(), getegid(), sum, why, sizeof(why)),
			 ST_IO_ERROR);
	ck_assert_msg(strstr(why, "carry-00002-of-00003.safetensors"), "%s", why);
}
END_TEST

START_TEST(names_by_part)
{
	static const char *const wrong[] = { "carry.safetensors",
					     "carry-00000-of-00003.safetensors",
					     "carry-00004-of-00003.safetensors",
					     "carry-00001-of-00001.safetensors",
					     "carry-1-of-3.safetensors",
					     "model-00001-of-00003.safetensors",
					     "optimizer-00000-of-00003.safetensors",
					     "carry-00001-of-00003.safetensors.mine",
					     "a-carry-00001-of-00003.safetensors" };
	ck_assert(checkpoint_is_of_part("carry-00003-of-00003.safetensors"));
	ck_assert(checkpoint_is_of_part("window-00001-of-00016.safetensors"));
	ck_assert(checkpoint_is_of_part("optimizer-00002-of-00004.safetensors"));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		ck_assert_msg(!checkpoint_is_of_part(wrong[i]), "%s", wrong[i]);
}
END_TEST

START_TEST(wrong_manifests_of_parts_are_refused)
{
	static const struct {
		const char *says;
		uint32_t n_parts;
		int without; /* a file of part 1; -1: none */
		bool not_inside;
	} rows[] = {
		{ "\"files\"", PARTS, CHECKPOINT_CARRY, false },
		{ "\"files\"", PARTS, CHECKPOINT_WINDOW, false },
		{ "\"files\"", PARTS, -1, true },
		{ "\"files\"", 2, -1, false }, /* and the names are of three */
		{ "\"parts\"", 1, -1, false },
	};
	struct manifest m, *r;
	char *text, *at;
	size_t n;
	write_all(&m);
	if (rows[_i].without >= 0)
		m.part[1].file[rows[_i].without].bytes = 0;
	m.inside_window = !rows[_i].not_inside;
	ck_assert_int_eq(manifest_encode(&m, &text, &n), ST_OK);
	for (uint32_t i = rows[_i].n_parts; i < PARTS; i++) { /* without the first ones */
		at = strstr(text, "\"parts\": [") + strlen("\"parts\": [");
		memset(at, ' ', (size_t)(strchr(at, '}') + 2 - at));
	}
	ck_assert_int_eq(manifest_decode("m", text, n, &r, why, sizeof(why)), ST_MALFORMED);
	ck_assert_msg(strstr(why, rows[_i].says), "%s", why);
	free(text);
}
END_TEST

/* Between windows: of the parts only the optimizer state. Part EMPTY has no share, as in a small arena. */
static void write_shares(struct manifest *m)
{
	char path[CHECKPOINT_MAX_PATH];
	int fd;
	*m = example();
	m->n_shares = PARTS;
	m->inside_window = false;
	for (uint32_t i = 0; i < PARTS; i++) {
		checkpoint_part_path(path, partial, i);
		ck_assert_int_eq(checkpoint_make_dir(path, &of[i], &fd, why, sizeof(why)), ST_OK);
		if (!i)
			write_file(fd, CHECKPOINT_MODEL, "model", &m->file[CHECKPOINT_MODEL]);
		if (i != EMPTY)
			write_file(fd, CHECKPOINT_OPTIMIZER, i ? "share 1" : "share 0",
				   &m->part[i].file[CHECKPOINT_OPTIMIZER]);
		close(fd);
	}
}

START_TEST(each_part_has_its_share_in_the_whole)
{
	struct manifest m, *r;
	uint8_t sum[32];
	uint32_t owner;
	write_shares(&m);
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert_msg(!gather(&m, i), "%s", why);
	ck_assert_msg(!checkpoint_seal(partial, &of[0], final, &m, geteuid(), getegid(), sum, why, sizeof(why)), "%s",
		      why);
	ck_assert_msg(!checkpoint_load(final, &r, &owner, why, sizeof(why)), "%s", why);
	ck_assert(r->n_shares == PARTS && !r->n_parts && !r->inside_window && !r->file[CHECKPOINT_OPTIMIZER].bytes);
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert_mem_eq(r->part[i].file, m.part[i].file, sizeof(m.part[i].file));
	manifest_free(r);
	holds("optimizer-00001-of-00003.safetensors", "share 0");
	holds("optimizer-00002-of-00003.safetensors", "share 1");
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert(!is_there(partial, i));
	ck_assert_msg(!checkpoint_remove(final, why, sizeof(why)), "%s", why);
	ck_assert(!is_there(final, 0));
}
END_TEST

START_TEST(wrong_manifests_of_shares_are_refused)
{
	struct manifest m, *r;
	const char *says = "\"files\"";
	char *text;
	size_t n;
	write_shares(&m);
	switch (_i) {
	case 0: /* a whole state, too */
		m.file[CHECKPOINT_OPTIMIZER] = m.part[0].file[CHECKPOINT_OPTIMIZER];
		break;
	case 1: /* an open window that no part has */
		m.inside_window = true;
		break;
	case 2: /* a window of parts that says nothing of them */
		m.part[1].file[CHECKPOINT_CARRY] = m.part[1].file[CHECKPOINT_WINDOW] = m.file[CHECKPOINT_MODEL];
		break;
	case 3: /* or that is whole */
		m.file[CHECKPOINT_CARRY] = m.file[CHECKPOINT_WINDOW] = m.file[CHECKPOINT_MODEL];
		m.inside_window = true;
		break;
	case 4: /* shares without their number */
		m.n_shares = 0;
		m.n_parts = PARTS;
		m.inside_window = true;
		m.part[0].file[CHECKPOINT_CARRY] = m.part[0].file[CHECKPOINT_WINDOW] = m.file[CHECKPOINT_MODEL];
		break;
	default: /* other parts than shares */
		m.n_parts = 2;
		says = "\"shares\"";
	}
	ck_assert_int_eq(manifest_encode(&m, &text, &n), ST_OK);
	ck_assert_int_eq(manifest_decode("m", text, n, &r, why, sizeof(why)), ST_MALFORMED);
	ck_assert_msg(strstr(why, says), "%s", why);
	free(text);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("checkpoints of several parts");
	TCase *c = tcase_create("checkpoints of several parts");
	tcase_add_checked_fixture(c, checkpoint_setup, checkpoint_teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, each_part_has_its_files_in_the_whole);
	tcase_add_test(c, it_is_deleted_with_the_files_of_its_parts);
	tcase_add_loop_test(c, what_a_killed_gaccd_left_is_swept, 0, PARTS + 1);
	tcase_add_loop_test(c, another_directory_is_not_gathered, 0, 2);
	tcase_add_test(c, a_file_that_is_not_gathered_is_not_sealed);
	tcase_add_test(c, names_by_part);
	tcase_add_loop_test(c, wrong_manifests_of_parts_are_refused, 0, 5);
	tcase_add_test(c, each_part_has_its_share_in_the_whole);
	tcase_add_loop_test(c, wrong_manifests_of_shares_are_refused, 0, 6);
	return suite_run(s);
}

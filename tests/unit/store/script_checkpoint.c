/* SPDX-License-Identifier: Apache-2.0 */
/* What torture_checkpoint.c and cuts_checkpoint.c do with checkpoints, and whether one is as it was written. */
#include "script_checkpoint.h"

#include "script.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE 5000
#define PIECES 3

static const uint8_t uuid[16] = { 0xab, 0xcd };

/* What a file of a checkpoint holds tells which one it is. */
static void fill(unsigned char *piece, uint64_t id, int part, int number)
{
	for (int i = 0; i < PIECE; i++)
		piece[i] = (unsigned char)(id * 7 + (unsigned)part * 3 + (unsigned)number + (unsigned)i / 64);
}

/* ---- writing ---- */

static enum status write_part(int dir_fd, uint64_t id, enum checkpoint_part part, int number,
			      struct checkpoint_file *out)
{
	unsigned char piece[PIECE];
	char why[512] = "";
	struct checkpoint_writer *w;
	enum status st = checkpoint_create(dir_fd, part, &w, why, sizeof(why));
	if (st)
		return st;
	st = checkpoint_reserve(w, PIECE * PIECES, why, sizeof(why));
	for (int i = 0; i < PIECES && !st; i++) {
		fill(piece, id, number, i);
		st = checkpoint_write(w, piece, PIECE, why, sizeof(why));
	}
	if (st) {
		checkpoint_abandon(w);
		return st;
	}
	return checkpoint_finish(w, out, why, sizeof(why));
}

/* Some are of two parts, inside a window, and some of these of a sharded job. */
static uint32_t n_parts_of(uint64_t id)
{
	return id % 2 ? 1 : 2;
}

static bool is_sharded(uint64_t id)
{
	return id % 4 == 2;
}

/* What one engine writes. */
static enum status write_parts(const char *partial, uint64_t id, uint32_t of, struct manifest *m,
			       struct checkpoint_dir *made)
{
	int fd;
	char path[CHECKPOINT_MAX_PATH], why[512];
	checkpoint_part_path(path, partial, of);
	enum status st = checkpoint_make_dir(path, made, &fd, why, sizeof(why));
	if (st)
		return st;
	const int first = !of ? CHECKPOINT_MODEL : is_sharded(id) ? CHECKPOINT_OPTIMIZER : CHECKPOINT_CARRY;
	for (int i = first; i < CHECKPOINT_PARTS && !st; i++)
		if (i < (is_sharded(id) ? CHECKPOINT_OPTIMIZER : CHECKPOINT_CARRY))
			st = write_part(fd, id, (enum checkpoint_part)i, i, &m->file[i]);
		else if (n_parts_of(id) > 1)
			st = write_part(fd, id, (enum checkpoint_part)i, i + (int)of, &m->part[of].file[i]);
	close(fd);
	return st;
}

static struct manifest example(uint64_t id)
{
	struct manifest m = { .id = id,
			      .job = 7,
			      .name = "n",
			      .uid = 1000,
			      .created_unix_ns = 5,
			      .window = 20,
			      .applied_step = 10 + id,
			      .ranks = 4,
			      .micro_size = 2,
			      .optimizer = "adamw",
			      .accumulate_dtype = "f32",
			      .loss_scale = 1024,
			      .carry = { .count = 8, .sum_weight = 0.5, .last_rank = 1 },
			      .spec = "spec",
			      .n_spec = 4 };
	memcpy(m.uuid, uuid, 16);
	if (n_parts_of(id) > 1) {
		m.n_parts = n_parts_of(id);
		m.n_shares = is_sharded(id) ? n_parts_of(id) : 0;
		m.inside_window = true;
	}
	return m;
}

static void paths(const char *dir, uint64_t id, char *partial, char *final)
{
	checkpoint_partial_path(partial, dir, uuid, id);
	checkpoint_final_path(final, dir, uuid, 10 + id, id);
}

enum status script_make(const char *dir, uint64_t id, uint32_t uid)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	uint8_t sum[SHA256_BYTES];
	struct manifest m = example(id);
	struct checkpoint_dir made[2];
	enum status st = ST_OK;
	const uint32_t n = n_parts_of(id);
	paths(dir, id, partial, final);
	for (uint32_t i = 0; i < n && !st; i++)
		st = write_parts(partial, id, i, &m, &made[i]);
	for (uint32_t i = 0; i < n && n > 1 && !st; i++)
		st = checkpoint_gather(partial, &made[0], &made[i], i, &m, why, sizeof(why));
	if (!st)
		st = checkpoint_seal(partial, &made[0], final, &m, uid, getegid(), sum, why, sizeof(why));
	for (uint32_t i = 0; i < n && st; i++) {
		checkpoint_part_path(final, partial, i);
		checkpoint_remove(final, why, sizeof(why)); /* may fail, too: the sweep comes */
	}
	return st;
}

enum status script_drop(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	paths(dir, id, partial, final);
	return checkpoint_remove(final, why, sizeof(why));
}

enum status script_load(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	struct manifest *m;
	uint32_t uid;
	paths(dir, id, partial, final);
	enum status st = checkpoint_load(final, &m, &uid, why, sizeof(why));
	if (!st)
		manifest_free(m);
	return st;
}

enum status script_sweep(const char *dir)
{
	char why[512];
	uint64_t last = 0;
	return checkpoint_sweep(dir, uuid, &last, why, sizeof(why));
}

/* ---- reading ---- */

static void check_file(const char *final, uint64_t id, int part, const char *name, const struct checkpoint_file *file,
		       uint32_t uid)
{
	unsigned char want[PIECE], got[PIECE];
	uint8_t sum[SHA256_BYTES];
	char why[512];
	int dir_fd, fd;
	struct sha256 *s = sha256_new();
	if (!s || checkpoint_open_dir(final, false, &dir_fd, why, sizeof(why)) ||
	    checkpoint_open_file(dir_fd, name, uid, &fd, why, sizeof(why)))
		script_fail("checkpoint %" PRIu64 " part %d: %s", id, part, why);
	for (int i = 0; i < PIECES; i++) {
		fill(want, id, part, i);
		if (read(fd, got, PIECE) != PIECE || memcmp(got, want, PIECE) != 0)
			script_fail("checkpoint %" PRIu64 " part %d piece %d is not what was written", id, part, i);
		sha256_add(s, got, PIECE);
	}
	sha256_end(s, sum);
	if (file->bytes != PIECE * PIECES || memcmp(sum, file->sha256, SHA256_BYTES) != 0)
		script_fail("checkpoint %" PRIu64 " part %d: the manifest says something else", id, part);
	sha256_free(s);
	close(fd);
	close(dir_fd);
}

static void check_files(const char *final, uint64_t id, const struct manifest *m, uint32_t uid)
{
	const struct checkpoint_file *f;
	char name[CHECKPOINT_FILE_NAME];
	uint32_t n = 0;
	for (uint32_t i = 0; (f = manifest_file(m, i, name)); i++) {
		if (!f->bytes)
			continue;
		/* a part has its number added */
		check_file(final, id,
			   (int)(i < CHECKPOINT_PARTS ? i : CHECKPOINT_OPTIMIZER + (i - 4) % 3 + (i - 4) / 3), name, f,
			   uid);
		n++;
	}
	if (n != (is_sharded(id) ? 7 : n_parts_of(id) > 1 ? 6 : 2))
		script_fail("checkpoint %" PRIu64 " has %u files", id, n);
}

bool script_is_there(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512] = "";
	struct manifest *m;
	uint32_t uid;
	paths(dir, id, partial, final);
	enum status st = checkpoint_load(final, &m, &uid, why, sizeof(why));
	if (!checkpoint_exists(final)) {
		if (st != ST_INVALID_ARGUMENT)
			script_fail("checkpoint %" PRIu64 ": %s", id, st ? why : "without a manifest");
		return false;
	}
	if (st)
		script_fail("checkpoint %" PRIu64 ": %s", id, why);
	if (m->id != id || m->applied_step != 10 + id)
		script_fail("checkpoint %" PRIu64 " says that it is %" PRIu64, id, m->id);
	check_files(final, id, m, uid);
	manifest_free(m);
	return true;
}

bool script_has_files(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH];
	paths(dir, id, partial, final);
	return access(final, F_OK) == 0;
}

void script_check_swept(const char *dir)
{
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));)
		if (strstr(e->d_name, ".partial"))
			script_fail("%s is left after a sweep", e->d_name);
	for (uint64_t id = 1; id <= SCRIPT_MAX_ID; id++)
		if (script_has_files(dir, id) && !script_is_there(dir, id))
			script_fail("of checkpoint %" PRIu64 " something is left after a sweep", id);
	if (d)
		closedir(d);
}

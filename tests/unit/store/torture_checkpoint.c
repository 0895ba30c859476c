/* Checkpoints while calls fail: one that was acknowledged is there whole, one that was not is there whole or not at all, and what a
 * failure leaves behind is swept away. */
#include "store/checkpoint.h"

#include "torture.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* ---- the script ---- */

static enum status write_part(int dir_fd, uint64_t id, int part, struct checkpoint_file *out)
{
	unsigned char piece[PIECE];
	char why[512] = "";
	struct checkpoint_writer *w;
	enum status st = checkpoint_create(dir_fd, (enum checkpoint_part)part, &w, why, sizeof why);
	if (st)
		return st;
	st = checkpoint_reserve(w, PIECE * PIECES, why, sizeof why);
	for (int i = 0; i < PIECES && !st; i++) {
		fill(piece, id, part, i);
		st = checkpoint_write(w, piece, PIECE, why, sizeof why);
	}
	if (st) {
		checkpoint_abandon(w);
		return st;
	}
	return checkpoint_finish(w, out, why, sizeof why);
}

static enum status write_parts(const char *partial, uint64_t id, struct manifest *m, struct checkpoint_dir *made)
{
	int fd;
	char why[512];
	enum status st = checkpoint_make_dir(partial, made, &fd, why, sizeof why);
	for (int i = 0; i < 2 && !st; i++) {
		st = write_part(fd, id, i, &m->file[i]);
		if (st || i == 1)
			close(fd);
	}
	return st;
}

static struct manifest example(uint64_t id)
{
	struct manifest m = { .id = id, .job = 7, .name = "n", .uid = 1000, .created_unix_ns = 5, .window = 20, .applied_step = 10 + id,
			      .ranks = 4, .micro_size = 2, .optimizer = "adamw", .accumulate_dtype = "f32", .loss_scale = 1024,
			      .count = 8, .sum_weight = 0.5, .last_rank = 1, .spec = "spec", .n_spec = 4 };
	memcpy(m.uuid, uuid, 16);
	return m;
}

static void paths(const char *dir, uint64_t id, char *partial, char *final)
{
	checkpoint_partial_path(partial, dir, uuid, id);
	checkpoint_final_path(final, dir, uuid, 10 + id, id);
}

static enum status make(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	uint8_t sum[SHA256_BYTES];
	struct manifest m = example(id);
	struct checkpoint_dir made;
	paths(dir, id, partial, final);
	enum status st = write_parts(partial, id, &m, &made);
	if (!st)
		st = checkpoint_seal(partial, &made, final, &m, geteuid(), getegid(), sum, why, sizeof why);
	if (st)
		checkpoint_remove(partial, why, sizeof why); /* may fail, too: the sweep comes */
	return st;
}

static enum status drop(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	paths(dir, id, partial, final);
	return checkpoint_remove(final, why, sizeof why);
}

static enum status load(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512];
	struct manifest *m;
	uint32_t uid;
	paths(dir, id, partial, final);
	enum status st = checkpoint_load(final, &m, &uid, why, sizeof why);
	if (!st)
		manifest_free(m);
	return st;
}

static enum status sweep(const char *dir)
{
	char why[512];
	uint64_t last = 0;
	return checkpoint_sweep(dir, uuid, &last, why, sizeof why);
}

enum { MAKE_1, MAKE_2, LOAD_1, DROP_1, MAKE_3, SWEEP, LOAD_2, OPERATIONS };

/* As a job: a failed checkpoint is reported, and training goes on to the next. */
static void script(const char *root, struct torture_log *log)
{
	char dir[128];
	snprintf(dir, sizeof dir, "%s/job/here", root);
	for (int i = 0; i < OPERATIONS; i++)
		torture_note(log, i == MAKE_1	? make(dir, 1)
				  : i == MAKE_2 ? make(dir, 2)
				  : i == LOAD_1 ? load(dir, 1)
				  : i == DROP_1 ? drop(dir, 1)
				  : i == MAKE_3 ? make(dir, 3)
				  : i == SWEEP	? sweep(dir)
						: load(dir, 2));
}

/* ---- the judge ---- */

static void check_part(const char *final, uint64_t id, int part, const struct manifest *m)
{
	unsigned char want[PIECE], got[PIECE];
	uint8_t sum[SHA256_BYTES];
	char why[512];
	int dir_fd, fd;
	struct sha256 *s = sha256_new();
	if (!s || checkpoint_open_dir(final, false, &dir_fd, why, sizeof why) ||
	    checkpoint_open_file(dir_fd, (enum checkpoint_part)part, geteuid(), &fd, why, sizeof why))
		torture_fail("checkpoint %" PRIu64 " part %d: %s", id, part, why);
	for (int i = 0; i < PIECES; i++) {
		fill(want, id, part, i);
		if (read(fd, got, PIECE) != PIECE || memcmp(got, want, PIECE) != 0)
			torture_fail("checkpoint %" PRIu64 " part %d piece %d is not what was written", id, part, i);
		sha256_add(s, got, PIECE);
	}
	sha256_end(s, sum);
	if (m->file[part].bytes != PIECE * PIECES || memcmp(sum, m->file[part].sha256, SHA256_BYTES) != 0)
		torture_fail("checkpoint %" PRIu64 " part %d: the manifest says something else", id, part);
	sha256_free(s);
	close(fd);
	close(dir_fd);
}

/* There, and then whole. */
static bool is_there(const char *dir, uint64_t id)
{
	char partial[CHECKPOINT_MAX_PATH], final[CHECKPOINT_MAX_PATH], why[512] = "";
	struct manifest *m;
	uint32_t uid;
	paths(dir, id, partial, final);
	enum status st = checkpoint_load(final, &m, &uid, why, sizeof why);
	if (st == ST_INVALID_ARGUMENT)
		return false;
	if (st)
		torture_fail("checkpoint %" PRIu64 ": %s", id, why);
	if (m->id != id || m->applied_step != 10 + id)
		torture_fail("checkpoint %" PRIu64 " says that it is %" PRIu64, id, m->id);
	for (int i = 0; i < 2; i++)
		check_part(final, id, i, m);
	manifest_free(m);
	return true;
}

static void check_swept(const char *dir)
{
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));)
		if (strstr(e->d_name, ".partial"))
			torture_fail("%s is left after a sweep", e->d_name);
	if (d)
		closedir(d);
}

static void judge(const char *root, const struct torture_log *log)
{
	char dir[128], why[512];
	int fd, failures = 0;
	snprintf(dir, sizeof dir, "%s/job/here", root);
	if (log->n != OPERATIONS)
		torture_fail("%d operations", log->n);
	for (int i = 0; i < log->n; i++) {
		failures += log->status[i] != ST_OK;
		if (log->status[i] && log->status[i] != ST_IO_ERROR && log->status[i] != ST_NO_MEMORY && i != LOAD_1 && i != LOAD_2)
			torture_fail("operation %d: %s", i, status_info(log->status[i])->name);
	}
	if (failures > 2)
		torture_fail("one fault, %d failures", failures);
	if (checkpoint_open_dir(dir, true, &fd, why, sizeof why))
		torture_fail("%s", why);
	close(fd);
	if (is_there(dir, 1) && log->status[DROP_1] == ST_OK)
		torture_fail("checkpoint 1 is still there");
	for (uint64_t id = 2; id <= 3; id++)
		if (!is_there(dir, id) && log->status[id == 2 ? MAKE_2 : MAKE_3] == ST_OK)
			torture_fail("checkpoint %" PRIu64 " is not there", id);
	if (log->status[LOAD_1] != ST_OK && log->status[MAKE_1] == ST_OK && !log->fired)
		torture_fail("checkpoint 1 could not be read");
	if (sweep(dir))
		torture_fail("the sweep fails");
	check_swept(dir);
	if (make(dir, 4) || !is_there(dir, 4))
		torture_fail("no new checkpoint can be made");
}

static void prepare(const char *root)
{
	struct torture_log log = { .n = 0 };
	script(root, &log);
	for (int i = 0; i < OPERATIONS; i++)
		if (log.status[i] != ST_OK)
			torture_fail("operation %d of the undisturbed run failed", i);
	judge(root, &log);
}

int main(int argc, char **argv)
{
	static const struct torture t = { .name = "checkpoint", .prepare = prepare, .script = script, .judge = judge };
	return torture_main(argc, argv, &t, 1, 3);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the trainers' own states of a checkpoint. For runtime/part_states.c, in gaccd's pool. No shared
 * state, any thread; blocks. */
#include "store/checkpoint_states.h"

#include "base/log.h"
#include "proto/failpoint.h"
#include "store/checkpoint_dirs.h"
#include "store/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_NAME 16					   /* "rank.4294967295" */
#define MAX_FILE (TRAINER_STATES_MAX + ((size_t)16 << 20)) /* with its header */

/* ---- writing ---- */

static enum status make_header(const struct trainer_state *s, uint32_t n, void **out, size_t *out_n)
{
	struct safe_tensor *t = calloc(n, sizeof(*t));
	char(*name)[STATE_NAME] = calloc(n, sizeof(*name));
	enum status st = ST_NO_MEMORY;
	for (uint32_t i = 0; t && name && i < n; i++) {
		snprintf(name[i], sizeof(name[i]), "rank.%" PRIu32, s[i].rank);
		t[i] = (struct safe_tensor){ .name = name[i], .dtype = SAFE_U8, .n_dims = 1, .shape = { s[i].n } };
	}
	if (t && name)
		st = safetensors_header(t, n, NULL, 0, out, out_n);
	free(name);
	free(t);
	return st;
}

static enum status write_all(struct checkpoint_writer *w, const void *head, size_t n_head,
			     const struct trainer_state *s, uint32_t n, char *why, size_t n_why)
{
	uint64_t bytes = n_head;
	for (uint32_t i = 0; i < n; i++)
		bytes += s[i].n;
	enum status st = checkpoint_reserve(w, bytes, why, n_why);
	if (!st)
		st = checkpoint_write(w, head, n_head, why, n_why);
	for (uint32_t i = 0; i < n && !st; i++)
		st = checkpoint_write(w, s[i].data, s[i].n, why, n_why);
	return st;
}

enum status checkpoint_write_states(const char *path, const struct checkpoint_dir *made, const struct trainer_state *s,
				    uint32_t n, struct checkpoint_file *out, char *why, size_t n_why)
{
	struct checkpoint_writer *w = NULL;
	void *head = NULL;
	size_t n_head = 0;
	uint32_t uid;
	int fd;
	enum status st = checkpoint_open_made(path, made, &fd, &uid, why, n_why);
	if (st)
		return st;
	st = make_header(s, n, &head, &n_head);
	if (!st)
		st = checkpoint_create_named(fd, CHECKPOINT_STATES_NAME, &w, why, n_why);
	if (!st)
		st = write_all(w, head, n_head, s, n, why, n_why);
	if (!st)
		st = checkpoint_finish(w, out, why, n_why);
	else
		checkpoint_abandon(w);
	free(head);
	close(fd);
	return st;
}

/* ---- reading ---- */

static enum status wrong(enum status st, const char *path, const char *what, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s/" CHECKPOINT_STATES_NAME ": %s", path, what);
	return st;
}

static enum status read_all(const char *path, int fd, void *to, size_t n, char *why, size_t n_why)
{
	size_t got = 0;
	for (ssize_t r = 1; got < n && r > 0; got += r > 0 ? (size_t)r : 0)
		r = pread(fd, (char *)to + got, n - got, (off_t)got);
	return got == n ? ST_OK : wrong(ST_IO_ERROR, path, "it cannot be read whole", why, n_why);
}

static enum status check_sum(const char *path, const struct manifest *m, const void *file, char *why, size_t n_why)
{
	uint8_t is[SHA256_BYTES];
	struct sha256 *s = sha256_new();
	if (!s)
		return ST_NO_MEMORY;
	sha256_add(s, file, m->states.bytes);
	sha256_end(s, is);
	sha256_free(s);
	if (memcmp(is, m->states.sha256, sizeof(is)) != 0)
		return wrong(ST_CHECKSUM, path, "its SHA-256 is not that of the manifest", why, n_why);
	return ST_OK;
}

/* One of the arrays; false: it is no rank's state. */
static bool take_state(const struct safe_tensor *t, const struct manifest *m, const char *data,
		       struct trainer_state *out)
{
	char name[STATE_NAME];
	uint32_t rank;
	if (sscanf(t->name, "rank.%5" SCNu32, &rank) != 1 || rank >= m->ranks)
		return false;
	snprintf(name, sizeof(name), "rank.%" PRIu32, rank);
	*out = (struct trainer_state){ rank, t->end - t->begin, data + t->begin };
	return !strcmp(name, t->name) && t->dtype == SAFE_U8 && out->n && out->n <= TRAINER_STATE_MAX;
}

static enum status take_states(const char *path, const struct manifest *m, struct trainer_states *out, char *why,
			       size_t n_why)
{
	struct safetensors *s = NULL;
	size_t n;
	enum status st =
		safetensors_parse(CHECKPOINT_STATES_NAME, out->file, m->states.bytes, m->states.bytes, &s, why, n_why);
	if (st)
		return st;
	const struct safe_tensor *t = safetensors_all(s, &n);
	out->state = calloc(n + 1, sizeof(*out->state));
	st = !out->state ? ST_NO_MEMORY
	     : n != m->n_states
		     ? wrong(ST_MALFORMED, path, "it has not as many states as the manifest says", why, n_why)
		     : ST_OK;
	for (size_t i = 0; i < n && !st; i++, out->n++)
		if (!take_state(&t[i], m, (char *)out->file + safetensors_data_offset(s), &out->state[i]))
			st = wrong(ST_MALFORMED, path, "an array in it is no rank's state", why, n_why);
	safetensors_free(s);
	return st;
}

static enum status read_file(const char *path, int dir_fd, const struct manifest *m, uint32_t owner,
			     struct trainer_states *out, char *why, size_t n_why)
{
	int fd;
	if (m->states.bytes > MAX_FILE)
		return wrong(ST_MALFORMED, path, "it is too large", why, n_why);
	enum status st = checkpoint_open_file(dir_fd, CHECKPOINT_STATES_NAME, owner, &fd, why, n_why);
	if (st)
		return st;
	out->file = malloc(m->states.bytes);
	st = out->file ? read_all(path, fd, out->file, m->states.bytes, why, n_why) : ST_NO_MEMORY;
	close(fd);
	if (!st)
		st = check_sum(path, m, out->file, why, n_why);
	return st ? st : take_states(path, m, out, why, n_why);
}

enum status checkpoint_read_states(const char *path, const struct manifest *m, uint32_t owner,
				   struct trainer_states *out, char *why, size_t n_why)
{
	int fd;
	*out = (struct trainer_states){ 0 };
	if (!m->n_states)
		return ST_OK;
	enum status st = checkpoint_open_dir(path, false, &fd, why, n_why);
	if (st)
		return st;
	st = read_file(path, fd, m, owner, out, why, n_why);
	close(fd);
	if (st)
		trainer_states_fini(out);
	return st;
}

/* ---- of several parts ---- */

/* Of a part's own directory: gaccds of two nodes may know it by other numbers, so its sum says that it is the one. */
static enum status read_part(const char *partial, uint32_t part, const struct states_of_part *p, uint32_t ranks,
			     struct trainer_states *out, char *why, size_t n_why)
{
	const struct manifest m = { .ranks = ranks, .n_states = p->n, .states = p->file };
	char path[CHECKPOINT_MAX_PATH], text[320];
	struct stat s;
	int fd;
	checkpoint_part_path(path, partial, part);
	enum status st = checkpoint_open_dir(path, false, &fd, text, sizeof(text));
	if (st) {
		snprintf(why, n_why,
			 "part %u: %s; all nodes of a job must see the directory of its checkpoints under one path",
			 part, text);
		log_error("checkpoint: %s", why);
		return ST_IO_ERROR;
	}
	st = fstat(fd, &s) ? checkpoint_failed("looking at", path, errno, why, n_why)
			   : read_file(path, fd, &m, s.st_uid, out, why, n_why);
	close(fd);
	return st;
}

static enum status too_many(uint64_t bytes, char *why, size_t n_why)
{
	snprintf(why, n_why, "the states of all ranks have %llu bytes, and may have %zu", (unsigned long long)bytes,
		 TRAINER_STATES_MAX);
	return ST_RESOURCE_EXHAUSTED;
}

/* All states in the order of ranks, lent by `of`. */
static enum status merge(const struct trainer_states *of, uint32_t n_parts, struct trainer_state *out, uint32_t *out_n,
			 char *why, size_t n_why)
{
	uint64_t bytes = 0;
	*out_n = 0;
	for (uint32_t i = 0; i < n_parts; i++)
		for (uint32_t k = 0; k < of[i].n; k++) {
			uint32_t at = (*out_n)++;
			bytes += of[i].state[k].n;
			for (; at && out[at - 1].rank > of[i].state[k].rank; at--)
				out[at] = out[at - 1];
			out[at] = of[i].state[k];
			if (at && out[at - 1].rank == out[at].rank) {
				snprintf(why, n_why, "two parts have saved the state of rank %u", out[at].rank);
				return ST_MALFORMED;
			}
		}
	if (bytes <= TRAINER_STATES_MAX)
		return ST_OK;
	return too_many(bytes, why, n_why);
}

/* In the place of part 0's own. */
static enum status write_joined(const char *partial, const struct checkpoint_dir *whole, const struct trainer_state *s,
				uint32_t n, struct checkpoint_file *out, char *why, size_t n_why)
{
	uint32_t uid;
	int fd;
	enum status st = FAILPOINT_ERROR(gaccd_save_states_joined);
	if (!st)
		st = checkpoint_open_made(partial, whole, &fd, &uid, why, n_why);
	if (st)
		return st;
	if (unlinkat(fd, CHECKPOINT_STATES_NAME, 0) < 0 && errno != ENOENT)
		st = checkpoint_failed("deleting part 0's", CHECKPOINT_STATES_NAME, errno, why, n_why);
	close(fd);
	return st ? st : checkpoint_write_states(partial, whole, s, n, out, why, n_why);
}

static enum status join(const char *partial, const struct checkpoint_dir *whole, const struct states_of_part *p,
			uint32_t n_parts, struct trainer_states *of, struct manifest *m, char *why, size_t n_why)
{
	enum status st = ST_OK;
	uint32_t n = 0;
	for (uint32_t i = 0; i < n_parts && !st; i++)
		if (p[i].n)
			st = read_part(partial, i, &p[i], m->ranks, &of[i], why, n_why);
	struct trainer_state *all = calloc(m->n_states, sizeof(*all));
	if (!all)
		return ST_NO_MEMORY;
	if (!st)
		st = merge(of, n_parts, all, &n, why, n_why);
	if (!st)
		st = write_joined(partial, whole, all, n, &m->states, why, n_why);
	free(all);
	return st;
}

static enum status remove_dirs(const char *partial, const struct states_of_part *p, uint32_t from, uint32_t n_parts,
			       char *why, size_t n_why)
{
	char path[CHECKPOINT_MAX_PATH];
	enum status st = ST_OK;
	for (uint32_t i = from; i < n_parts && !st; i++)
		if (p[i].has_dir) {
			checkpoint_part_path(path, partial, i);
			st = checkpoint_remove(path, why, n_why);
		}
	return st;
}

enum status checkpoint_join_states(const char *partial, const struct checkpoint_dir *whole,
				   const struct states_of_part *p, uint32_t n_parts, uint32_t n_gathered,
				   struct manifest *m, char *why, size_t n_why)
{
	struct trainer_states *of;
	uint64_t bytes = 0;
	m->n_states = 0;
	m->states = (struct checkpoint_file){ 0 };
	for (uint32_t i = 0; i < n_parts; i++) {
		m->n_states += p[i].n;
		bytes += p[i].file.bytes < MAX_FILE ? p[i].file.bytes : MAX_FILE;
	}
	if (bytes > MAX_FILE) /* they are in memory together */
		return too_many(bytes, why, n_why);
	if (n_parts && m->n_states == p[0].n) { /* part 0's file is that of the checkpoint */
		m->states = p[0].file;
		return remove_dirs(partial, p, n_gathered, n_parts, why, n_why);
	}
	of = calloc(n_parts, sizeof(*of));
	enum status st = of ? join(partial, whole, p, n_parts, of, m, why, n_why) : ST_NO_MEMORY;
	for (uint32_t i = 0; of && i < n_parts; i++)
		trainer_states_fini(&of[i]);
	free(of);
	return st ? st : remove_dirs(partial, p, n_gathered, n_parts, why, n_why);
}

uint64_t checkpoint_states_bytes(const char *path)
{
	char name[CHECKPOINT_MAX_PATH + 32];
	struct stat s;
	snprintf(name, sizeof(name), "%s/" CHECKPOINT_STATES_NAME, path);
	return lstat(name, &s) == 0 && S_ISREG(s.st_mode) ? (uint64_t)s.st_size : 0;
}

void trainer_states_fini(struct trainer_states *s)
{
	free(s->file);
	free(s->state);
	*s = (struct trainer_states){ 0 };
}

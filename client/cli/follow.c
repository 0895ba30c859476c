/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the log files of ranks as they grow and hands out whole lines, also when a file was renamed because it
 * reached its limit. gaccctl's main thread. */
#include "follow.h"

#include "output.h"
#include "status_line.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 65536
#define PIECES_AT_ONCE 256	  /* of a log on another node: some MiB, then the other logs have their turn */
#define LINE_MAX_BYTES (1u << 20) /* longer ones are given out in parts */

void follower_init(struct follower *f, const char *dir, uint32_t rank, bool prefix, uint64_t tail)
{
	*f = (struct follower){ .rank = rank, .prefix = prefix, .tail = tail, .fd = -1 };
	snprintf(f->path, sizeof(f->path), "%s/worker_%u.log", dir, rank);
}

void follower_fini(struct follower *f)
{
	if (f->fd >= 0)
		close(f->fd);
	free(f->line);
	free(f->node);
	gacc_log_piece_free(f->last);
	f->fd = -1;
	f->line = NULL;
	f->node = NULL;
	f->last = NULL;
	f->client = NULL;
}

/* Line breaks in the n bytes before offset `end`; returns the offset after the (want + 1)-th last one, or -1 if there
 * are fewer; *found counts on. */
static off_t scan_back(int fd, off_t start, size_t n, uint64_t want, uint64_t *found)
{
	char piece[PIECE];
	ssize_t got = pread(fd, piece, n, start);

	for (ssize_t i = got; i > 0; i--)
		if (piece[i - 1] == '\n' && (*found)++ == want)
			return start + i;
	return -1;
}

/* Where the last `tail` lines begin. The break that ends the file belongs to its last line. */
static off_t tail_offset(int fd, uint64_t tail)
{
	off_t end = lseek(fd, 0, SEEK_END), at = -1;
	uint64_t found = 0;
	char last = '\n';

	if (end <= 0 || tail == FOLLOW_ALL)
		return 0;
	if (!tail)
		return end;
	if (pread(fd, &last, 1, end - 1) == 1 && last != '\n')
		found = 1; /* an unfinished line counts as one */
	while (end > 0 && at < 0) {
		size_t n = end < PIECE ? (size_t)end : PIECE;

		end -= (off_t)n;
		at = scan_back(fd, end, n, tail, &found);
	}
	return at < 0 ? 0 : at;
}

/* The log was rotated or emptied, and all that was in it has been read. */
static bool has_begun_anew(const struct follower *f)
{
	struct stat mine, now;

	if (fstat(f->fd, &mine) || stat(f->path, &now))
		return false;
	return mine.st_ino != now.st_ino || mine.st_dev != now.st_dev || now.st_size < lseek(f->fd, 0, SEEK_CUR);
}

/* Anybody may have put a FIFO in the log's place, which would wait for its writer: only a regular file is a log. */
static int open_log(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || (!fstat(fd, &st) && S_ISREG(st.st_mode)))
		return fd;
	close(fd);
	return -1;
}

static bool is_open(struct follower *f)
{
	if (f->fd >= 0)
		return true;
	f->fd = open_log(f->path);
	if (f->fd < 0)
		return false;
	lseek(f->fd, tail_offset(f->fd, f->tail), SEEK_SET);
	f->tail = FOLLOW_ALL;
	return true;
}

static void print_line(struct follower *f, FILE *out, const char *text, size_t n)
{
	status_line_clear();
	if (f->prefix)
		fprintf(out, "[rank%u] ", f->rank);
	if (f->escaped)
		put_text(out, text, n);
	else
		fwrite(text, 1, n, out);
	fputc('\n', out);
}

static bool keep(struct follower *f, const char *text, size_t n)
{
	if (f->n + n > f->room) {
		char *line = realloc(f->line, f->n + n);

		if (!line)
			return false;
		f->line = line;
		f->room = f->n + n;
	}
	memcpy(f->line + f->n, text, n);
	f->n += n;
	return true;
}

static void give_out(struct follower *f, FILE *out, const char *text, size_t n)
{
	while (n) {
		const char *end = memchr(text, '\n', n);
		size_t part = end ? (size_t)(end - text) : n;

		if (!keep(f, text, part))
			return;
		if (end || f->n >= LINE_MAX_BYTES) {
			print_line(f, out, f->line, f->n);
			f->n = 0;
		}
		part += end != NULL;
		text += part;
		n -= part;
	}
}

static bool begins_anew(struct follower *f)
{
	if (!has_begun_anew(f))
		return false;
	close(f->fd);
	f->fd = open_log(f->path);
	return f->fd >= 0;
}

/* ---- on another node ---- */

void follower_on_node(struct follower *f, gacc_client *client, uint64_t job, const char *node)
{
	f->node = strdup(node);
	f->client = f->node ? client : NULL;
	snprintf(f->job, sizeof(f->job), "%llu", (unsigned long long)job);
}

/* What comes next there; NULL: it cannot be asked for now. */
static gacc_log_piece *ask(struct follower *f)
{
	gacc_log_piece *piece = NULL;

	f->failed = gacc_job_log(f->client, f->job, f->rank, f->node, f->last, f->tail, &piece) != GACC_OK;
	return f->failed ? NULL : piece;
}

static void pump_there(struct follower *f, FILE *out)
{
	bool more = true;

	for (int i = 0; more && i < PIECES_AT_ONCE; i++) {
		gacc_log_piece *piece = ask(f);

		if (!piece)
			return;
		more = piece->more;
		give_out(f, out, piece->data, piece->n);
		if (!piece->file) {
			gacc_log_piece_free(piece);
			return;
		}
		gacc_log_piece_free(f->last);
		f->last = piece;
	}
}

static bool exists_there(struct follower *f)
{
	gacc_log_piece *piece = ask(f);
	bool there = piece && piece->file;

	gacc_log_piece_free(piece);
	return there;
}

/* ---- wherever it is ---- */

static void pump_here(struct follower *f, FILE *out)
{
	char piece[PIECE];
	ssize_t n;

	do {
		while ((n = read(f->fd, piece, sizeof(piece))) > 0)
			give_out(f, out, piece, (size_t)n);
	} while (!n && begins_anew(f));
}

void follower_pump(struct follower *f, FILE *out, bool at_end)
{
	if (!f->last && is_open(f))
		pump_here(f, out);
	else if (f->client)
		pump_there(f, out);
	else
		return;
	if (at_end && f->n) {
		print_line(f, out, f->line, f->n);
		f->n = 0;
	}
	fflush(out);
}

bool follower_exists(struct follower *f)
{
	return is_open(f) || (f->client && exists_there(f));
}

/* ---- lists of ranks ---- */

static bool next_rank(const char **list, uint32_t *out)
{
	unsigned long v;
	char *end;

	if (!isdigit((unsigned char)**list))
		return false;
	v = strtoul(*list, &end, 10);
	if (v > UINT32_MAX || (*end && *end != ','))
		return false;
	*list = *end ? end + 1 : end;
	*out = (uint32_t)v;
	return true;
}

bool rank_listed(const char *list, uint32_t rank)
{
	uint32_t v;

	if (!strcmp(list, "all"))
		return true;
	while (next_rank(&list, &v))
		if (v == rank)
			return true;
	return false;
}

bool rank_list_ok(const char *list, uint32_t limit)
{
	uint32_t v;

	if (!strcmp(list, "all") || !strcmp(list, "none"))
		return true;
	if (!*list)
		return false;
	while (*list)
		if (!next_rank(&list, &v) || v >= limit)
			return false;
	return true;
}

/* ---- changes ---- */

int follow_changes(const char *dir)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (fd >= 0 && inotify_add_watch(fd, dir, IN_MODIFY | IN_CREATE) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

void follow_changes_seen(int fd)
{
	char events[4096];

	while (read(fd, events, sizeof(events)) > 0)
		;
}

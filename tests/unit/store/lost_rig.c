/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of lost and altered journals share: lives that end without a word, and copies of a journal's files. */
#include "lost_rig.h"

#include <check.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const lost_part[LOST_PARTS] = { "", "-wal", "-shm", ".anchor" };

const char *lost_path(int p, const char *also)
{
	static char path[200];
	snprintf(path, sizeof(path), "%s%s%s", journal_path, lost_part[p], also);
	return path;
}

void lost_take(struct lost_image *m)
{
	for (int p = 0; p < LOST_PARTS; p++) {
		int fd = open(lost_path(p, ""), O_RDONLY);
		struct stat st;
		m->data[p] = NULL;
		m->n[p] = -1;
		if (fd < 0)
			continue;
		ck_assert_int_eq(fstat(fd, &st), 0);
		m->data[p] = malloc((size_t)st.st_size + 1);
		m->n[p] = read(fd, m->data[p], (size_t)st.st_size);
		ck_assert_int_eq(m->n[p], st.st_size);
		close(fd);
	}
}

void lost_put(const struct lost_image *m, int p)
{
	unlink(lost_path(p, ""));
	if (m->n[p] < 0)
		return;
	int fd = open(lost_path(p, ""), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ck_assert_int_ge(fd, 0);
	ssize_t used = m->n[p]; /* most of a log is zeros, laid out in advance */
	while (used > 0 && !m->data[p][used - 1])
		used--;
	ck_assert_int_eq(write(fd, m->data[p], (size_t)used), used);
	ck_assert_int_eq(ftruncate(fd, m->n[p]), 0);
	close(fd);
}

void lost_put_all(const struct lost_image *m)
{
	for (int p = 0; p < LOST_PARTS; p++)
		lost_put(m, p);
}

void lost_free(struct lost_image *m)
{
	for (int p = 0; p < LOST_PARTS; p++)
		free(m->data[p]);
}

void lost_live_and_die(int kept, bool moved, uint64_t windows_from, uint64_t windows_to)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		struct journal *j = NULL;
		uint64_t term;
		bool ok =
			!(kept < 0 ? journal_open(journal_path, &j) : journal_open_kept(journal_path, dup(kept), &j)) &&
			!journal_take_term(j, &term);
		for (uint64_t id = 1; id <= 3 && ok && windows_from == 0; id++)
			ok = !write1(j, term, job(id));
		ok = ok && (windows_from || !write1(j, term, end(2)));
		for (uint64_t w = windows_from; w < windows_to && ok; w++)
			ok = !write1(j, term, commit(1, 1, w, term));
		if (ok && moved)
			journal_close(j);
		_exit(ok ? 0 : 1);
	}
	int ws;
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(ws, 0);
}

enum status lost_open_again(int kept, bool *whole)
{
	struct journal *j = NULL;
	enum status st = kept < 0 ? journal_open(journal_path, &j) : journal_open_kept(journal_path, dup(kept), &j);
	*whole = false;
	if (st)
		return st;
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	*whole = b[0].id == 3 && b[1].next_window == WINDOWS && !b[1].ended && b[2].ended &&
		 windows(j, 1, UINT64_MAX).n == WINDOWS;
	journal_close(j);
	return st;
}

void lost_add_a_column(void)
{
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db,
				      "ALTER TABLE windows ADD COLUMN newer INTEGER DEFAULT 5;"
				      "UPDATE meta SET value = value - 1 WHERE key = 'sealed'",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	sqlite3_close(db);
}

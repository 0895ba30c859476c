/* SPDX-License-Identifier: Apache-2.0 */
/* What the attach socket's caller is told when connections end, whatever their number and order. */
#include "host/attach.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#define CROWD 100

static char dir[SCRATCH_PATH], path[96];
static uv_loop_t loop;
static struct attach *server;
static uint64_t last_conn;
static struct {
	uint64_t conn, rank;
	bool noted;
} closed[CROWD + 1];
static int n_closed;

static void on_request(void *arg, uint64_t conn, const struct listen_peer *peer, const void *bytes, size_t n)
{
	last_conn = conn;
}

static void on_refused(void *arg, uint64_t conn, enum status st, const char *why)
{
}

static void on_closed(void *arg, uint64_t conn, const struct attach_note *note)
{
	ck_assert_int_lt(n_closed, CROWD + 1);
	closed[n_closed].conn = conn;
	closed[n_closed].noted = note != NULL;
	closed[n_closed].rank = note ? note->rank : 0;
	if (note)
		ck_assert(note->job == 1000 + conn && note->generation == 2000 + conn);
	n_closed++;
}

static void spin(void)
{
	for (int i = 0; i < 5; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
}

static void setup(void)
{
	static const struct attach_events events = { on_request, on_refused, on_closed };
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/attach", dir);
	struct listen_opts o = { .path = path, .mode = 0600, .max_per_uid = CROWD + 1 };
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(attach_open(&loop, &o, &events, NULL, &server), ST_OK);
	n_closed = 0;
}

static void teardown(void)
{
	attach_close(server);
	spin();
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* A connection that has asked; its number. */
static int ask(uint64_t *out_conn)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	strcpy(at.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(send(fd, "map", 3, 0), 3);
	uint64_t before = last_conn;
	while (last_conn == before)
		spin();
	*out_conn = last_conn;
	return fd;
}

static void note(uint64_t conn, uint32_t rank)
{
	attach_set_note(server, conn,
			&(struct attach_note){ .job = 1000 + conn, .generation = 2000 + conn, .rank = rank });
}

static void end(int fd)
{
	int before = n_closed;
	close(fd);
	while (n_closed == before)
		spin();
	ck_assert_int_eq(n_closed, before + 1);
}

START_TEST(each_has_its_own_note)
{
	uint64_t conn[CROWD];
	int fd[CROWD];
	for (int i = 0; i < CROWD; i++) {
		fd[i] = ask(&conn[i]);
		note(conn[i], (uint32_t)i);
	}
	for (int i = 0; i < CROWD; i++) { /* 7 and 100 have no common divisor: each once, in no order */
		int which = (i * 7 + 3) % CROWD;
		end(fd[which]);
		ck_assert(closed[i].noted && closed[i].conn == conn[which]);
		ck_assert_uint_eq(closed[i].rank, (uint64_t)which);
		ck_assert_int_eq(attach_reply(server, conn[which], "x", 1, NULL, 0), ST_SESSION_UNKNOWN);
	}
}
END_TEST

START_TEST(the_last_note_counts_and_none_is_none)
{
	uint64_t conn[3];
	int fd[3];
	for (int i = 0; i < 3; i++)
		fd[i] = ask(&conn[i]);
	note(conn[0], 5);
	note(conn[0], 6);
	note(conn[2], 0);
	note(conn[2] + 1, 9); /* nobody's */
	end(fd[1]);
	end(fd[0]);
	end(fd[2]);
	ck_assert(!closed[0].noted && closed[1].noted && closed[2].noted);
	ck_assert(closed[1].rank == 6 && closed[2].rank == 0);
	note(conn[1], 7); /* it is over */
	fd[0] = ask(&conn[0]);
	end(fd[0]);
	ck_assert(!closed[3].noted);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0);
	Suite *s = suite_create("attach_notes");
	TCase *c = tcase_create("attach_notes");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, each_has_its_own_note);
	tcase_add_test(c, the_last_note_counts_and_none_is_none);
	return suite_run(s);
}

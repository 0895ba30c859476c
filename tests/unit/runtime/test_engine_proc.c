/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccd takes for an answer of an engine, and what for nonsense. The engine is this program with `--engine`. */
#include "runtime/engine_proc.h"

#include "base/packet.h"
#include "support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

/* ---- an engine that answers as it is told ---- */

/* Answers each command with its op; bytes of answer and tail, what n_tail says of it, how many descriptors come with it
 * (slot) and its status (micro) are in the command. To ENGINE_ABORT it answers, and then hangs. */
static int fake_engine(void)
{
	static struct {
		struct engine_answer a;
		unsigned char tail[2 * ENGINE_MAX_TAIL];
	} p;
	memset(p.tail, 7, sizeof(p.tail));
	for (;;) {
		struct engine_command c;
		int fds[1], n_fds = 1, n = packet_recv(ENGINE_CHANNEL_FD, &c, sizeof(c), fds, &n_fds);
		if (n == -EAGAIN) {
			poll(&(struct pollfd){ .fd = ENGINE_CHANNEL_FD, .events = POLLIN }, 1, -1);
			continue;
		}
		if (n <= 0 || c.op == ENGINE_STOP)
			return 0;
		int out[ENGINE_MAX_FDS];
		for (uint32_t i = 0; i < c.slot; i++)
			out[i] = STDERR_FILENO;
		p.a = (struct engine_answer){
			.op = c.op, .id = c.id, .status = c.micro, .n_tail = (uint32_t)c.bytes, .n_device = c.slot
		};
		packet_send(ENGINE_CHANNEL_FD, &p, (uint32_t)(sizeof(p.a) + c.offset), NULL, 0, out, (int)c.slot);
		while (c.op == ENGINE_ABORT)
			pause();
	}
}

/* ---- gaccd ---- */

static uv_loop_t loop;
static struct engine_proc *proc;
static uint32_t end_ms = 3600000;
static struct {
	unsigned answers, exits, descriptors;
	struct engine_answer last;
	unsigned char tail[ENGINE_MAX_TAIL];
	char why[160];
} heard;

static void on_answer(void *arg, const struct engine_answer *a, const void *tail)
{
	heard.answers++;
	heard.last = *a;
	memcpy(heard.tail, tail, a->n_tail);
}

static void on_descriptors(void *arg, const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		ck_assert_int_eq(close(fds[i]), 0);
	heard.descriptors += (unsigned)n;
}

static void on_exited(void *arg, const struct engine_exit *e)
{
	heard.exits++;
	proc = NULL;
	snprintf(heard.why, sizeof(heard.why), "%s", e->why);
}

static void setup(void)
{
	static const struct engine_events events = { .answer = on_answer,
						     .descriptors = on_descriptors,
						     .exited = on_exited };
	char why[200];
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	const struct engine_start s = {
		.op = ENGINE_START, .job_id = 7, .fds = &fd, .n_fds = 1, .end_ms = end_ms, .kernels = ""
	};
	memset(&heard, 0, sizeof(heard));
	uv_loop_init(&loop);
	ck_assert_msg(!engine_proc_start(&loop, &s, &events, NULL, &proc, why, sizeof(why)), "%s", why);
	while (!heard.answers)
		uv_run(&loop, UV_RUN_ONCE);
	ck_assert_uint_eq(heard.last.op, ENGINE_START);
	close(fd);
}

static void teardown(void)
{
	engine_proc_close(proc);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* The engine sends `bytes` more than an answer has, of which n_tail are the tail as it says. */
static void ask(enum engine_op op, int64_t bytes, uint32_t n_tail)
{
	const struct engine_command c = { .op = op, .id = 5, .offset = (uint64_t)bytes, .bytes = n_tail };
	unsigned before = heard.answers;
	ck_assert(engine_proc_send(proc, &c, NULL, NULL, 0));
	while (heard.answers == before && !heard.exits)
		uv_run(&loop, UV_RUN_ONCE);
}

START_TEST(an_address_comes_behind_the_answer)
{
	const uint32_t sizes[] = { 1, 777, ENGINE_MAX_TAIL };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		ask(ENGINE_JOIN, sizes[i], sizes[i]);
		ck_assert(!heard.exits && heard.last.op == ENGINE_JOIN && heard.last.n_tail == sizes[i]);
		for (uint32_t b = 0; b < sizes[i]; b++)
			ck_assert_uint_eq(heard.tail[b], 7);
		memset(heard.tail, 0, sizeof(heard.tail));
	}
	ask(ENGINE_JOIN, 0, 0); /* it was refused */
	ask(ENGINE_GO, 0, 0);
	ck_assert(!heard.exits && heard.last.op == ENGINE_GO);
}
END_TEST

static const struct {
	enum engine_op op;
	int64_t bytes;
	uint32_t n_tail;
} nonsense[] = {
	{ ENGINE_JOIN, 4, 5 },
	{ ENGINE_JOIN, 4, 3 },
	{ ENGINE_JOIN, 0, 4 },
	{ ENGINE_JOIN, 4, 0 },
	{ ENGINE_GO, 4, 4 }, /* has none */
	{ ENGINE_JOIN, -1, 0 },
	{ ENGINE_JOIN, -(int64_t)sizeof(struct engine_answer) + 1, 0 },
	{ ENGINE_JOIN, 4, UINT32_MAX },
	{ ENGINE_JOIN, ENGINE_MAX_TAIL + 1, ENGINE_MAX_TAIL + 1 },
};

START_TEST(nonsense_is_the_end_of_the_engine)
{
	ask(nonsense[_i].op, nonsense[_i].bytes, nonsense[_i].n_tail);
	ck_assert_uint_eq(heard.answers, 1);
	ck_assert_uint_eq(heard.exits, 1);
	ck_assert_str_eq(heard.why, "the engine's answer cannot be understood");
}
END_TEST

/* Open descriptors of this process. */
static int n_open(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void ask_for(enum engine_op op, uint32_t n, enum status st)
{
	const struct engine_command c = { .op = op, .slot = n, .micro = st };
	unsigned before = heard.answers;
	ck_assert(engine_proc_send(proc, &c, NULL, NULL, 0));
	while (heard.answers == before && !heard.exits)
		uv_run(&loop, UV_RUN_ONCE);
}

START_TEST(memory_comes_with_the_answer)
{
	const int before = n_open();
	ask_for(ENGINE_ALLOCATE, 1, ST_OK);
	ask_for(ENGINE_ALLOCATE, ENGINE_MAX_FDS, ST_OK);
	ask_for(ENGINE_ALLOCATE, 0, ST_NO_MEMORY);
	ck_assert(!heard.exits && heard.descriptors == 1 + ENGINE_MAX_FDS);
	ck_assert_int_eq(n_open(), before);
}
END_TEST

/* With another answer, with one that is an error. */
START_TEST(memory_that_nobody_has_asked_for)
{
	const int before = n_open();
	ask_for(_i ? ENGINE_ALLOCATE : ENGINE_GO, 3, _i ? ST_NO_MEMORY : ST_OK);
	ck_assert_uint_eq(heard.exits, 1);
	ck_assert_uint_eq(heard.descriptors, 0);
	ck_assert_int_lt(n_open(), before); /* the engine's socket is closed, and nothing is left */
}
END_TEST

/* Nobody looks at it any more; it must not stay for ever with its memory, nor keep the loop from ending. */
START_TEST(one_that_hangs_is_killed_when_it_is_let_go)
{
	const int before = n_open();
	ask_for(ENGINE_ABORT, 0, ST_OK);
	ck_assert(!heard.exits);
	const int64_t pid = engine_proc_pid(proc);
	engine_proc_close(proc);
	proc = NULL;
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert(kill((pid_t)pid, 0) && errno == ESRCH);
	ck_assert_uint_eq(heard.exits, 0);
	ck_assert_int_lt(n_open(), before);
}
END_TEST

static void setup_short(void)
{
	end_ms = 100;
	setup();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--engine"))
		return fake_engine();
	Suite *s = suite_create("engine_proc");
	TCase *t = tcase_create("answers");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, an_address_comes_behind_the_answer);
	tcase_add_loop_test(t, nonsense_is_the_end_of_the_engine, 0, sizeof(nonsense) / sizeof(*nonsense));
	tcase_add_test(t, memory_comes_with_the_answer);
	tcase_add_loop_test(t, memory_that_nobody_has_asked_for, 0, 2);
	suite_add_tcase(s, t);
	t = tcase_create("end");
	tcase_add_checked_fixture(t, setup_short, teardown);
	tcase_add_test(t, one_that_hangs_is_killed_when_it_is_let_go);
	suite_add_tcase(s, t);
	return suite_run(s);
}

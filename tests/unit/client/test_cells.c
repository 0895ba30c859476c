/* SPDX-License-Identifier: Apache-2.0 */
/* The library's side of a mailbox, against gaccd's (mailbox_make) and a process that serves it with the engine's cells,
 * queue and record (support/box.h). */
#include "lib/cells.h"

#include "lib/clock.h"
#include "support/box.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

Suite *cells_open_suite(void);

#define TENSORS 70
#define MICRO 12
#define LONG_MS 20000
#define SHORT_MS 60

static const unsigned char bits[(TENSORS + 7) / 8] = { 1, 2, 3, 0xff, 5, 6, 7, 8, 0x3f };

static struct box_world world;
static struct cells cells;
static struct box_cells engine; /* of this process, where no other serves */
static int line[2];		/* attach socket: the trainer's end and gaccd's */
static pid_t server;

static struct cells_owner owner(void)
{
	return (struct cells_owner){ .job = 7, .sgen = 1, .rank = 0, .slots = world.slots, .n_tensors = TENSORS };
}

static enum status open_cells(struct cells *out, int socket, char *why, size_t n)
{
	struct cells_fds fds = { dup(world.fds[0].memory), dup(world.fds[0].submit), dup(world.fds[0].waits) };
	struct cells_owner o = owner();

	return cells_open(out, &fds, &o, socket, why, n);
}

static void setup(void)
{
	char why[160] = "";

	box_world_make(&world, 1, MICRO, TENSORS);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
	ck_assert_msg(open_cells(&cells, line[0], why, sizeof(why)) == ST_OK, "%s", why);
	box_take_over(&engine, cells.mem, TENSORS, world.slots);
	server = 0;
}

static void serve(void)
{
	server = box_spawn(&world);
}

static void teardown(void)
{
	cells_close(&cells);
	if (server)
		box_kill(server);
	box_world_free(&world);
	close(line[0]);
	close(line[1]);
}

static struct gacc_box_request push_of(uint32_t micro)
{
	return (struct gacc_box_request){
		.kind = GACC_BOX_PUSH, .micro = micro, .slot = micro % 2, .weight = 1 + micro, .loss = 0.5
	};
}

/* One answer, written by the engine's own code in this process. */
static void answer(uint64_t seq)
{
	struct box_request r[GACC_BOX_CELLS];
	uint32_t unready, n = box_look_all(&engine, r, &unready);

	for (uint32_t i = 0; i < n; i++) {
		free(r[i].present);
		r[i].present = NULL;
	}
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		if (engine.open[c] == seq)
			box_answer(&engine, c, seq, &(struct gacc_box_answer){ .result = 1 });
}

static void bell(void)
{
	const uint64_t one = 1;

	ck_assert_int_eq(write(world.fds[0].answer, &one, sizeof(one)), sizeof(one));
}

/* ---- pushes ---- */

START_TEST(pushes_are_counted)
{
	struct gacc_box_answer a;

	serve();
	for (uint32_t m = 0; m < MICRO; m++) {
		uint64_t seq = cells_publish(&cells, push_of(m), NULL);

		ck_assert_uint_eq(seq, m + 1);
		ck_assert(cells_await(&cells, seq, LONG_MS, &a));
		ck_assert(a.status == ST_OK && a.result == 1 && a.counted == m + 1 && a.micro_size == MICRO);
		ck_assert(!cells_await(&cells, seq, LONG_MS, &a)); /* an answer is read once */
	}
}
END_TEST

/* What is in a cell is what the engine's own code takes out of it. */
START_TEST(every_field_arrives)
{
	struct gacc_box_request q = { .kind = GACC_BOX_PUSH,
				      .flags = GACC_BOX_ZERO_AFTER,
				      .window = UINT64_C(0x123456789),
				      .micro = 9,
				      .slot = 1,
				      .weight = 2.5,
				      .loss = -0.75,
				      .data_key = UINT64_C(0xfedcba9876543210),
				      .loss_scale = 1024,
				      .n_present = sizeof(bits),
				      .lr = 0.125 };
	struct box_request r;
	uint64_t rung;

	q.seq = cells_publish(&cells, q, bits);
	ck_assert_int_eq(box_look(&engine, 0, &r), BOX_TAKEN);
	q.present_check = box_crc(bits, sizeof(bits));
	q.check = box_crc(&q, GACC_BOX_REQUEST_CHECKED);
	ck_assert_mem_eq(&r.q, &q, sizeof(q));
	ck_assert_mem_eq(r.present, bits, sizeof(bits));
	free(r.present);
	ck_assert_int_eq(read(world.fds[0].submit, &rung, sizeof(rung)), sizeof(rung));
	ck_assert_uint_eq(rung, 1);
}
END_TEST

START_TEST(a_refusal_is_an_answer)
{
	struct gacc_box_answer a;

	serve();
	ck_assert(cells_await(&cells, cells_publish(&cells, push_of(1), NULL), LONG_MS, &a));
	ck_assert_uint_ne(a.status, ST_OK);
	ck_assert(cells_usable(&cells));
}
END_TEST

START_TEST(all_cells_at_once)
{
	struct gacc_box_answer a;
	uint64_t seq[GACC_BOX_CELLS];

	for (uint32_t m = 0; m < GACC_BOX_CELLS; m++) {
		struct gacc_box_request q = push_of(m);

		ck_assert(cells_usable(&cells));
		q.slot = m;
		q.n_present = m % 2 ? sizeof(bits) : 0; /* each in the place of its own cell */
		seq[m] = cells_publish(&cells, q, bits);
	}
	ck_assert(!cells_usable(&cells));
	world.slots = GACC_BOX_CELLS;
	serve();
	for (uint32_t m = GACC_BOX_CELLS; m-- > 0;) {
		ck_assert(cells_await(&cells, seq[m], LONG_MS, &a));
		ck_assert(a.status == ST_OK && a.counted >= m + 1);
		ck_assert(cells_usable(&cells));
	}
}
END_TEST

START_TEST(a_successor_answers)
{
	struct gacc_box_answer a;
	uint64_t seq;

	serve();
	box_kill(server);
	seq = cells_publish(&cells, push_of(0), NULL); /* nobody hears the bell */
	serve();
	ck_assert(cells_await(&cells, seq, LONG_MS, &a) && a.status == ST_OK);
}
END_TEST

#define ROUNDS 5000

static atomic_int asked; /* the round whose request is published */

static void *answer_and_close(void *unused)
{
	(void)unused;
	for (int round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&asked) < round)
			bell(); /* the waiter looks again and again */
		for (int i = 0; i < round % 16; i++)
			bell();
		answer((uint64_t)round);
		box_set_closed(&engine);
		bell();
	}
	return NULL;
}

/* Whatever moment a mailbox is closed at: what was answered before is answered. */
START_TEST(an_answer_before_closed_is_read)
{
	struct gacc_box_answer a;
	pthread_t thread;

	atomic_store(&asked, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, answer_and_close, NULL), 0);
	for (int round = 1; round <= ROUNDS; round++) {
		uint64_t seq;

		cells.mem->header.closed = 0;
		cells.closed = false;
		seq = cells_publish(&cells, push_of(0), NULL);
		atomic_store(&asked, round);
		ck_assert_msg(cells_await(&cells, seq, LONG_MS, &a), "round %d", round);
		while (!__atomic_load_n(&cells.mem->header.closed, __ATOMIC_ACQUIRE))
			; /* the other thread is done with this round */
	}
	pthread_join(thread, NULL);
}
END_TEST

/* ---- when to go to RPC ---- */

START_TEST(no_answer_in_time)
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);
	int64_t start = now_ms();

	ck_assert(!cells_await(&cells, seq, SHORT_MS, &a));
	ck_assert_int_ge(now_ms() - start, SHORT_MS);
	ck_assert_int_lt(now_ms() - start, LONG_MS);
	ck_assert(!cells_usable(&cells)); /* what follows does not wait again */
	answer(seq);
	ck_assert(cells_usable(&cells));
	ck_assert_uint_eq(cells_publish(&cells, push_of(1), NULL), seq + 1);
	ck_assert_uint_eq(cells.mem->request[0].seq, seq + 1); /* and its cell is free */
	ck_assert(cells_usable(&cells));
}
END_TEST

START_TEST(an_answer_that_was_there_needs_no_time)
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);

	answer(seq);
	ck_assert(cells_await(&cells, seq, 0, &a));
}
END_TEST

START_TEST(closed_is_for_good)
{
	struct gacc_box_answer a;
	uint64_t first = cells_publish(&cells, push_of(0), NULL), second = cells_publish(&cells, push_of(1), NULL);

	answer(first);
	box_set_closed(&engine);
	ck_assert(!cells_await(&cells, second, LONG_MS, &a));
	ck_assert(cells_await(&cells, first, LONG_MS, &a)); /* it was answered before */
	ck_assert(!cells_usable(&cells));
	cells.mem->header.closed = 0;
	ck_assert(!cells_usable(&cells));
}
END_TEST

static void *close_soon(void *arg)
{
	sleep_ms(SHORT_MS);
	box_set_closed(&engine);
	bell();
	return NULL;
}

static void *hang_up_soon(void *arg)
{
	sleep_ms(SHORT_MS);
	shutdown(line[1], SHUT_RDWR);
	return NULL;
}

static void wait_is_ended_by(void *(*what)(void *))
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);
	int64_t start = now_ms();
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, what, NULL), 0);
	ck_assert(!cells_await(&cells, seq, LONG_MS, &a));
	ck_assert_int_ge(now_ms() - start, SHORT_MS - 1);
	ck_assert_int_lt(now_ms() - start, LONG_MS);
	pthread_join(thread, NULL);
}

static void *answer_later(void *seq)
{
	sleep_ms(3 * SHORT_MS);
	answer(*(uint64_t *)seq);
	bell();
	return NULL;
}

/* Waits for an answer that comes after 3 * SHORT_MS, or never; says how long that took. */
static int64_t wait_for(int64_t limit_ms, bool answered)
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);
	int64_t start = now_ms();
	pthread_t thread;

	if (answered)
		ck_assert_int_eq(pthread_create(&thread, NULL, answer_later, &seq), 0);
	ck_assert_int_eq(cells_await(&cells, seq, limit_ms, &a), answered);
	start = now_ms() - start;
	if (answered)
		pthread_join(thread, NULL);
	else
		answer(seq);
	ck_assert(cells_usable(&cells)); /* takes the late one */
	return start;
}

/* The timer of one sleep is still set in the next, which must end neither by it nor without it. In the second round
 * there is none. */
START_TEST(each_wait_has_its_own_limit)
{
	if (_i) {
		close(cells.timer);
		cells.timer = -1;
	}
	ck_assert_int_lt(wait_for(LONG_MS, true), LONG_MS);
	for (int i = 0; i < 2; i++) {
		int64_t took = wait_for(SHORT_MS, false); /* earlier than the one that is set */

		ck_assert_int_ge(took, SHORT_MS);
		ck_assert_int_lt(took, LONG_MS / 2);
	}
	wait_for(4 * SHORT_MS, true); /* leaves one that is about to ring */
	ck_assert_int_ge(wait_for(5 * SHORT_MS, false), 5 * SHORT_MS);
	ck_assert_int_lt(wait_for(LONG_MS, true), LONG_MS);
}
END_TEST

static int64_t rings_in_ms(void)
{
	struct itimerspec t;

	ck_assert_int_eq(timerfd_gettime(cells.timer, &t), 0);
	return t.it_value.tv_sec * 1000 + t.it_value.tv_nsec / 1000000;
}

/* It is not set anew for each sleep: that is what it saves. */
START_TEST(the_timer_of_an_earlier_limit_stays)
{
	wait_for(LONG_MS, true);
	int64_t before = rings_in_ms();
	wait_for(LONG_MS, true);
	ck_assert_int_gt(before, 0);
	ck_assert_int_le(rings_in_ms(), before - 3 * SHORT_MS + 1);
}
END_TEST

START_TEST(closed_ends_a_wait)
{
	wait_is_ended_by(close_soon);
}
END_TEST

START_TEST(a_hang_up_ends_a_wait)
{
	wait_is_ended_by(hang_up_soon);
}
END_TEST

/* Bells without answers neither end a wait nor make it longer. */
static void *ring_often(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		bell();
	return NULL;
}

START_TEST(bells_alone_say_nothing)
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);
	int64_t start = now_ms();
	pthread_t thread;
	int stop = 0;

	ck_assert_int_eq(pthread_create(&thread, NULL, ring_often, &stop), 0);
	ck_assert(!cells_await(&cells, seq, SHORT_MS, &a));
	ck_assert_int_ge(now_ms() - start, SHORT_MS);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}
END_TEST

START_TEST(a_torn_answer_is_none)
{
	struct gacc_box_answer a;
	uint64_t seq = cells_publish(&cells, push_of(0), NULL);
	unsigned char *at = (unsigned char *)&cells.mem->answer[0];

	answer(seq);
	for (size_t i = 0; i < sizeof(a); i++) {
		at[i] ^= 1;
		ck_assert_msg(!cells_await(&cells, seq, 0, &a), "byte %zu", i);
		at[i] ^= 1;
	}
	ck_assert(cells_await(&cells, seq, 0, &a));
}
END_TEST

START_TEST(a_step_block_is_whole_and_of_its_window)
{
	struct gacc_box_step s;
	unsigned char *at = (unsigned char *)&cells.mem->step;

	ck_assert(!cells_step(&cells, 0, &s)); /* nobody has written it */
	box_write_step(&engine, &(struct gacc_box_step){ .window = 5, .total_weight = 3 });
	ck_assert(cells_step(&cells, 5, &s) && s.total_weight == 3);
	ck_assert(!cells_step(&cells, 4, &s) && !cells_step(&cells, 6, &s));
	for (size_t i = 0; i < sizeof(s); i++) {
		at[i] ^= 1;
		ck_assert_msg(!cells_step(&cells, 5, &s), "byte %zu", i);
		at[i] ^= 1;
	}
}
END_TEST

/* ---- opening ---- */

/* Another process of the session has used the mailbox: numbers and open cells stay what they are. */
START_TEST(a_used_mailbox_goes_on)
{
	struct gacc_box_answer a;
	struct cells again;
	char why[160];
	int socket = dup(line[0]);
	uint64_t first = cells_publish(&cells, push_of(0), NULL), second = cells_publish(&cells, push_of(1), NULL);
	uint64_t third;

	answer(first);
	ck_assert_int_eq(open_cells(&again, socket, why, sizeof(why)), ST_OK);
	ck_assert(!cells_usable(&again));
	answer(second);
	ck_assert(cells_usable(&again));
	third = cells_publish(&again, push_of(2), NULL);
	ck_assert_uint_eq(third, second + 1);
	answer(third);
	ck_assert(cells_await(&again, third, 0, &a));
	cells_close(&again);
	close(socket);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client cells");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, pushes_are_counted);
	tcase_add_test(tc, every_field_arrives);
	tcase_add_test(tc, a_refusal_is_an_answer);
	tcase_add_test(tc, all_cells_at_once);
	tcase_add_test(tc, a_successor_answers);
	tcase_add_test(tc, an_answer_before_closed_is_read);
	tcase_add_test(tc, no_answer_in_time);
	tcase_add_test(tc, an_answer_that_was_there_needs_no_time);
	tcase_add_test(tc, closed_is_for_good);
	tcase_add_loop_test(tc, each_wait_has_its_own_limit, 0, 2);
	tcase_add_test(tc, the_timer_of_an_earlier_limit_stays);
	tcase_add_test(tc, closed_ends_a_wait);
	tcase_add_test(tc, a_hang_up_ends_a_wait);
	tcase_add_test(tc, bells_alone_say_nothing);
	tcase_add_test(tc, a_torn_answer_is_none);
	tcase_add_test(tc, a_step_block_is_whole_and_of_its_window);
	tcase_add_test(tc, a_used_mailbox_goes_on);
	suite_add_tcase(suite, tc);
	return suite_run(suite, cells_open_suite());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ready words over sessions: mailboxes as gaccd makes them (support/box.h), which take turns beneath one address, while
 * another thread stores and rings. */
#include "lib/words.h"

#include "lib/clock.h"
#include "support/box.h"
#include "support/suite.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SESSIONS 3

static struct box_world world;
static struct cells cells[SESSIONS];
static struct words words;
static int line[2]; /* the attach socket of all */

static void setup(void)
{
	char why[160] = "";

	box_world_make(&world, SESSIONS, 1, 1);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
	for (uint32_t i = 0; i < SESSIONS; i++) {
		struct cells_fds fds = { dup(world.fds[i].memory), dup(world.fds[i].submit), dup(world.fds[i].waits) };
		struct cells_owner o = { .job = 7, .sgen = 1, .rank = i, .slots = world.slots, .n_tensors = 1 };

		ck_assert_msg(cells_open(&cells[i], &fds, &o, line[0], why, sizeof(why)) == ST_OK, "%s", why);
	}
	words = (struct words){ 0 };
}

static void teardown(void)
{
	words_close(&words);
	for (int i = 0; i < SESSIONS; i++)
		cells_close(&cells[i]);
	box_world_free(&world);
	close(line[0]);
	close(line[1]);
}

static void open_words(const struct cells *c)
{
	ck_assert_int_eq(words_open(&words, c), ST_OK);
}

static void store(uint64_t value)
{
	__atomic_store_n(&words.at[2].value, value, __ATOMIC_RELEASE);
}

/* What has rung at this mailbox's engine. */
static uint64_t rung(int session)
{
	uint64_t n = 0;

	return read(world.fds[session].submit, &n, sizeof(n)) == (ssize_t)sizeof(n) ? n : 0;
}

static void ring(void)
{
	const uint64_t one = 1;

	ck_assert_int_eq(write(words.bell, &one, sizeof(one)), sizeof(one));
}

/* ---- one thread ---- */

START_TEST(words_lie_in_the_mailbox)
{
	open_words(&cells[0]);
	ck_assert_uint_eq(words.sgen, 1);
	ck_assert_uint_eq((uintptr_t)words.at % 4096, 0);
	ck_assert(words_reached(&words, 3, 0) && !words_reached(&words, 3, 1));
	store(5);
	ck_assert_uint_eq(cells[0].mem->ready[2].value, 5);
	ck_assert(words_reached(&words, 3, 5) && !words_reached(&words, 3, 6) && !words_reached(&words, 4, 1));
	ck_assert_uint_eq(rung(0), 0);
	ring();
	ck_assert_uint_eq(rung(0), 1);
}
END_TEST

/* Before there is a mailbox, after it, and with one again: same address, same values, the bell of the one in force. */
START_TEST(values_outlive_sessions)
{
	struct gacc_box_ready *at;
	int bell;

	open_words(&(struct cells){ 0 });
	at = words.at;
	bell = words.bell;
	ck_assert(words.sgen == 0 && words.page == 1);
	store(41);
	ring();
	for (uint64_t i = 0; i < 4; i++) {
		words_follow(&words, &cells[i % 2]);
		ck_assert(words.at == at && words.bell == bell && words.sgen == 1 && words.page == 2 + i);
		ck_assert_uint_eq(cells[i % 2].mem->ready[2].value, 41 + i);
		store(42 + i);
		ck_assert_uint_eq(cells[i % 2].mem->ready[2].value, 42 + i);
		ring();
		ck_assert(rung(i % 2) == 1 && rung(1 - i % 2) == 0);
	}
	words_follow(&words, &(struct cells){ 0 }); /* a session without one: the words stay where they are */
	ck_assert(words.at == at && words_reached(&words, 3, 45));
}
END_TEST

/* A device goes on storing to the page that it knows, until it is told of the next. */
START_TEST(stores_to_the_page_before_are_seen)
{
	open_words(&cells[0]);
	words_follow(&words, &cells[1]);
	cells[0].mem->ready[2].value = 9;
	ck_assert(words_reached(&words, 3, 9));
	ck_assert_uint_eq(cells[1].mem->ready[2].value, 9); /* and by the engine from now on */
	cells[0].mem->ready[2].value = 8;
	ck_assert(words_reached(&words, 3, 9));
	ck_assert_uint_eq(cells[1].mem->ready[2].value, 9); /* words only go up */
}
END_TEST

/* However many sessions ago a page was registered: what is stored there counts, as long as the words are open. */
START_TEST(stores_to_any_earlier_page_are_seen)
{
	open_words(&cells[0]);
	words_follow(&words, &cells[1]);
	words_follow(&words, &cells[2]);
	cells[0].mem->ready[2].value = 9;
	cells[1].mem->ready[2].value = 7;
	cells[1].mem->ready[3].value = 5;
	ck_assert(words_reached(&words, 3, 9) && words_reached(&words, 4, 5) && !words_reached(&words, 4, 6));
	ck_assert(cells[2].mem->ready[2].value == 9 && cells[2].mem->ready[3].value == 5);
	words_follow(&words,
		     &cells[0]); /* the page of two sessions ago comes back: what is stored there counts at once */
	ck_assert(words_reached(&words, 3, 9) && words_reached(&words, 4, 5));
}
END_TEST

/* Pages are kept, so their number has a limit. Behind it the words stay where they are, and pushes go by RPC. */
START_TEST(after_many_sessions_the_words_stay)
{
	const struct gacc_box_ready *last;
	uint64_t page;

	open_words(&cells[0]);
	for (uint32_t i = 1; i < WORDS_EARLIER_MAX; i++)
		words_follow(&words, &cells[i % 2]);
	last = cells[(WORDS_EARLIER_MAX - 1) % 2].mem->ready;
	page = words.page;
	ck_assert(words.sgen == 1 && page == 1 + WORDS_EARLIER_MAX);
	words_follow(&words, &cells[2]);
	ck_assert(words.sgen == 0 && words.page == page);
	store(77);
	ck_assert(last[2].value == 77 && words_reached(&words, 3, 77));
	cells[WORDS_EARLIER_MAX % 2].mem->ready[2].value = 78; /* and the others are still looked at */
	ck_assert(words_reached(&words, 3, 78) && cells[2].mem->ready[2].value == 0);
}
END_TEST

START_TEST(waiting_has_an_end)
{
	int64_t start = now_ms();

	open_words(&cells[0]);
	ck_assert(!words_await(&words, 3, 1, 50));
	ck_assert_int_ge(now_ms() - start, 50);
	ck_assert(!words_await(&words, 3, 1, -5));
	store(1);
	ck_assert(words_await(&words, 3, 1, -5));
}
END_TEST

/* ---- two threads ---- */

#define ROUNDS 3000

static atomic_int go, stored;

static void *store_each_round(void *unused)
{
	(void)unused;
	for (int round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&go) < round)
			;
		for (volatile int i = 0; i < round % 64 * 16; i++) /* at any moment of the exchange */
			;
		store((uint64_t)round);
		atomic_store(&stored, round);
	}
	return NULL;
}

/* Whenever a value is stored while the page is exchanged, it is in the new page afterwards. */
START_TEST(nothing_is_lost_while_a_session_is_replaced)
{
	pthread_t thread;

	open_words(&cells[0]);
	ck_assert_int_eq(pthread_create(&thread, NULL, store_each_round, NULL), 0);
	for (int round = 1; round <= ROUNDS; round++) {
		if (round % (WORDS_EARLIER_MAX - 2) == 0) {
			words_close(&words);
			open_words(&cells[0]);
		}
		atomic_store(&go, round);
		words_follow(&words, &cells[round % 2]);
		while (atomic_load(&stored) < round)
			;
		ck_assert_uint_eq(cells[round % 2].mem->ready[2].value, (uint64_t)round);
	}
	pthread_join(thread, NULL);
}
END_TEST

/* More mailboxes than the engine's rig has: each with words of its own and the bell of the first. */
static struct cells pages[WORDS_EARLIER_MAX];

static void make_pages(void)
{
	for (uint32_t i = 0; i < WORDS_EARLIER_MAX; i++) {
		pages[i] = cells[0];
		pages[i].mem =
			mmap(NULL, sizeof(*pages[i].mem), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		ck_assert_ptr_ne(pages[i].mem, MAP_FAILED);
	}
}

static void free_pages(void)
{
	for (uint32_t i = 0; i < WORDS_EARLIER_MAX; i++)
		munmap(pages[i].mem, sizeof(*pages[i].mem));
}

#define PAGE ((size_t)4096)

static volatile sig_atomic_t exchanged;

/* A look has come to the page before the last: another thread exchanges the words' page at this moment and has not
 * carried anything over yet. */
static void exchange_in_mid_look(int signal)
{
	(void)signal;
	mremap(pages[3].mem->ready, 0, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, words.at);
	mprotect(words.earlier[2], PAGE, PROT_READ | PROT_WRITE);
	exchanged = 1;
}

START_TEST(a_look_may_last_over_an_exchange)
{
	struct sigaction before, at_fault = { .sa_handler = exchange_in_mid_look };

	make_pages();
	open_words(&pages[0]);
	words_follow(&words, &pages[1]);
	words_follow(&words, &pages[2]);
	ck_assert_uint_eq(words.n_earlier, 3); /* what was there before the first, the first, the second */
	pages[0].mem->ready[2].value = 5;
	ck_assert_int_eq(mprotect(words.earlier[2], PAGE, PROT_NONE), 0);
	ck_assert_int_eq(sigaction(SIGSEGV, &at_fault, &before), 0);
	ck_assert(words_reached(&words, 3, 5));
	sigaction(SIGSEGV, &before, NULL);
	ck_assert(exchanged);
	free_pages();
}
END_TEST

static atomic_bool stop;
static atomic_ulong looks;

/* As the sender does while its push waits. A value that has come is never missed. */
static void *look_until_stopped(void *unused)
{
	(void)unused;
	while (!atomic_load(&stop)) {
		ck_assert(words_reached(&words, 3, 5) && !words_reached(&words, 3, 6));
		atomic_fetch_add(&looks, 1);
	}
	return NULL;
}

/* Another thread looks at the words while sessions are replaced: each page that it may look at is mapped. Each page is
 * there once, since a look may take its time: none is cleared while an earlier look may still read it. */
START_TEST(looks_meet_no_hole)
{
	pthread_t thread;

	make_pages();
	for (int round = 0; round < 30; round++) {
		unsigned long seen = atomic_load(&looks);

		open_words(&pages[0]);
		store(5);
		atomic_store(&stop, false);
		ck_assert_int_eq(pthread_create(&thread, NULL, look_until_stopped, NULL), 0);
		while (atomic_load(&looks) == seen)
			;
		for (uint32_t i = 1; i < WORDS_EARLIER_MAX; i++) { /* the next page has no value of its own */
			__atomic_store_n(&pages[i].mem->ready[2].value, 0, __ATOMIC_RELEASE);
			words_follow(&words, &pages[i]);
		}
		atomic_store(&stop, true);
		pthread_join(thread, NULL);
		words_close(&words);
	}
	free_pages();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client words");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, words_lie_in_the_mailbox);
	tcase_add_test(tc, values_outlive_sessions);
	tcase_add_test(tc, stores_to_the_page_before_are_seen);
	tcase_add_test(tc, stores_to_any_earlier_page_are_seen);
	tcase_add_test(tc, after_many_sessions_the_words_stay);
	tcase_add_test(tc, waiting_has_an_end);
	tcase_add_test(tc, nothing_is_lost_while_a_session_is_replaced);
	tcase_add_test(tc, looks_meet_no_hole);
	tcase_add_test(tc, a_look_may_last_over_an_exchange);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

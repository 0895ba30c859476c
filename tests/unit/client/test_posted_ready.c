/* SPDX-License-Identifier: Apache-2.0 */
/* The library's pushes whose gradients are not complete yet, through mailboxes of a real engine and by RPC, with a
 * thread of this process in place of a GPU. */
#include "posted_rig.h"

#include "support/suite.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct gacc_job *const job = posted_rig.job;

Suite *posted_ready_suite(void);

/* ---- rigging ---- */

#define LATE_MS 30 /* an engine that looks too early has looked by then */

static uint64_t *word_of(uint32_t rank, uint32_t at)
{
	uint64_t *word;

	ck_assert_int_eq(gacc_ready_word(&job[rank], at, &word, NULL), GACC_OK);
	return word;
}

static gacc_push_opts waits_for(uint32_t at, uint64_t value, bool rings)
{
	return (gacc_push_opts){ .weight = 1, .async = 1, .ready_at = at, .ready_value = value, .ready_rings = rings };
}

static void store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* The GPU: after a while it completes the gradient in the slot, stores the word, and rings if it is said so. */
struct gpu {
	pthread_t thread;
	uint32_t rank, slot;
	uint64_t *word, value;
	bool rings;
	uint64_t counted_before; /* what the record had when the gradient became complete */
};

static void *compute(void *arg)
{
	struct gpu *g = arg;

	sleep_ms(LATE_MS);
	g->counted_before = real_count();
	real_set(g->rank, g->slot, 3);
	store(g->word, g->value);
	if (g->rings)
		gacc_ring(&job[g->rank]);
	return NULL;
}

static void launch(struct gpu *g)
{
	ck_assert_int_eq(pthread_create(&g->thread, NULL, compute, g), 0);
}

static void finish(struct gpu *g)
{
	pthread_join(g->thread, NULL);
}

/* ---- in the mailbox ---- */

/* Rank 0 fills one slot late; the others are complete, and the sums are those of slots that were complete at once. */
static struct real_outcome window_of(bool late, bool rings, bool async)
{
	struct gpu g = { .value = 5, .rings = rings };
	gacc_push_opts o = waits_for(2, 5, rings);
	struct real_outcome out;

	posted_rig_begin(true);
	o.async = async;
	real_set(0, 0, late ? 7 : 3);
	if (late) {
		g.word = word_of(0, 2);
		launch(&g);
	} else {
		o = (gacc_push_opts){ .weight = 1, .async = async };
	}
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_OK);
	if (async)
		ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	if (late) {
		finish(&g);
		ck_assert_uint_eq(g.counted_before, 0);
	}
	ck_assert_int_eq(posted_rig_push(1, (gacc_push_opts){ .weight = 1 }, NULL), GACC_OK);
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(posted_rig_push(r, (gacc_push_opts){ .weight = 1 }, NULL), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	out = real_close();
	posted_rig_end();
	return out;
}

START_TEST(a_late_gradient_is_added_when_it_is_complete)
{
	struct real_outcome a = window_of(false, false, true), b = window_of(true, _i & 1, _i & 2);

	ck_assert(a.count == RANKS * MICRO && a.sumsq > 0);
	ck_assert(a.count == b.count && a.sumsq == b.sumsq && a.digest == b.digest);
}
END_TEST

/* The request says all of it. */
START_TEST(the_request_names_the_word)
{
	const struct gacc_box_request *q;

	posted_rig_begin(false);
	word_of(0, 8);
	q = &job[0].memory.cells.mem->request[0];
	ck_assert_int_eq(posted_rig_push(0, waits_for(8, UINT64_C(1) << 40, _i), NULL), GACC_OK);
	ck_assert(q->ready_at == 8 && q->ready_value == UINT64_C(1) << 40);
	ck_assert_uint_eq(q->flags, _i ? GACC_BOX_RINGS : 0);
	store(word_of(0, 8), 41);
	ck_assert_uint_eq(job[0].memory.cells.mem->ready[7].value, 41); /* where the engine looks */
	posted_rig_end();
}
END_TEST

/* gacc_ring reaches the engine: with `rings` nothing else makes it look. */
START_TEST(nothing_but_the_bell_makes_the_engine_look)
{
	posted_rig_begin(true);
	uint64_t *word = word_of(0, 1);
	ck_assert_int_eq(posted_rig_push(0, waits_for(1, 1, true), NULL), GACC_OK);
	sleep_ms(LATE_MS);
	store(word, 1);
	sleep_ms(LATE_MS);
	ck_assert_uint_eq(real_count(), 0);
	errno = 77;
	gacc_ring(&job[0]);
	ck_assert_int_eq(errno, 77);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(real_count() == 1 && posted_rig.by_rpc == 0);
	posted_rig_end();
}
END_TEST

/* The engine dies with the request in its cell, before the word comes or just when it does. */
START_TEST(the_engine_dies_before_the_word)
{
	posted_rig_begin(true);
	uint64_t *word = word_of(0, 3);
	ck_assert_int_eq(posted_rig_push(0, waits_for(3, 9, _i & 1), NULL), GACC_OK);
	sleep_ms(LATE_MS);
	real_kill();
	if (_i & 2) { /* nobody hears this bell */
		store(word, 9);
		gacc_ring(&job[0]);
	}
	real_start();
	if (!(_i & 2)) {
		sleep_ms(LATE_MS);
		ck_assert_uint_eq(real_count(), 0);
		store(word, 9);
		gacc_ring(&job[0]);
	}
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(real_count() == 1 && posted_rig.by_rpc == 0);
	posted_rig_end();
}
END_TEST

/* ---- by RPC ---- */

/* Nothing goes by RPC before the word is there: without a mailbox, in a closed one, and in one that nobody reads. */
START_TEST(rpc_waits_for_the_word)
{
	struct gpu g = { .value = 4, .rings = true };
	gacc_push_opts o = waits_for(1, 4, true);

	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 1;
	if (_i / 2 == 0)
		cells_close(&job[0].memory.cells);
	if (_i / 2 == 1)
		real_set_closed(0);
	g.word = word_of(0, 1);
	o.async = _i % 2;
	launch(&g);
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_OK);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	finish(&g);
	ck_assert_uint_eq(g.counted_before, 0);
	ck_assert(real_count() == 1 && posted_rig.by_rpc == 1);
	sender_free(job[0].sender);
	posted_rig_end();
}
END_TEST

/* A mailbox whose page could not be put beneath the words is of no use to this push, but to others. */
START_TEST(words_of_another_page_mean_rpc)
{
	posted_rig_begin(true);
	store(word_of(0, 1), 1);
	job[0].memory.words.sgen = 0;
	ck_assert_int_eq(posted_rig_push(0, waits_for(1, 1, false), NULL), GACC_OK);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(posted_rig.by_rpc == 1 && real_count() == 1);
	posted_rig_again(0);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1 }, NULL), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 1);
	posted_rig_end();
}
END_TEST

/* A trainer that asks for the page has it registered with a device, which stores where the engine does not look after a
 * new session: until the trainer has asked again, the library looks. Others store at the address. */
START_TEST(a_device_stores_to_the_page_that_it_knows)
{
	struct words *w = &job[0].memory.words;
	int64_t start = now_ms();
	uint64_t *word, page;

	posted_rig_begin(true);
	ck_assert_int_eq(gacc_ready_word(&job[0], 1, &word, _i ? &page : NULL), GACC_OK);
	words_follow(w, &job[0].memory.cells);
	ck_assert_int_eq(posted_rig_push(0, waits_for(1, 1, true), NULL), GACC_OK);
	store(_i ? &w->earlier[0][0].value : word, 1);
	gacc_ring(&job[0]);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_lt(now_ms() - start, 10000);
	ck_assert(real_count() == 1 && posted_rig.by_rpc == _i);
	posted_rig_again(0);
	ck_assert_int_eq(gacc_ready_word(&job[0], 1, &word, &page), GACC_OK);
	ck_assert_uint_eq(page, w->page);
	ck_assert_int_eq(posted_rig_push(0, waits_for(1, 1, true), NULL), GACC_OK);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, _i);
	posted_rig_end();
}
END_TEST

/* ---- a word that does not come ---- */

/* The call that waits says so, sends nothing and forgets nothing. Mailbox, posted without one, and the sender. */
START_TEST(a_word_that_is_late_is_told)
{
	gacc_push_opts o = waits_for(1, 4, false);
	int64_t start = now_ms();

	posted_rig_begin(true);
	uint64_t *word = word_of(0, 1);
	if (_i / 2)
		cells_close(&job[0].memory.cells);
	o.ready_timeout_ms = 200;
	o.async = _i % 2;
	gacc_status st = posted_rig_push(0, o, NULL);
	if (_i % 2) {
		ck_assert_int_eq(st, GACC_OK);
		st = async_settle(&job[0]);
	}
	ck_assert_int_eq(st, GACC_ETIMEOUT);
	ck_assert(now_ms() - start >= 200 && now_ms() - start < 10000);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "push of micro-batch 0 of window 0: ready word 1"));
	ck_assert(real_count() == 0 && posted_rig.by_rpc == 0);
	store(word, 4);
	st = _i % 2 ? async_settle(&job[0]) : posted_rig_push(0, o, NULL);
	ck_assert_int_eq(st, GACC_OK);
	ck_assert(real_count() == 1 && posted_rig_next(0) == 1);
	sender_free(job[0].sender);
	posted_rig_end();
}
END_TEST

/* gacc_detach waits for what is on its way, and whoever detaches may be the one who would have stored the word. */
START_TEST(no_word_is_awaited_for_ever_by_detach)
{
	gacc_push_opts o = waits_for(1, 4, false);
	int64_t start;

	posted_rig_begin(true);
	word_of(0, 1);
	if (_i)
		cells_close(&job[0].memory.cells);
	o.ready_timeout_ms = 20000;
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_OK);
	start = now_ms();
	__atomic_store_n(&job[0].ready_by, start + 300, __ATOMIC_RELAXED); /* as gacc_detach does */
	ck_assert_int_eq(async_settle(&job[0]), GACC_ETIMEOUT);
	ck_assert(now_ms() - start >= 200 && now_ms() - start < 5000);
	ck_assert(real_count() == 0 && posted_rig.by_rpc == 0);
	sender_free(job[0].sender);
	posted_rig_end();
}
END_TEST

/* A sender that waits for a word can be ended. */
START_TEST(a_sender_stops_while_it_waits)
{
	int64_t start = now_ms();

	posted_rig_begin(true);
	cells_close(&job[0].memory.cells);
	word_of(0, 1);
	ck_assert_int_eq(posted_rig_push(0, waits_for(1, 4, false), NULL), GACC_OK);
	sleep_ms(LATE_MS);
	sender_free(job[0].sender);
	ck_assert_int_lt(now_ms() - start, 10000);
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	posted_rig_end();
}
END_TEST

/* ---- a slot is given out when nobody else writes to it ---- */

/* A push that was not in time keeps its slot, for the caller, too. */
START_TEST(a_slot_stays_with_a_push_whose_word_is_late)
{
	gacc_push_opts o = waits_for(1, 4, false);
	void *slot = NULL;

	posted_rig_begin(true);
	uint64_t *word = word_of(0, 1);
	o.ready_timeout_ms = 50;
	o.async = 0;
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_ETIMEOUT);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &slot, NULL), GACC_ETIMEOUT);
	ck_assert_ptr_null(slot);
	ck_assert_str_eq(
		gacc_last_error(&job[0]),
		"no free slot: slot 0, with micro-batch 0 of window 0, is still written to: ready word 1 has "
		"not come to 4 in time (job 7, rank 0); see why its gradient is not complete, then call again");
	o.struct_size = sizeof(o);
	o.ready_timeout_ms = 20000;
	struct gpu g = { .value = 4, .word = word };
	launch(&g);
	ck_assert_int_eq(gacc_push(&job[0], &o, NULL), GACC_OK);
	finish(&g);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &slot, NULL), GACC_OK);
	ck_assert_ptr_eq(slot, posted_rig.slot[0]);
	posted_rig_end();
}
END_TEST

/* One that was not sent, because the one before it was refused, or because its window was over: its slot is free when
 * its word has come. */
START_TEST(a_slot_of_a_push_that_was_not_sent)
{
	const gacc_push_opts complete = { .weight = 1, .async = 1, .lr = _i ? 0.5 : 0.25 };
	gacc_push_opts late = waits_for(1, 4, false);
	struct gpu g = { .rank = 1, .slot = 1, .value = 4 };
	void *slot[2];

	posted_rig_begin(true);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	if (_i)
		real_close();
	cells_close(&job[1].memory.cells);
	g.word = word_of(1, 1);
	late.async = !_i;
	posted_rig_hold(true);
	ck_assert_int_eq(posted_rig_push(1, complete, NULL), GACC_OK);
	ck_assert_int_eq(gacc_grad_buffer(&job[1], &slot[1], NULL), GACC_OK);
	if (_i)
		posted_rig_hold(false);
	ck_assert_int_eq(posted_rig_push(1, late, NULL), _i ? GACC_ESTALE : GACC_OK);
	posted_rig_hold(false);
	ck_assert_int_eq(async_settle(&job[1]), _i ? GACC_OK : GACC_EINVAL);
	posted_rig_again(1);
	posted_rig_hold(true);
	ck_assert_int_eq(gacc_grad_buffer(&job[1], &slot[0], NULL), GACC_OK); /* the other one, and at once */
	ck_assert(slot[0] == posted_rig.slot[0] && slot[1] == posted_rig.slot[1]);
	ck_assert_int_eq(posted_rig_push(1, complete, NULL), GACC_OK);
	launch(&g);
	ck_assert_int_eq(gacc_grad_buffer(&job[1], &slot[1], NULL), GACC_OK);
	ck_assert(slot[1] == posted_rig.slot[1] && __atomic_load_n(g.word, __ATOMIC_ACQUIRE) == 4);
	finish(&g);
	posted_rig_hold(false);
	sender_free(job[1].sender);
	posted_rig_end();
}
END_TEST

/* A slot that is complete comes first, also if it has the higher number. */
START_TEST(a_complete_slot_comes_first)
{
	void *slot;

	posted_rig_begin(true);
	word_of(0, 1);
	job[0].memory.late[0] = (struct late){ .at = 1, .value = 4, .until = INT64_MAX };
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &slot, NULL), GACC_OK);
	ck_assert_ptr_eq(slot, posted_rig.slot[1]);
	posted_rig_end();
}
END_TEST

/* Of two, one is completed. The other is given up long after that, or before. */
START_TEST(whichever_slot_is_complete_first)
{
	struct gpu g = { .value = 4 };
	int64_t start = now_ms();
	void *slot;

	posted_rig_begin(true);
	g.word = word_of(0, 1);
	job[0].memory.late[_i % 2] = (struct late){ .at = 1, .value = 4, .until = start + 10000 };
	job[0].memory.late[1 - _i % 2] =
		(struct late){ .at = 1, .value = 5, .until = start + (_i / 2 ? 20000 : LATE_MS / 2) };
	launch(&g);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &slot, NULL), GACC_OK);
	finish(&g);
	ck_assert_ptr_eq(slot, posted_rig.slot[_i % 2]);
	ck_assert_int_lt(now_ms() - start, 10000);
	posted_rig_end();
}
END_TEST

/* ---- refusals ---- */

START_TEST(what_makes_no_sense_is_refused)
{
	const void *grads[6] = { 0 };
	gacc_push_opts o = { .struct_size = sizeof(o), .ready_at = 1 };
	uint64_t *word;

	posted_rig_begin(true);
	gacc_ring(&job[0]);					    /* does nothing, without harm */
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_EINVAL); /* nobody has the word */
	ck_assert_int_eq(gacc_ready_word(&job[0], 0, &word, NULL), GACC_EINVAL);
	ck_assert_int_eq(gacc_ready_word(&job[0], GACC_READY_WORDS + 1, &word, NULL), GACC_EINVAL);
	ck_assert_int_eq(gacc_ready_word(&job[0], 1, NULL, NULL), GACC_EINVAL);
	word_of(0, 1);
	o.ready_at = GACC_READY_WORDS + 1;
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_EINVAL);
	o = (gacc_push_opts){ .ready_value = 1 };
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_EINVAL);
	o = (gacc_push_opts){ .ready_rings = 1 };
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_EINVAL);
	o = (gacc_push_opts){ .ready_at = 1, .ready_timeout_ms = -2 };
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_EINVAL);
	o = (gacc_push_opts){ .struct_size = sizeof(o), .ready_at = 1 };
	ck_assert_int_eq(gacc_push_copy(&job[0], grads, &o, NULL), GACC_EINVAL);
	ck_assert(posted_rig.by_rpc == 0 && job[0].memory.cells.seq == 0);
	posted_rig_end();
}
END_TEST

Suite *posted_ready_suite(void)
{
	Suite *suite = suite_create("client posted, ready words");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 30);
	tcase_add_loop_test(tc, a_late_gradient_is_added_when_it_is_complete, 0, 4);
	tcase_add_loop_test(tc, the_request_names_the_word, 0, 2);
	tcase_add_test(tc, nothing_but_the_bell_makes_the_engine_look);
	tcase_add_loop_test(tc, the_engine_dies_before_the_word, 0, 4);
	tcase_add_loop_test(tc, rpc_waits_for_the_word, 0, 6);
	tcase_add_test(tc, words_of_another_page_mean_rpc);
	tcase_add_loop_test(tc, a_device_stores_to_the_page_that_it_knows, 0, 2);
	tcase_add_loop_test(tc, a_word_that_is_late_is_told, 0, 4);
	tcase_add_loop_test(tc, no_word_is_awaited_for_ever_by_detach, 0, 2);
	tcase_add_test(tc, a_sender_stops_while_it_waits);
	tcase_add_test(tc, a_slot_stays_with_a_push_whose_word_is_late);
	tcase_add_loop_test(tc, a_slot_of_a_push_that_was_not_sent, 0, 2);
	tcase_add_test(tc, a_complete_slot_comes_first);
	tcase_add_loop_test(tc, whichever_slot_is_complete_first, 0, 4);
	tcase_add_test(tc, what_makes_no_sense_is_refused);
	suite_add_tcase(suite, tc);
	return suite;
}

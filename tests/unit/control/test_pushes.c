/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of a rank, and what closes a window for it, with an engine that answers when it is told to. */
#include "session_rig.h"

#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

Suite *pushes_suite(void);

/* The answer was lost, so the trainer repeats the push, while its next one goes on in the other slot. */
START_TEST(a_repeat_under_judgement_is_in_nobodys_way)
{
	uint32_t first = _i ? VOIDED : COUNTED;
	push(0, 0, 0);
	answer(ENGINE_ADD, first);
	expect(0, ST_OK, first);
	push(1, 0, 0);
	ck_assert(!replied[1]); /* the engine compares the data_key */
	struct engine_command repeat = sent[n_sent - 1];
	push(2, 1, 1);
	answer(ENGINE_ADD, COUNTED);
	expect(2, ST_OK, COUNTED);
	sent[n_sent - 1] = repeat;
	answer(ENGINE_ADD, _i ? VOIDED : DUPLICATE);
	expect(1, ST_OK, _i ? VOIDED : DUPLICATE);
}
END_TEST

static void refuse(enum status st, const char *text, const char *hint)
{
	struct engine_answer a = { .op = ENGINE_ADD, .id = sent[n_sent - 1].id, .status = st };
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_ADD);
	snprintf(a.text, sizeof(a.text), "%s", text);
	snprintf(a.hint, sizeof(a.hint), "%s", hint);
	job_on_answer(job, &a, now);
}

/* What a push says of itself, and whether it has its turn, is for the engine alone: the same push may come in a
 * mailbox. Its words reach the trainer as they are. */
START_TEST(the_engine_judges)
{
	struct push_args wild = {
		.micro = 1000000, .slot = 1, .weight = NAN, .loss = INFINITY, .lr = -1, .loss_scale = 3, .data_key = 9
	};
	job_push(job, 0, &key, &wild, now);
	const struct engine_command *c = &sent[n_sent - 1];
	ck_assert(c->op == ENGINE_ADD && c->micro == 1000000 && c->slot == 1 && isnan(c->weight) && isinf(c->loss));
	ck_assert(c->window_lr == -1 && c->loss_scale == 3 && c->data_key == 9);
	refuse(ST_OUT_OF_ORDER, "micro-batch 7 comes first", "count");
	expect(0, ST_OUT_OF_ORDER, 0);
	ck_assert_str_eq(reply_to[0].text, "micro-batch 7 comes first");
	ck_assert_str_eq(reply_to[0].hint, "count");
	push(1, 2, 0);
	refuse(ST_FLUSHED, "", "");
	expect(1, ST_FLUSHED, 0);
	ck_assert(strstr(reply_to[1].text, "rank 0, window 0, micro-batch 2: "));
	push(2, 0, 0); /* refused ones leave nothing behind */
	answer(ENGINE_ADD, COUNTED);
	expect(2, ST_OK, COUNTED);
	push(3, 1, 2); /* a slot that it has not: the engine says so */
	ck_assert_uint_eq(sent[n_sent - 1].slot, 2);
}
END_TEST

/* The places of pushes are used again, and do not keep the order: an engine takes no later one first. */
START_TEST(pushes_are_sent_again_in_their_order)
{
	push(0, 0, 0);
	push(1, 1, 1);
	sent[n_sent - 1] = sent[n_sent - 2];
	answer(ENGINE_ADD, COUNTED);
	expect(0, ST_OK, COUNTED);
	push(2, 2, 0); /* in the first one's place */
	record.r.count = record.rank[0].counted = 1;
	record.rank[0].sgen = 1;
	memcpy(record.rank[0].session.token, key.token, 16);
	control_set_bit(record.counted, spec.max_micro_size, 0, 0);
	job_on_engine_down(job, now);
	int before = n_sent;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(n_sent, before + 2);
	ck_assert(sent[before].micro == 1 && sent[before + 1].micro == 2);
}
END_TEST

static void answer_to(const struct engine_command *c, uint32_t result)
{
	struct engine_answer a = { .op = ENGINE_ADD, .id = c->id, .result = result };
	job_on_answer(job, &a, now);
}

/* It brings no gradient of its own: should the engine have refused what it repeats, no slot is read for it. */
START_TEST(a_repeat_goes_without_a_slot)
{
	push(0, 0, 0);
	push(1, 0, 1);
	struct engine_command first = sent[n_sent - 2], repeat = sent[n_sent - 1];
	ck_assert(first.slot == 0 && repeat.slot == UINT32_MAX && repeat.micro == 0);
	if (_i) {
		job_on_engine_down(job, now);
		record.rank[0].sgen = 1;
		memcpy(record.rank[0].session.token, key.token, 16);
		ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
		ck_assert(sent[n_sent - 2].slot == 0 && sent[n_sent - 1].slot == UINT32_MAX);
		first = sent[n_sent - 2], repeat = sent[n_sent - 1];
	}
	answer_to(&first, COUNTED);
	answer_to(&repeat, DUPLICATE);
	expect(0, ST_OK, COUNTED);
	expect(1, ST_OK, DUPLICATE);
	push(2, 1, 0);
	push(3, 1, 0);
	refuse(ST_BAD_SLOT, "slot 4294967295: this session has 2", "");
	expect(3, ST_UNAVAILABLE, 0);
	ck_assert(!replied[2]);
}
END_TEST

/* An engine died with the answer. One call hears that it counted the micro-batch, whoever asks once more. */
START_TEST(a_counted_push_is_told_so_after_the_engines_death)
{
	push(0, 0, 0);
	job_on_engine_down(job, now);
	record.r.count = record.rank[0].counted = 1;
	record.rank[0].sgen = 1;
	memcpy(record.rank[0].session.token, key.token, 16);
	control_set_bit(record.counted, spec.max_micro_size, 0, 0);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	answer(ENGINE_ADD, DUPLICATE);
	expect(0, ST_OK, COUNTED);
	push(1, 0, 0);
	answer(ENGINE_ADD, DUPLICATE);
	expect(1, ST_OK, DUPLICATE);
}
END_TEST

/* Nobody is answered, and what it asked for still happens. */
START_TEST(a_push_whose_client_is_gone_counts)
{
	push(0, 0, 0);
	job_on_call_gone(job, 0, 0);
	answer(ENGINE_ADD, COUNTED);
	ck_assert(!replied[0]);
	job_flush(job, 1, &key, 0, now);
	answer(ENGINE_FLUSH, 0);
	ck_assert_uint_eq(reply_to[1].flush.counted, 1);
}
END_TEST

/* A trainer that waits for long gives up its call and repeats it, each minute: its push has one place all the time.
 * What says something else is for the engine to judge. */
START_TEST(a_push_that_is_repeated_has_one_place)
{
	struct push_args other = { .weight = 3, .data_key = 100 };
	for (uint64_t i = 0; i < 12; i++) {
		push(i, 0, 0);
		ck_assert(!replied[i]);
		job_on_call_gone(job, i, 0);
	}
	ck_assert_int_eq(count_sent(ENGINE_ADD), 1);
	push(12, 0, 0);
	push(13, 0, 0); /* both are there */
	ck_assert_int_eq(count_sent(ENGINE_ADD), 2);
	answer(ENGINE_ADD, COUNTED);
	expect(13, ST_OK, COUNTED);
	job_on_call_gone(job, 12, 0);
	job_push(job, 14, &key, &other, now);
	ck_assert_int_eq(count_sent(ENGINE_ADD), 3);
}
END_TEST

/* The next call may come before it is seen that the one before it is gone, each time: a second place is enough for
 * that. A stream's repeats are not read; nobody takes over the place of the stream itself, so they need a third. */
START_TEST(a_repeat_may_overtake_the_end_of_the_call_before_it)
{
	const struct push_args a = { .weight = 1, .streamed = _i };
	n_sent = 0;
	job_push(job, 0, &key, &a, now);
	for (uint64_t i = 1; i < 12; i++) {
		job_push(job, i, &key, &a, now);
		ck_assert(!replied[i]);
		job_on_call_gone(job, i - 1, 0);
	}
	ck_assert_int_eq(count_sent(ENGINE_ADD), 2 + _i);
	const struct engine_command repeat = sent[1];
	const struct engine_command last = sent[n_sent - 1];
	n_sent = 1;
	answer(ENGINE_ADD, COUNTED);
	sent[0] = repeat;
	answer(ENGINE_ADD, DUPLICATE);
	sent[0] = last;
	answer(ENGINE_ADD, DUPLICATE);
	ck_assert(replied[11] && !replied[10]);
	ck_assert_int_eq(reply_to[11].status, ST_OK);
}
END_TEST

/* The loss of a run that diverges. */
START_TEST(a_push_without_a_finite_loss_has_one_place)
{
	const struct push_args a = { .weight = 1, .loss = NAN };
	for (uint64_t i = 0; i < 12; i++) {
		job_push(job, i, &key, &a, now);
		job_on_call_gone(job, i, 0);
	}
	ck_assert_int_eq(count_sent(ENGINE_ADD), 1);
}
END_TEST

/* It has never had the memory, so what is in the slot is not its own: nothing, or the gradients of an inline push
 * before. */
START_TEST(a_session_that_has_mapped_nothing_pushes_no_slot)
{
	struct attach_args again = { .world_size = 1, .uid = 7, .pid = 42, .nonce = { 1 }, .shared_memory = true };
	push(0, 0, 0); /* the fixture's session has mapped its slots */
	answer(ENGINE_ADD, COUNTED);
	job_attach(job, 1, &again, now);
	answer(ENGINE_ATTACH, 0);
	push(2, 1, 0);
	ck_assert_uint_eq(sent[n_sent - 1].slot, UINT32_MAX);
	refuse(ST_BAD_SLOT, "slot 4294967295: this session has 2", "slots are numbered from 0");
	expect(2, ST_BAD_SLOT, 0);
	ck_assert_str_eq(reply_to[2].text, "this session of rank 0 has not mapped its slots");
	job_on_mapped(job, 0, job_generation(job, 0) - 1); /* by the session before it */
	push(3, 1, 0);
	ck_assert_uint_eq(sent[n_sent - 1].slot, UINT32_MAX);
	refuse(ST_WINDOW_FULL, "there are words for what is wrong besides", "");
	expect(3, ST_WINDOW_FULL, 0);
	push(4, 0, 0); /* a repeat is only compared */
	answer(ENGINE_ADD, DUPLICATE);
	expect(4, ST_OK, DUPLICATE);
	job_on_mapped(job, 0, job_generation(job, 0));
	push(5, 1, 0);
	answer(ENGINE_ADD, COUNTED);
	expect(5, ST_OK, COUNTED);
}
END_TEST

/* The flush goes to the engine behind the pushes before it, and is answered when it is durable. */
START_TEST(a_flush_waits_for_pushes)
{
	push(0, 0, 0);
	job_flush(job, 1, &key, 0, now);
	ck_assert_uint_eq(sent[n_sent - 1].op, ENGINE_ADD);
	push(2, 1, 1); /* the engine does not know of the flush yet, and would take it */
	expect(2, ST_FLUSHED, 0);
	answer(ENGINE_ADD, COUNTED);
	ck_assert(!replied[1]);
	answer(ENGINE_FLUSH, 0);
	ck_assert(replied[1] && !reply_to[1].status && reply_to[1].flush.counted == 1);
	job_flush(job, 3, &key, 0, now);
	ck_assert(replied[3] && !reply_to[3].status && reply_to[3].flush.counted == 1);
}
END_TEST

/* Its window has closed before the engine heard of the flush: nobody waits for what cannot come any more. */
START_TEST(a_flush_of_a_window_that_is_over_is_answered)
{
	job_on_engine_down(job, now);
	job_flush(job, 0, &key, 0, now);
	ck_assert(!replied[0]);
	record.r.window = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert(replied[0] && !reply_to[0].status);
}
END_TEST

/* The answer says what the rank has in that window, not in the one that is open by now. */
START_TEST(a_flush_of_a_window_that_is_over_says_what_is_in_it)
{
	struct order go = { .job_id = 1, .epoch = 1, .term = 1, .run = true, .want = WANT_GO, .attempt = 1 },
		     commit = go;
	commit.want = WANT_COMMIT;
	commit.commit = (struct commit){ .epoch = 1, .term = 1, .attempt = 1, .next_micro_size = 4 };
	for (uint32_t m = 0; m < 2; m++) {
		push(m, m, 0);
		answer(ENGINE_ADD, COUNTED);
	}
	job_flush(job, 2, &key, 0, now);
	struct engine_answer late = { .op = ENGINE_FLUSH, .id = sent[n_sent - 1].id, .status = ST_WINDOW_CLOSED };
	job_on_order(job, &go, now);
	struct engine_answer vote = { .op = ENGINE_GO, .id = sent[n_sent - 1].id, .attempt = 1 };
	job_on_answer(job, &vote, now);
	if (_i) /* the engine has heard of the flush behind GO; else not at all */
		job_on_answer(job, &late, now);
	ck_assert_int_eq(replied[2], _i);
	job_on_order(job, &commit, now);
	answer(ENGINE_COMMIT, 0);
	ck_assert(replied[2] && !reply_to[2].status);
	ck_assert_uint_eq(reply_to[2].flush.counted, 2);
	job_flush(job, 3, &key, 0, now);
	ck_assert(replied[3] && !reply_to[3].status);
	ck_assert_uint_eq(reply_to[3].flush.counted, 2);
}
END_TEST

/* The engine would say so, too; but it may be down. */
START_TEST(nothing_is_taken_after_the_last_window)
{
	struct order go = { .job_id = 1, .epoch = 1, .term = 1, .run = true, .want = WANT_GO, .attempt = 1 };
	job_on_order(job, &go, now);
	struct engine_answer vote = { .op = ENGINE_GO, .id = sent[n_sent - 1].id, .attempt = 1 };
	job_on_answer(job, &vote, now);
	go.want = WANT_COMMIT;
	go.commit = (struct commit){ .epoch = 1, .term = 1, .attempt = 1, .next_micro_size = 4, .final = true };
	job_on_order(job, &go, now);
	answer(ENGINE_COMMIT, 0);
	struct push_args a = { .window = 1, .weight = 1 };
	job_push(job, 0, &key, &a, now);
	expect(0, ST_JOB_ENDED, 0);
	job_flush(job, 1, &key, 1, now);
	expect(1, ST_JOB_ENDED, 0);
	ck_assert(strstr(reply_to[1].text, "window 0 was its last"));
}
END_TEST

Suite *pushes_suite(void)
{
	Suite *s = suite_create("pushes");
	TCase *c = tcase_create("pushes");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_repeat_under_judgement_is_in_nobodys_way, 0, 2);
	tcase_add_test(c, the_engine_judges);
	tcase_add_test(c, pushes_are_sent_again_in_their_order);
	tcase_add_loop_test(c, a_repeat_goes_without_a_slot, 0, 2);
	tcase_add_test(c, a_counted_push_is_told_so_after_the_engines_death);
	tcase_add_test(c, a_push_whose_client_is_gone_counts);
	tcase_add_test(c, a_push_that_is_repeated_has_one_place);
	tcase_add_loop_test(c, a_repeat_may_overtake_the_end_of_the_call_before_it, 0, 2);
	tcase_add_test(c, a_push_without_a_finite_loss_has_one_place);
	tcase_add_test(c, a_session_that_has_mapped_nothing_pushes_no_slot);
	tcase_add_test(c, a_flush_waits_for_pushes);
	tcase_add_test(c, nothing_is_taken_after_the_last_window);
	tcase_add_test(c, a_flush_of_a_window_that_is_over_is_answered);
	tcase_add_loop_test(c, a_flush_of_a_window_that_is_over_says_what_is_in_it, 0, 2);
	return s;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a push: each row of judge.h's table alone, and each two rows together. */
#include "engine/commit.h"
#include "engine/refusal.h"
#include "judge_rig.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

Suite *judge_suite(void);

/* ---- one change for each row ---- */

static void spoil(enum ruling r)
{
	switch (r) {
	case PUSH_NO_RANK:
		judged.good.rank = JUDGED_RANKS;
		break;
	case PUSH_FENCED:
		judged.good.sgen = 1;
		break;
	case PUSH_UNKNOWN:
		judged.good.sgen = 3;
		break;
	case PUSH_IS_COMMITTED:
		judged.good.window = 6;
		control_set_bit(judged.state.last_counted, JUDGED_MICRO, 1, judged.good.micro);
		break;
	case PUSH_LATE:
		judged.good.window = 6;
		break;
	case PUSH_FORGOTTEN:
		judged.good.window = 5;
		break;
	case PUSH_EARLY:
		judged.good.window = 8;
		break;
	case PUSH_ENDED:
		judged.state.r.commit_result.final = 1;
		break;
	case PUSH_PAST_END:
		judged.good.micro = JUDGED_SIZE;
		break;
	case PUSH_BAD_WEIGHT:
		judged.good.weight = 0;
		break;
	case PUSH_BAD_LR:
		judged.good.lr = -1;
		break;
	case PUSH_BITMAP_SIZE:
		judged.good.present = judged.bitmap;
		judged.good.n_present = 1;
		break;
	case PUSH_BITMAP_END:
		judged.bitmap[1] = 1u << JUDGED_TENSORS % 8;
		judged.good.present = judged.bitmap;
		judged.good.n_present = 2;
		break;
	case PUSH_LOSS_SCALE:
		judged.good.loss_scale = 4;
		break;
	case PUSH_OTHER_LR:
		judged.state.r.window_lr = 0.25;
		break;
	case PUSH_OTHER_KEY:
		control_set_bit(judged.state.counted, JUDGED_MICRO, 1, 1);
		judged.ledger[1 * JUDGED_MICRO + 1].data_key = JUDGED_KEY + 1;
		break;
	case PUSH_IS_COUNTED:
		control_set_bit(judged.state.counted, JUDGED_MICRO, 1, 1);
		break;
	case PUSH_IS_VOID:
		control_set_bit(judged.state.voided, JUDGED_MICRO, 1, 1);
		break;
	case PUSH_QUEUED_KEY:
		judged_queue(1, 1, 3)->data_key = 0;
		break;
	case PUSH_QUEUED_LR:
		judged_queue(1, 1, 3)->window_lr = 0.75;
		break;
	case PUSH_QUEUED_ASKERS:
		judged_queue(1, 1, 3)->n_askers = ACCUM_MAX_ASKERS;
		break;
	case PUSH_JOINS:
		judged_queue(1, 1, 3);
		break;
	case PUSH_FLUSHED:
		judged.state.rank[1].flushed = RANK_FLUSHED;
		break;
	case PUSH_CLOSED:
		judged.state.r.phase = WINDOW_CLOSED;
		break;
	case PUSH_OUT_OF_ORDER:
		memset(judged.state.counted, 0, sizeof(*judged.state.counted));
		break;
	case PUSH_NO_SLOT:
		judged.good.slot = JUDGED_SLOTS;
		break;
	case PUSH_SLOT_BUSY:
		judged_queue(2, 3, 1 * JUDGED_SLOTS + judged.good.slot);
		break;
	case PUSH_QUEUE_FULL:
		judged.full = true;
		break;
	default:
		break;
	}
}

static const struct row {
	enum status status;
	enum push_result result;
	int excludes; /* two rows with the same number cannot both fit a push */
	const char *text, *hint;
} rows[N_RULINGS] = {
	[PUSH_NO_RANK] = { ST_RANK_OUT_OF_RANGE, 0, 0, "rank 3 of an engine with 3 ranks", NULL },
	[PUSH_FENCED] = { ST_SESSION_FENCED, 0, 1, "a newer process has attached as rank 41 of job 9 (pid 123)", NULL },
	[PUSH_UNKNOWN] = { ST_SESSION_UNKNOWN, 0, 1, "no such session: attach again (rank 41 of job 9)", NULL },
	[PUSH_IS_COMMITTED] = { ST_OK, PUSH_ALREADY_COMMITTED, 2, NULL, NULL },
	[PUSH_LATE] = { ST_WINDOW_CLOSED, 0, 2,
			"window 6 closed without micro-batch 1 of rank 41: not counted (window 7 is open)",
			"go on with the open window" },
	[PUSH_FORGOTTEN] = { ST_WINDOW_FORGOTTEN, 0, 2,
			     "window 5 is too long ago for the engine (window 7 is open): ask gaccd whether "
			     "micro-batch "
			     "1 of rank 41 is in it",
			     "send it as a call: gaccd may know" },
	[PUSH_EARLY] = { ST_NOT_CURRENT_WINDOW, 0, 2, "window 7 is open, not 8",
			 "call WaitStep for the window before first" },
	[PUSH_ENDED] = { ST_JOB_ENDED, 0, 2, "job 9 is ending: window 6 was its last", NULL },
	[PUSH_PAST_END] = { ST_WINDOW_FULL, 0, 0, "micro-batch index 4: a rank contributes 4 to a window (0..3)",
			    "call WaitStep after micro_size micro-batches, then push into the next window" },
	[PUSH_BAD_WEIGHT] = { ST_BAD_WEIGHT, 0, 0, "weight is 0: it must be 2.22507e-308..1.79769e+308",
			      "send the number of samples or tokens of the micro-batch" },
	[PUSH_BAD_LR] = { ST_INVALID_ARGUMENT, 0, 0, "lr is -1: it must be 0..3.40282e+38",
			  "send the window's learning rate, or 0 for the schedule's" },
	[PUSH_BITMAP_SIZE] = { ST_INVALID_ARGUMENT, 0, 3, "present has 1 bytes, 11 tensors need 2",
			       "one bit for each tensor in the order of registration" },
	[PUSH_BITMAP_END] = { ST_INVALID_ARGUMENT, 0, 3, "present has bits past tensor 10",
			      "one bit for each tensor in the order of registration" },
	[PUSH_LOSS_SCALE] = { ST_LOSS_SCALE_MISMATCH, 0, 0, "gradients carry loss scale 4, the window's is 8",
			      "use the loss_scale that WaitReady or WaitStep gave" },
	[PUSH_OTHER_LR] = { ST_LR_MISMATCH, 0, 0,
			    "rank 41 gives window 7 the learning rate 0.5; rank 41, whose push was counted first, gave "
			    "it 0.25",
			    NULL },
	[PUSH_OTHER_KEY] = { ST_DATA_KEY_MISMATCH, 0, 0,
			     "rank 41, window 7, micro-batch 1: this micro-batch was counted with another data_key",
			     NULL },
	[PUSH_IS_COUNTED] = { ST_OK, PUSH_DUPLICATE, 4, NULL, NULL },
	[PUSH_IS_VOID] = { ST_OK, PUSH_VOID, 4, NULL, NULL },
	[PUSH_QUEUED_KEY] = { ST_DATA_KEY_MISMATCH, 0, 0,
			      "micro-batch 1 is parked with data_key 0000000000000000, this one has 0000000000000007",
			      "a micro-batch index names one set of samples" },
	[PUSH_QUEUED_LR] = { ST_LR_MISMATCH, 0, 0, "micro-batch 1 of rank 41 is parked with lr 0.75, this one has 0.5",
			     NULL },
	[PUSH_QUEUED_ASKERS] = { ST_RESOURCE_EXHAUSTED, 0, 0, "micro-batch 1 is parked with 4 calls already",
				 "wait for the earlier calls" },
	[PUSH_JOINS] = { ST_OK, 0, 0, NULL, NULL },
	[PUSH_FLUSHED] = { ST_FLUSHED, 0, 0, "rank 41 has flushed window 7",
			   "wait for the window's outcome, then push into the next one" },
	[PUSH_CLOSED] = { ST_WINDOW_CLOSED, 0, 0, "window 7 closed without micro-batch 1 of rank 41: not counted",
			  "go on with the next window" },
	[PUSH_OUT_OF_ORDER] = { ST_OUT_OF_ORDER, 0, 0, "micro-batch 1 of rank 41: 0 of 4 is expected next",
				"push the micro-batches of a window in ascending order" },
	[PUSH_NO_SLOT] = { ST_BAD_SLOT, 0, 0, "slot 2: this session has 2", "slots are numbered from 0" },
	[PUSH_SLOT_BUSY] = { ST_SLOT_BUSY, 0, 0, "slot 0 holds another micro-batch of rank 41 that is not counted yet",
			     "wait for that push to be acknowledged, or use the other slot" },
	[PUSH_QUEUE_FULL] = { ST_RESOURCE_EXHAUSTED, 0, 0, "0 pushes are under way",
			      "wait for earlier pushes of this rank" },
	[PUSH_QUEUES] = { ST_OK, 0, 0, NULL, NULL },
};

START_TEST(each_row_alone)
{
	const struct row *row = &rows[_i];
	char text[REFUSAL_BYTES] = "";
	spoil((enum ruling)_i);
	struct verdict v = judged_good();
	ck_assert_int_eq(v.ruling, _i);
	ck_assert_int_eq(v.status, row->status);
	ck_assert_int_eq(v.result, row->result);
	if (!row->status)
		return;
	const char *hint = refusal_describe(&judged.window, &judged.good, &v, text, sizeof(text));
	ck_assert_str_eq(text, row->text);
	ck_assert_pstr_eq(hint, row->hint);
	ck_assert_uint_lt(hint ? strlen(hint) : 0, sizeof(((struct engine_answer *)0)->hint));
}
END_TEST

/* The first row that fits decides, whichever other one does too. */
START_TEST(each_two_rows_together)
{
	for (int other = _i + 1; other < N_RULINGS; other++) {
		if (rows[_i].excludes && rows[_i].excludes == rows[other].excludes)
			continue;
		judged_end();
		judged_begin();
		spoil((enum ruling)other);
		spoil((enum ruling)_i);
		ck_assert_msg((int)judged_good().ruling == _i, "%d with %d: ruled %d", _i, other,
			      (int)judged_good().ruling);
	}
}
END_TEST

/* The longest numbers that there are still fit into an answer. */
START_TEST(words_are_whole)
{
	char text[REFUSAL_BYTES], large[400];
	for (int r = 0; r < N_RULINGS; r++) {
		if (!rows[r].status || r == PUSH_NO_RANK)
			continue;
		judged_end();
		judged_begin();
		judged.plan.numbers[1] = 65535;
		spoil((enum ruling)r);
		struct verdict v = judged_good();
		judged.plan.plan.job_id = UINT64_MAX;
		judged.state.r.window += UINT64_C(1000000000000000);
		judged.good.window += UINT64_C(1000000000000000);
		judged.state.r.window_lr = 3.40282e+38;
		refusal_describe(&judged.window, &judged.good, &v, text, sizeof(text));
		refusal_describe(&judged.window, &judged.good, &v, large, sizeof(large));
		ck_assert_str_eq(text, large);
	}
}
END_TEST

Suite *judge_suite(void)
{
	Suite *s = suite_create("judge");
	TCase *t = tcase_create("push");
	tcase_add_checked_fixture(t, judged_begin, judged_end);
	tcase_add_loop_test(t, each_row_alone, 0, N_RULINGS);
	tcase_add_loop_test(t, each_two_rows_together, 0, N_RULINGS);
	tcase_add_test(t, words_are_whole);
	suite_add_tcase(s, t);
	return s;
}

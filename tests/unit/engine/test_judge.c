/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a push: each row of judge.h's table alone, each two rows together, and the borders of each. */
#include "engine/commit.h"
#include "engine/judge.h"

#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

Suite *judge_suite(void);

enum { RANKS = 3, MICRO = 5, SIZE = 4, SLOTS = 2, TENSORS = 11, KEY = 7 };

/* A window in which `good` is queued: rank 1 has given micro-batch 0 of 0..3 and comes with the next one. */
static struct {
	struct plan plan;
	uint32_t numbers[RANKS]; /* behind the plan, which knows where */
} plan;
static struct control_state state;
static struct ledger_cell ledger[RANKS * MICRO];
static struct accum queue;
static struct push good;
static bool full; /* the queue is to be */
static const struct window_state window = { &plan.plan, &state, ledger, &queue };
static unsigned char bitmap[2];

static void setup_window(void)
{
	plan.plan = (struct plan){ .job_id = 9,
				   .ranks = RANKS,
				   .slots = (RANKS + 1) * SLOTS,
				   .slots_per_rank = SLOTS,
				   .n_tensors = TENSORS,
				   .numbers_offset = sizeof(struct plan) };
	memcpy(plan.numbers, (uint32_t[]){ 40, 41, 42 }, sizeof(plan.numbers));
	memset(ledger, 0, sizeof(ledger));
	memset(bitmap, 0, sizeof(bitmap));
	ck_assert_int_eq(control_state_init(&state, RANKS, MICRO), ST_OK);
	ck_assert_int_eq(accum_init(&queue, 8, MICRO, true), ST_OK);
	state.r.window = 7;
	state.r.commit_window = 6;
	state.r.commit_outcome = 1;
	state.r.micro_size = SIZE;
	state.r.loss_scale = 8;
	state.r.count = 1;
	state.r.window_lr = 0.5;
	state.r.lr_rank = 1;
	control_set_bit(state.counted, MICRO, 1, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		state.rank[i].sgen = 2;
	state.rank[1].session.pid = 123;
	good = (struct push){
		.rank = 1, .micro = 1, .sgen = 2, .window = 7, .data_key = KEY, .weight = 2, .lr = 0.5, .loss_scale = 8
	};
	full = false;
}

static void teardown_window(void)
{
	accum_fini(&queue);
	control_state_fini(&state);
}

/* ---- one change for each row ---- */

static struct accum_entry *queued(uint32_t rank, uint32_t micro, uint32_t slot)
{
	if (!accum_find(&queue, rank, micro))
		accum_queue(&queue, &(struct accum_entry){ .n_askers = 1,
							   .rank = rank,
							   .micro = micro,
							   .slot = slot,
							   .data_key = KEY,
							   .window_lr = good.lr });
	return accum_find(&queue, rank, micro);
}

static void spoil(enum ruling r)
{
	switch (r) {
	case PUSH_NO_RANK:
		good.rank = RANKS;
		break;
	case PUSH_FENCED:
		good.sgen = 1;
		break;
	case PUSH_UNKNOWN:
		good.sgen = 3;
		break;
	case PUSH_IS_COMMITTED:
		good.window = 6;
		control_set_bit(state.last_counted, MICRO, 1, good.micro);
		break;
	case PUSH_LATE:
		good.window = 6;
		break;
	case PUSH_FORGOTTEN:
		good.window = 5;
		break;
	case PUSH_EARLY:
		good.window = 8;
		break;
	case PUSH_ENDED:
		state.r.commit_result.final = 1;
		break;
	case PUSH_PAST_END:
		good.micro = SIZE;
		break;
	case PUSH_BAD_WEIGHT:
		good.weight = 0;
		break;
	case PUSH_BAD_LR:
		good.lr = -1;
		break;
	case PUSH_BITMAP_SIZE:
		good.present = bitmap;
		good.n_present = 1;
		break;
	case PUSH_BITMAP_END:
		bitmap[1] = 1u << TENSORS % 8;
		good.present = bitmap;
		good.n_present = 2;
		break;
	case PUSH_LOSS_SCALE:
		good.loss_scale = 4;
		break;
	case PUSH_OTHER_LR:
		state.r.window_lr = 0.25;
		break;
	case PUSH_OTHER_KEY:
		control_set_bit(state.counted, MICRO, 1, 1);
		ledger[1 * MICRO + 1].data_key = KEY + 1;
		break;
	case PUSH_IS_COUNTED:
		control_set_bit(state.counted, MICRO, 1, 1);
		break;
	case PUSH_IS_VOID:
		control_set_bit(state.voided, MICRO, 1, 1);
		break;
	case PUSH_QUEUED_KEY:
		queued(1, 1, 3)->data_key = 0;
		break;
	case PUSH_QUEUED_LR:
		queued(1, 1, 3)->window_lr = 0.75;
		break;
	case PUSH_QUEUED_ASKERS:
		queued(1, 1, 3)->n_askers = ACCUM_MAX_ASKERS;
		break;
	case PUSH_JOINS:
		queued(1, 1, 3);
		break;
	case PUSH_FLUSHED:
		state.rank[1].flushed = RANK_FLUSHED;
		break;
	case PUSH_CLOSED:
		state.r.phase = WINDOW_CLOSED;
		break;
	case PUSH_OUT_OF_ORDER:
		memset(state.counted, 0, sizeof(*state.counted));
		break;
	case PUSH_NO_SLOT:
		good.slot = SLOTS;
		break;
	case PUSH_SLOT_BUSY:
		queued(2, 3, 1 * SLOTS + good.slot);
		break;
	case PUSH_QUEUE_FULL:
		full = true;
		break;
	default:
		break;
	}
}

static struct verdict judge(void)
{
	uint32_t capacity = queue.capacity;
	if (full)
		queue.capacity = queue.n;
	struct verdict v = judge_push(&window, &good);
	queue.capacity = capacity;
	return v;
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
	struct verdict v = judge();
	ck_assert_int_eq(v.ruling, _i);
	ck_assert_int_eq(v.status, row->status);
	ck_assert_int_eq(v.result, row->result);
	if (!row->status)
		return;
	const char *hint = refusal_describe(&window, &good, &v, text, sizeof(text));
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
		teardown_window();
		setup_window();
		spoil((enum ruling)other);
		spoil((enum ruling)_i);
		ck_assert_msg((int)judge().ruling == _i, "%d with %d: ruled %d", _i, other, (int)judge().ruling);
	}
}
END_TEST

/* ---- the borders ---- */

#define RULED(change, want)                                                                                            \
	do {                                                                                                           \
		struct push before = good;                                                                             \
		change;                                                                                                \
		ck_assert_int_eq(judge().ruling, want);                                                                \
		good = before;                                                                                         \
	} while (0)

START_TEST(numbers_at_their_borders)
{
	RULED(good.weight = DBL_MIN, PUSH_QUEUES);
	RULED(good.weight = DBL_MAX, PUSH_QUEUES);
	RULED(good.weight = DBL_MIN / 2, PUSH_BAD_WEIGHT);
	RULED(good.weight = INFINITY, PUSH_BAD_WEIGHT);
	RULED(good.weight = NAN, PUSH_BAD_WEIGHT);
	RULED(good.weight = -1, PUSH_BAD_WEIGHT);
	RULED(good.rank = RANKS - 1, PUSH_OUT_OF_ORDER);
	RULED((good.rank = RANKS - 1, good.micro = 0), PUSH_QUEUES);
	RULED(good.rank = UINT32_MAX, PUSH_NO_RANK);
	RULED(good.sgen = 0, PUSH_FENCED);
	RULED(good.sgen = UINT64_MAX, PUSH_UNKNOWN);
	RULED(good.window = UINT64_MAX, PUSH_EARLY);
	RULED(good.window = 0, PUSH_FORGOTTEN);
	RULED(good.micro = SIZE - 1, PUSH_OUT_OF_ORDER);
	RULED(good.micro = UINT32_MAX, PUSH_PAST_END);
	RULED(good.slot = SLOTS - 1, PUSH_QUEUES);
	RULED(good.slot = UINT32_MAX, PUSH_NO_SLOT);
	RULED(good.loss = NAN, PUSH_QUEUES);
	state.r.count = 0; /* nobody has given the window a learning rate */
	RULED(good.lr = 0, PUSH_QUEUES);
	RULED(good.lr = COMMIT_MAX, PUSH_QUEUES);
	RULED(good.lr = nextafter(COMMIT_MAX, INFINITY), PUSH_BAD_LR);
	RULED(good.lr = NAN, PUSH_BAD_LR);
	RULED(good.loss_scale = 0, PUSH_LOSS_SCALE);
	RULED(good.loss_scale = NAN, PUSH_LOSS_SCALE);
	state.r.loss_scale = 1;
	RULED(good.loss_scale = 0, PUSH_QUEUES);
	RULED(good.loss_scale = 1, PUSH_QUEUES);
}
END_TEST

START_TEST(bitmaps_of_any_size)
{
	unsigned char all[3] = { 0xff, 0xff, 0xff };
	good.present = all;
	RULED(good.n_present = 2, PUSH_BITMAP_END);
	all[1] = 0x07;
	RULED(good.n_present = 2, PUSH_QUEUES);
	RULED(good.n_present = 3, PUSH_BITMAP_SIZE);
	all[1] = 0x80;
	RULED(good.n_present = 2, PUSH_BITMAP_END);
	plan.plan.n_tensors = 16; /* no bits are left over */
	RULED(good.n_present = 2, PUSH_QUEUES);
	plan.plan.n_tensors = 17;
	all[2] = 1;
	RULED(good.n_present = 3, PUSH_QUEUES);
	all[2] = 2;
	RULED(good.n_present = 3, PUSH_BITMAP_END);
}
END_TEST

START_TEST(windows_that_are_over)
{
	good.window = 6;
	control_set_bit(state.last_counted, MICRO, 1, 0);
	RULED(good.micro = 0, PUSH_IS_COMMITTED);
	RULED(good.micro = 1, PUSH_LATE);
	RULED((good.micro = 0, good.rank = 2), PUSH_LATE);
	RULED(good.micro = MICRO, PUSH_LATE); /* bit 0 of rank 2 is behind rank 1's last */
	control_set_bit(state.last_counted, MICRO, 2, 0);
	RULED(good.micro = MICRO, PUSH_LATE);
	RULED(good.micro = UINT32_MAX, PUSH_LATE);
	RULED((good.micro = 0, good.weight = 0), PUSH_IS_COMMITTED); /* its numbers no longer matter */
	state.r.commit_window = 5;				     /* this memory began with window 7 */
	RULED(good.micro = 0, PUSH_FORGOTTEN);
	state.r.window = 1;
	state.r.commit_window = state.r.commit_outcome = 0; /* with window 1: zeros are no commit of window 0 */
	RULED((good.window = 0, good.micro = 0), PUSH_FORGOTTEN);
	state.r.commit_outcome = 3;
	RULED((good.window = 0, good.micro = 0), PUSH_IS_COMMITTED);
}
END_TEST

/* The last window is that of this memory, and the job's. */
START_TEST(a_last_window_is_known_by_its_commit)
{
	state.r.commit_result.final = 1;
	RULED(good.micro = 1, PUSH_ENDED);
	RULED(good.micro = UINT32_MAX, PUSH_ENDED);
	RULED(good.window = 8, PUSH_EARLY);
	RULED(good.window = 6, PUSH_LATE);
	state.r.commit_window = 5;
	RULED(good.micro = 1, PUSH_QUEUES);
	state.r.commit_window = 6;
	state.r.commit_outcome = 0;
	RULED(good.micro = 1, PUSH_QUEUES);
}
END_TEST

START_TEST(keys_of_repeats)
{
	spoil(PUSH_IS_COUNTED);
	RULED(good.data_key = 0, PUSH_IS_COUNTED);
	ledger[1 * MICRO + 1].data_key = KEY;
	RULED(good.data_key = 0, PUSH_IS_COUNTED);
	RULED(good.data_key = KEY, PUSH_IS_COUNTED);
	RULED(good.data_key = KEY + 1, PUSH_OTHER_KEY);
	state.r.phase = WINDOW_PREPARED;
	state.rank[1].flushed = RANK_LEFT;
	RULED(good.data_key = KEY, PUSH_IS_COUNTED);
	RULED(good.slot = 99, PUSH_IS_COUNTED);
}
END_TEST

START_TEST(repeats_of_what_is_queued)
{
	struct accum_entry *e = queued(1, 1, 3);
	ck_assert_uint_eq(judge().entry, 0);
	RULED(good.data_key = 0, PUSH_QUEUED_KEY);
	e->data_key = 0;
	RULED(good.data_key = 0, PUSH_JOINS);
	RULED(good.data_key = KEY, PUSH_QUEUED_KEY);
	e->data_key = KEY;
	for (e->n_askers = 1; e->n_askers < ACCUM_MAX_ASKERS; e->n_askers++)
		ck_assert_int_eq(judge().ruling, PUSH_JOINS);
	ck_assert_int_eq(judge().ruling, PUSH_QUEUED_ASKERS);
	queued(2, 0, 4);
	accum_remove(&queue, accum_find(&queue, 1, 1));
	queued(1, 1, 3);
	ck_assert_int_eq(judge().ruling, PUSH_JOINS);
	ck_assert_uint_eq(judge().entry, 1);
}
END_TEST

/* Every micro-batch of the rank before it is counted, void or queued. */
START_TEST(the_order_of_a_rank)
{
	char text[REFUSAL_BYTES];
	RULED(good.micro = 2, PUSH_OUT_OF_ORDER);
	queued(1, 1, 3);
	RULED(good.micro = 2, PUSH_QUEUES);
	RULED((good.micro = 3, good.slot = 1), PUSH_OUT_OF_ORDER);
	control_set_bit(state.voided, MICRO, 1, 2);
	RULED(good.micro = 3, PUSH_QUEUES);
	accum_remove(&queue,
		     accum_find(&queue, 1, 1)); /* refused: it is expected again, and a later one waits for it */
	RULED(good.micro = 1, PUSH_QUEUES);
	good.micro = 3;
	struct verdict v = judge();
	ck_assert_int_eq(v.ruling, PUSH_OUT_OF_ORDER);
	refusal_describe(&window, &good, &v, text, sizeof(text));
	ck_assert_str_eq(text, "micro-batch 3 of rank 41: 1 of 4 is expected next");
	queued(2, 1, 5); /* another rank's */
	RULED(good.micro = 3, PUSH_OUT_OF_ORDER);
	queue.canonical = false;
	RULED(good.micro = 3, PUSH_QUEUES);
}
END_TEST

START_TEST(slots_of_a_session)
{
	ck_assert_uint_eq(judge_first_slot(&window, 1), 2);
	queued(0, 0, 0);
	queued(2, 0, 4);
	RULED(good.slot = 0, PUSH_QUEUES); /* 2 */
	queued(2, 1, 3);
	RULED(good.slot = 1, PUSH_SLOT_BUSY);
	RULED(good.slot = 2, PUSH_NO_SLOT); /* 4, of rank 2 */
	state.rank[1].session.spare = 1;
	ck_assert_uint_eq(judge_first_slot(&window, 1), 6);
	RULED(good.slot = 1, PUSH_QUEUES);
	plan.plan.slots = 7;
	RULED(good.slot = 0, PUSH_QUEUES);
	RULED(good.slot = 1, PUSH_NO_SLOT); /* the engine has not so many */
}
END_TEST

START_TEST(who_has_left_gives_nothing)
{
	state.rank[1].flushed = RANK_LEFT;
	RULED(good.slot = 0, PUSH_FLUSHED);
	state.rank[1].flushed = RANK_OPEN;
	for (state.r.phase = WINDOW_CLOSED; state.r.phase <= WINDOW_APPLYING; state.r.phase++)
		RULED(good.slot = 0, PUSH_CLOSED);
}
END_TEST

/* The longest numbers that there are still fit into an answer. */
START_TEST(words_are_whole)
{
	char text[REFUSAL_BYTES], large[400];
	for (int r = 0; r < N_RULINGS; r++) {
		if (!rows[r].status || r == PUSH_NO_RANK)
			continue;
		teardown_window();
		setup_window();
		plan.numbers[1] = 65535;
		spoil((enum ruling)r);
		struct verdict v = judge();
		plan.plan.job_id = UINT64_MAX;
		state.r.window += UINT64_C(1000000000000000);
		good.window += UINT64_C(1000000000000000);
		state.r.window_lr = 3.40282e+38;
		refusal_describe(&window, &good, &v, text, sizeof(text));
		refusal_describe(&window, &good, &v, large, sizeof(large));
		ck_assert_str_eq(text, large);
	}
}
END_TEST

Suite *judge_suite(void)
{
	Suite *s = suite_create("judge");
	TCase *t = tcase_create("push");
	tcase_add_checked_fixture(t, setup_window, teardown_window);
	tcase_add_loop_test(t, each_row_alone, 0, N_RULINGS);
	tcase_add_loop_test(t, each_two_rows_together, 0, N_RULINGS);
	tcase_add_test(t, numbers_at_their_borders);
	tcase_add_test(t, bitmaps_of_any_size);
	tcase_add_test(t, windows_that_are_over);
	tcase_add_test(t, a_last_window_is_known_by_its_commit);
	tcase_add_test(t, keys_of_repeats);
	tcase_add_test(t, repeats_of_what_is_queued);
	tcase_add_test(t, the_order_of_a_rank);
	tcase_add_test(t, slots_of_a_session);
	tcase_add_test(t, who_has_left_gives_nothing);
	tcase_add_test(t, words_are_whole);
	suite_add_tcase(s, t);
	return s;
}

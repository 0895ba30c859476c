/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of the library through mailboxes of a real engine. What goes by RPC instead (push_attempt is replaced, see
 * -Wl,--wrap) becomes the command that gaccd would send to the same engine. */
#include "lib/internal.h"

#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "real_engine.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum status __wrap_push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

#define RANKS REAL_RANKS
#define MICRO REAL_MICRO

static struct gacc_client client;
static char endpoint[] = "dns:nowhere";
static struct gacc_job job[RANKS];
static int line[RANKS][2]; /* attach sockets: the trainer's end and gaccd's */
static unsigned char slot[REAL_SLOTS][64];
static int by_rpc;	   /* attempts */
static uint32_t order[64]; /* their micro-batches */
static enum status say;	   /* the next attempt says this, and the engine is not asked; ST_OK: it is */

static void take(struct push *p, const struct real_answer *a)
{
	p->is_void = a->result == 4;
	p->duplicate = a->result == 2 || a->result == 3;
	p->count = a->counted;
	p->micro_size = MICRO;
}

enum status __wrap_push_attempt(struct gacc_job *j, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct push *p = arg;
	struct real_push r = { p->window, p->data_key, (uint32_t)j->rank, p->micro, p->slot,
			       p->weight, p->loss,     p->loss_scale,	  p->lr };
	struct real_answer a = { .st = say };

	order[by_rpc++ % 64] = p->micro;
	say = ST_OK;
	if (!a.st)
		a = real_receive(real_send(&r));
	snprintf(failure->message, sizeof(failure->message), "%s", a.text);
	take(p, &a);
	return failure->status = a.st;
}

/* ---- a trainer of each rank ---- */

static void open_mailbox(uint32_t rank)
{
	struct cells_fds fds = real_fds(rank);
	struct cells_owner o = {
		.job = REAL_JOB, .sgen = 1, .rank = rank, .slots = REAL_SLOTS, .n_tensors = real_tensors()
	};
	char why[160] = "";

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line[rank]), 0);
	ck_assert_msg(cells_open(&job[rank].memory.cells, &fds, &o, line[rank][0], why, sizeof(why)) == ST_OK, "%s",
		      why);
}

static void begin(void)
{
	by_rpc = 0;
	say = ST_OK;
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	for (uint32_t i = 0; i < RANKS; i++) {
		job[i] = (struct gacc_job){ .client = &client,
					    .id = REAL_JOB,
					    .rank = (int)i,
					    .generation = 1,
					    .memory.socket = -1,
					    .held_slot = -1,
					    .registered = true,
					    .running = true,
					    .layout = { .slots = REAL_SLOTS, .n = real_tensors() } };
		for (int s = 0; s < REAL_SLOTS; s++)
			job[i].memory.slot[s] = (struct mapping){ .base = slot[s], .bytes = sizeof(slot[s]) };
		ck_assert_int_eq(window_begin(&job[i].window, 0, 0, MICRO, 1), ST_OK);
		open_mailbox(i);
	}
}

/* The engine has the mailboxes, or not. */
static void begin_with(bool given)
{
	real_begin(given);
	begin();
}

static void end(void)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		while (job[i].posted.n)
			posted_drop(&job[i].posted);
		cells_close(&job[i].memory.cells);
		window_fini(&job[i].window);
		close(line[i][0]);
		close(line[i][1]);
	}
	real_end();
}

static gacc_status push(uint32_t rank, gacc_push_opts o, gacc_push_info *info)
{
	void *buffer;
	gacc_status st = gacc_grad_buffer(&job[rank], &buffer, NULL);

	o.struct_size = sizeof(o);
	return st ? st : gacc_push(&job[rank], &o, info);
}

/* A window of pushes that are counted, in the order in which the engine adds them. */
static void push_window(void)
{
	for (uint32_t m = 0; m < MICRO; m++)
		for (uint32_t r = 0; r < RANKS; r++) {
			gacc_push_opts o = { .weight = 1 + 2 * m + r, .loss = 0.25 + m, .data_key = 77 + m };
			gacc_push_info info;

			job[r].held_slot = (int)m; /* each of its own, as asynchronous pushes have */
			ck_assert_int_eq(push(r, o, &info), GACC_OK);
			ck_assert(info.window == 0 && info.micro == m && info.count == m + 1);
			ck_assert(info.micro_size == MICRO && !info.duplicate);
		}
}

/* ---- pushes ---- */

START_TEST(both_ways_have_the_same_bits)
{
	struct real_outcome a, b;

	begin_with(true);
	push_window();
	ck_assert_int_eq(by_rpc, 0);
	a = real_close();
	end();
	begin_with(false);
	for (uint32_t r = 0; r < RANKS; r++)
		cells_close(&job[r].memory.cells);
	push_window();
	ck_assert_int_eq(by_rpc, RANKS * MICRO);
	b = real_close();
	end();
	ck_assert(a.count == RANKS * MICRO && a.sumsq > 0);
	ck_assert(a.count == b.count && a.sum_weight == b.sum_weight && a.sum_loss == b.sum_loss);
	ck_assert(a.sumsq == b.sumsq && a.digest == b.digest);
}
END_TEST

/* Whatever the engine refuses is refused by RPC, in its words. */
START_TEST(a_refusal_has_the_words_of_rpc)
{
	begin_with(true);
	push_window();
	window_begin(&job[0].window, 0, 0, MICRO, 1);
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1, .data_key = 5 }, NULL), GACC_EINVAL);
	ck_assert_int_eq(by_rpc, 1);
	ck_assert_int_eq(job[0].failure.st, ST_DATA_KEY_MISMATCH);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "push of micro-batch 0 of window 0"));
	end();
}
END_TEST

START_TEST(what_was_counted_is_a_duplicate)
{
	gacc_push_info info;

	begin_with(true);
	push_window();
	window_begin(&job[0].window, 0, 0, MICRO, 1);
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1, .data_key = 77 }, &info), GACC_OK);
	ck_assert(info.duplicate && by_rpc == 0);
	end();
}
END_TEST

/* The engine has not got the mailbox: RPC after a while, and at once from then on, until the cell is answered. */
START_TEST(nobody_reads_the_mailbox)
{
	gacc_push_info info;

	begin_with(false);
	job[0].memory.cells.patience_ms = 50;
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(by_rpc == 1 && info.count == 1 && !info.duplicate);
	job[0].memory.cells.patience_ms = 1000000;
	cells_close(&job[1].memory.cells);
	ck_assert_int_eq(push(1, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(by_rpc == 3 && info.count == 2);
	real_give(0);
	window_begin(&job[0].window, 0, 0, MICRO, 1);
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(by_rpc == 3 && info.duplicate); /* by its cell */
	ck_assert_uint_eq(real_count(), 3);	  /* each once */
	end();
}
END_TEST

/* A mailbox of a session that is to be replaced, or was, is dead. */
START_TEST(an_older_sessions_mailbox_is_left)
{
	begin_with(true);
	job[0].generation = 2;
	ck_assert_int_eq(push(0, (gacc_push_opts){ .weight = 1 }, NULL), GACC_OK);
	ck_assert_int_eq(by_rpc, 1);
	ck_assert_uint_eq(job[0].memory.cells.mem->request[0].seq, 0);
	end();
}
END_TEST

/* ---- asynchronous ---- */

static void post(uint32_t rank, gacc_push_opts o)
{
	o.async = 1;
	ck_assert_int_eq(push(rank, o, NULL), GACC_OK);
}

static gacc_push_opts weighs(double weight)
{
	return (gacc_push_opts){ .weight = weight };
}

START_TEST(pushes_need_no_thread)
{
	struct real_outcome a, b;

	begin_with(true);
	for (uint32_t r = RANKS; r-- > 0;) /* rank 1 waits for rank 0 */
		for (uint32_t m = 0; m < MICRO; m++) {
			gacc_push_opts o = { .weight = 1 + 2 * m + r, .loss = 0.25 + m, .data_key = 77 + m };

			post(r, o);
			ck_assert_uint_eq(job[r].posted.n, m + 1);
		}
	for (uint32_t r = 0; r < RANKS; r++) {
		uint32_t micro;
		bool last;

		ck_assert(!window_next(&job[r].window, &micro, &last)); /* what is posted is no longer owed */
		ck_assert_int_eq(async_settle(&job[r]), GACC_OK);
		ck_assert(job[r].posted.n == 0 && !job[r].sender);
	}
	ck_assert_int_eq(by_rpc, 0);
	a = real_close();
	end();
	begin_with(true);
	push_window();
	b = real_close();
	end();
	ck_assert(a.count == b.count && a.digest == b.digest && a.sum_loss == b.sum_loss);
}
END_TEST

/* A slot is handed out again when the answer to its push is there. */
START_TEST(slots_are_not_shared)
{
	void *first, *second, *third;

	begin_with(false);
	job[0].memory.cells.patience_ms = 50;
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &first, NULL), GACC_OK);
	post(0, weighs(1));
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &second, NULL), GACC_OK);
	ck_assert(first == slot[0] && second == slot[1] && by_rpc == 0);
	post(0, weighs(1));
	real_send(&(struct real_push){ .rank = 1, .weight = 1 }); /* or micro-batch 1 would wait for it */
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &third, NULL), GACC_OK);
	ck_assert(third == slot[0] && by_rpc == 1 && job[0].posted.n == 1);
	end();
}
END_TEST

/* Nothing is accepted: each goes by RPC after the one before. */
START_TEST(repeats_go_in_order)
{
	begin_with(false);
	job[0].memory.cells.patience_ms = 50;
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(by_rpc == 2 && order[0] == 0 && order[1] == 1);
	ck_assert_uint_eq(real_count(), 3);
	end();
}
END_TEST

/* What lies behind a refused push is out of order, in its cell and by RPC. The first one's words are told. */
START_TEST(a_refused_push_takes_those_behind_it_along)
{
	begin_with(true);
	ck_assert_int_eq(push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	post(1, (gacc_push_opts){ .lr = 0.25 });
	post(1, (gacc_push_opts){ .lr = 0.5 });
	ck_assert_int_eq(async_settle(&job[1]), GACC_EINVAL);
	ck_assert_int_eq(job[1].failure.st, ST_LR_MISMATCH);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[1]), "push of micro-batch 0 of window 0"));
	ck_assert(by_rpc == 2 && order[0] == 0 && order[1] == 1);
	ck_assert(job[1].lost && job[1].posted.n == 0); /* only a new session knows what is owed */
	ck_assert_uint_eq(real_count(), 1);
	end();
}
END_TEST

/* An outage without end is told, and nothing is forgotten: the next call tries again. */
START_TEST(an_outage_keeps_what_is_posted)
{
	uint32_t queued[SLOTS_MAX];

	begin_with(false);
	job[0].memory.cells.patience_ms = 50;
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	post(0, weighs(1));
	say = ST_UNAVAILABLE;
	ck_assert_int_eq(async_settle(&job[0]), GACC_EUNAVAIL);
	ck_assert_uint_eq(posted_queued(&job[0].posted, queued), 2);
	ck_assert(queued[0] == 0 && queued[1] == 1);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(by_rpc, 3);
	end();
}
END_TEST

/* Closed under way: what lies there goes by RPC, then what comes, on the sender's thread and in order. */
START_TEST(after_closed_there_is_the_sender)
{
	begin_with(false);
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	real_set_closed(0);
	post(0, weighs(1));
	ck_assert(!job[0].sender && job[0].posted.n == 2);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(by_rpc == 2 && order[0] == 0 && order[1] == 1);
	window_begin(&job[0].window, 0, 0, MICRO, 1);
	post(0, weighs(1));
	ck_assert(job[0].sender && job[0].posted.n == 0);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(by_rpc, 3);
	sender_free(job[0].sender);
	end();
}
END_TEST

START_TEST(a_closed_window_is_given_up)
{
	uint32_t micro;
	bool last;

	begin_with(true);
	real_close();
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_ESTALE);
	ck_assert(!window_next(&job[0].window, &micro, &last));
	ck_assert(!job[0].lost);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	end();
}
END_TEST

START_TEST(a_void_push_is_told_once)
{
	begin_with(true);
	real_poison(0, 0);
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_ENONFINITE);
	ck_assert_ptr_nonnull(strstr(job[0].failure.text, "micro-batch 0 of window 0"));
	ck_assert(by_rpc == 0 && !job[0].lost);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	end();
}
END_TEST

START_TEST(the_engine_dies_with_pushes_in_cells)
{
	begin_with(true);
	real_kill();
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t m = 0; m < MICRO; m++)
			post(r, weighs(1));
	real_start();
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(async_settle(&job[r]), GACC_OK);
	ck_assert(by_rpc == 0 && real_count() == RANKS * MICRO);
	end();
}
END_TEST

/* A new session while pushes are posted: gacc_next does not hand them out again, and their numbers mean nothing. */
START_TEST(a_new_session_knows_what_is_posted)
{
	Gacc__V1__WaitReadyResponse ready = GACC__V1__WAIT_READY_RESPONSE__INIT;
	uint32_t missing[] = { 0, 1 }, micro;
	bool last;

	begin_with(false);
	post(0, weighs(1));
	ready.missing = missing;
	ready.n_missing = 2;
	ready.micro_size = MICRO;
	ck_assert_int_eq(position_adopt(&job[0], &ready), ST_OK);
	ck_assert(window_next(&job[0].window, &micro, &last) && micro == 1);
	job[0].generation = 2;
	cells_close(&job[0].memory.cells);
	open_mailbox(0);
	cells_publish(&job[0].memory.cells, (struct gacc_box_request){ .kind = GACC_BOX_WAIT }, NULL);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK); /* at once */
	ck_assert_int_eq(by_rpc, 1);
	end();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client posted");
	TCase *async = tcase_create("asynchronous");
	TCase *tc = tcase_create("pushes");

	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, both_ways_have_the_same_bits);
	tcase_add_test(tc, a_refusal_has_the_words_of_rpc);
	tcase_add_test(tc, what_was_counted_is_a_duplicate);
	tcase_add_test(tc, nobody_reads_the_mailbox);
	tcase_add_test(tc, an_older_sessions_mailbox_is_left);
	suite_add_tcase(suite, tc);
	tcase_set_timeout(async, 30);
	tcase_add_test(async, pushes_need_no_thread);
	tcase_add_test(async, slots_are_not_shared);
	tcase_add_test(async, repeats_go_in_order);
	tcase_add_test(async, a_refused_push_takes_those_behind_it_along);
	tcase_add_test(async, an_outage_keeps_what_is_posted);
	tcase_add_test(async, after_closed_there_is_the_sender);
	tcase_add_test(async, a_closed_window_is_given_up);
	tcase_add_test(async, a_void_push_is_told_once);
	tcase_add_test(async, the_engine_dies_with_pushes_in_cells);
	tcase_add_test(async, a_new_session_knows_what_is_posted);
	suite_add_tcase(suite, async);
	return suite_run(suite);
}

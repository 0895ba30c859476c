/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of the library through mailboxes of a real engine. What goes by RPC instead (push_attempt is replaced, see
 * -Wl,--wrap) becomes the command that gaccd would send to the same engine. */
#include "lib/internal.h"

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

	ck_assert_msg(cells_open(&job[rank].memory.cells, &fds, &o, line[rank][0], why, sizeof(why)) == ST_OK, "%s",
		      why);
}

static void begin(void)
{
	by_rpc = 0;
	say = ST_OK;
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	for (uint32_t i = 0; i < RANKS; i++) {
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line[i]), 0);
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

int main(void)
{
	Suite *suite = suite_create("client posted");
	TCase *tc = tcase_create("pushes");

	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, both_ways_have_the_same_bits);
	tcase_add_test(tc, a_refusal_has_the_words_of_rpc);
	tcase_add_test(tc, what_was_counted_is_a_duplicate);
	tcase_add_test(tc, nobody_reads_the_mailbox);
	tcase_add_test(tc, an_older_sessions_mailbox_is_left);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

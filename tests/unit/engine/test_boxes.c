/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes at a real engine: pushes from cells beside pushes by command, the fence, flushes, deaths. */
#include "rig.h"

#include "engine/boxes.h"
#include "support/box.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define RANKS 2
#define SOON_MS 5000

static struct rig rig;
static struct mailbox_fds fds[RANKS];
static struct box_trainer trainer[RANKS];

/* ---- a job with mailboxes ---- */

static void make(uint32_t rank, uint64_t sgen)
{
	char why[160] = "";
	struct mailbox_owner o = { .job = RIG_JOB,
				   .sgen = sgen,
				   .rank = rank,
				   .slots = rig.plan->slots_per_rank,
				   .n_tensors = rig.plan->n_tensors };
	ck_assert_msg(mailbox_make(&fds[rank], &o, why, sizeof(why)) == ST_OK, "%s", why);
	box_trainer_open(&trainer[rank], &fds[rank], rig.plan->n_tensors);
}

static void unmake(uint32_t rank)
{
	box_trainer_close(&trainer[rank]);
	mailbox_close_fds(&fds[rank]);
}

static uint64_t send_mailbox(struct engine_command c, const int *passed, int n)
{
	c.op = ENGINE_MAILBOX;
	c.id = ++rig.next_id;
	ck_assert_int_eq(channel_send(rig.fd, &c, sizeof(c), NULL, 0, passed, n), 0);
	return c.id;
}

static struct engine_answer give_as(struct engine_command c, int n)
{
	struct engine_answer a;
	const int passed[] = { fds[c.rank % RANKS].memory, fds[c.rank % RANKS].submit, fds[c.rank % RANKS].answer };
	uint64_t id = send_mailbox(c, passed, n);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_MAILBOX && a.id == id);
	return a;
}

static void give(uint32_t rank, uint64_t sgen)
{
	struct engine_answer a = give_as((struct engine_command){ .rank = rank, .sgen = sgen, .epoch = 1 }, BOXES_FDS);
	ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
}

static void begin(struct rig_config c)
{
	rig_begin(&rig, c);
	rig_fill_all(&rig, 1, true);
	rig_zero_params(&rig);
	for (uint32_t i = 0; i < RANKS; i++)
		make(i, 1);
}

static void begin_with_mailboxes(struct rig_config c)
{
	begin(c);
	for (uint32_t i = 0; i < RANKS; i++)
		give(i, 1);
}

static void end(void)
{
	for (uint32_t i = 0; i < RANKS; i++)
		unmake(i);
	rig_close(&rig);
}

/* The push of rig_add_command. */
static struct gacc_box_request request(uint32_t micro, double weight)
{
	return (struct gacc_box_request){ .kind = GACC_BOX_PUSH,
					  .window = rig.window,
					  .micro = micro,
					  .slot = micro,
					  .weight = weight,
					  .loss = 1.5 };
}

static uint64_t publish(uint32_t rank, uint32_t cell, struct gacc_box_request q)
{
	uint64_t seq = box_publish(&trainer[rank], cell, q, NULL);
	box_bell(&trainer[rank]);
	return seq;
}

static struct gacc_box_answer await(uint32_t rank, uint32_t cell, uint64_t seq)
{
	struct gacc_box_answer a;
	ck_assert_msg(box_await(&trainer[rank], cell, seq, &a, SOON_MS), "rank %u: cell %u is not answered", rank,
		      cell);
	return a;
}

static bool is_open(uint32_t rank, uint32_t cell, uint64_t seq)
{
	struct gacc_box_answer a;
	return !box_await(&trainer[rank], cell, seq, &a, 50);
}

static struct gacc_box_answer push(uint32_t rank, uint32_t cell, struct gacc_box_request q)
{
	return await(rank, cell, publish(rank, cell, q));
}

/* The engine has taken all that was published before. */
static void settle(void)
{
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_PING }).status, ST_OK);
}

/* ---- pushes ---- */

START_TEST(the_trainer_is_woken)
{
	struct epoll_event event;
	begin_with_mailboxes(rig_small());
	/* when the mailbox comes: an engine before this one may have died before its bell */
	ck_assert_int_eq(epoll_wait(trainer[0].waits, &event, 1, SOON_MS), 1);
	uint64_t seq = publish(0, 0, request(0, 1));
	ck_assert_int_eq(epoll_wait(trainer[0].waits, &event, 1, SOON_MS), 1);
	ck_assert_uint_eq(event.data.u64, MAILBOX_BELL);
	ck_assert(!is_open(0, 0, seq));
	ck_assert_int_eq(epoll_wait(trainer[0].waits, &event, 1, 0), 0);
	end();
}
END_TEST

START_TEST(a_push_in_a_cell_counts_like_one_by_command)
{
	begin_with_mailboxes(rig_small());
	for (uint32_t m = 0; m < rig.config.micro_size; m++)
		for (uint32_t r = 0; r < RANKS; r++) {
			struct gacc_box_answer a = push(r, m, request(m, 1 + 2 * m + r));
			ck_assert(a.status == ST_OK && a.result == COUNTED && a.window == 0);
			ck_assert(a.counted == m + 1 && a.micro_size == rig.config.micro_size);
		}
	rig_close_window(&rig);
	struct engine_answer go = rig_go(&rig, 1);
	double weight = go.sum_weight, sumsq = go.sumsq;
	uint64_t count = go.count, digest = go.digest;
	end();
	begin(rig_small());
	for (uint32_t m = 0; m < rig.config.micro_size; m++)
		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_uint_eq(rig_add(&rig, r, m, 1 + 2 * m + r).result, COUNTED);
	rig_close_window(&rig);
	go = rig_go(&rig, 1);
	ck_assert(go.sum_weight == weight && go.sumsq == sumsq && go.count == count && go.digest == digest);
	ck_assert(count == RANKS * rig.config.micro_size && sumsq > 0);
	end();
}
END_TEST

START_TEST(what_it_waited_for_is_said)
{
	begin_with_mailboxes(rig_small());
	uint64_t seq = publish(1, 0, request(0, 1));
	ck_assert(is_open(1, 0, seq));
	ck_assert_uint_eq(push(0, 0, request(0, 1)).result, COUNTED);
	struct gacc_box_answer a = await(1, 0, seq);
	ck_assert(a.status == ST_OK && a.result == COUNTED && a.parked_ns >= 50000000 && a.waited_for == 0);
	end();
}
END_TEST

START_TEST(refusals_are_numbers)
{
	begin_with_mailboxes(rig_small());
	struct gacc_box_request q = request(1, 1);
	ck_assert_uint_eq(push(0, 0, q).status, ST_OUT_OF_ORDER);
	q = request(0, 1);
	q.loss_scale = 2;
	ck_assert_uint_eq(push(0, 0, q).status, ST_LOSS_SCALE_MISMATCH);
	q = request(0, 1);
	q.window = 1;
	ck_assert_uint_eq(push(0, 0, q).status, ST_NOT_CURRENT_WINDOW);
	q = request(rig.config.micro_size, 1);
	q.slot = 0;
	ck_assert_uint_eq(push(0, 0, q).status, ST_WINDOW_FULL);
	q = (struct gacc_box_request){ .kind = GACC_BOX_WAIT, .window = 0 };
	ck_assert_uint_eq(push(0, 0, q).status, ST_UNAVAILABLE);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 0);
	end();
}
END_TEST

START_TEST(both_ways_may_be_mixed)
{
	struct engine_answer a;
	begin_with_mailboxes(rig_small());
	uint64_t seq = publish(1, 3, request(0, 2));
	settle();
	uint64_t id = rig_send(&rig, rig_add_command(&rig, 1, 0, 2)); /* repeats it */
	settle();
	ck_assert(is_open(1, 3, seq));
	ck_assert_uint_eq(push(0, 0, request(0, 1)).result, COUNTED);
	ck_assert_uint_eq(await(1, 3, seq).result, COUNTED);
	ck_assert(rig_receive(&rig, &a) && a.id == id && a.result == DUPLICATE);
	ck_assert_uint_eq(push(1, 3, request(0, 2)).result, DUPLICATE);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, COUNTED);
	ck_assert_uint_eq(push(1, 3, request(1, 2)).result, COUNTED);
	rig_read(&rig);
	ck_assert(rig.state.r.count == 4 && rig.state.r.sum_weight == 6);
	end();
}
END_TEST

/* The bell of a cell has not come yet when a command overtakes it. */
START_TEST(a_command_does_not_overtake_a_cell)
{
	begin_with_mailboxes(rig_small());
	struct engine_answer a;
	uint64_t seq = box_publish(&trainer[0], 5, request(0, 1), NULL);
	uint64_t id = rig_send(&rig, rig_add_command(&rig, 0, 1, 1));
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, COUNTED);
	ck_assert(rig_receive(&rig, &a) && a.id == id && a.result == COUNTED);
	ck_assert_uint_eq(await(0, 5, seq).result, COUNTED);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 3);
	end();
}
END_TEST

START_TEST(void_and_zeroed_after)
{
	struct rig_config c = rig_small();
	c.reject_nonfinite = true;
	begin_with_mailboxes(c);
	rig_set_gradient(&rig, 0, 0, 3, INFINITY);
	ck_assert_uint_eq(push(0, 0, request(0, 1)).result, VOID);
	struct gacc_box_request q = request(0, 1);
	q.flags = GACC_BOX_ZERO_AFTER;
	ck_assert_uint_eq(push(1, 0, q).result, COUNTED);
	const unsigned char *slot = rig_data(&rig, SEG_SLOT, rig.config.micro_size);
	ck_assert(slot[0] == 0 && !memcmp(slot, slot + 1, rig.plan->slot_bytes - 1));
	rig_read(&rig);
	ck_assert(rig.state.r.count == 1 && rig.state.voided[0] == 1);
	end();
}
END_TEST

START_TEST(tensors_that_are_not_present_add_nothing)
{
	begin_with_mailboxes(rig_small());
	unsigned char first_only = 1;
	rig_set_gradient(&rig, 0, 0, 1, 5);
	rig_set_gradient(&rig, 0, 5, 1, 3);
	struct gacc_box_request q = request(0, 1);
	q.n_present = 1;
	uint64_t seq = box_publish(&trainer[0], 0, q, &first_only);
	box_bell(&trainer[0]);
	ck_assert_uint_eq(await(0, 0, seq).result, COUNTED);
	rig_read(&rig);
	ck_assert_double_eq(rig_sum(&rig, rig.state.r.x, 0, 1), 5);
	ck_assert_double_eq(rig_sum(&rig, rig.state.r.x, 5, 1), 0);
	first_only = 0xff; /* bits behind the last tensor */
	q = request(1, 1);
	q.n_present = 1;
	seq = box_publish(&trainer[0], 1, q, &first_only);
	box_bell(&trainer[0]);
	ck_assert_uint_eq(await(0, 1, seq).status, ST_INVALID_ARGUMENT);
	end();
}
END_TEST

/* ---- mailboxes come and go ---- */

static int count_fds(void)
{
	char path[64];
	int n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)rig.pid);
	DIR *d = opendir(path);
	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

START_TEST(mailboxes_that_are_refused_leave_no_descriptor)
{
	rig_begin(&rig, rig_small());
	for (uint32_t i = 0; i < RANKS; i++)
		make(i, 1);
	const struct engine_command good = { .rank = 1, .sgen = 1, .epoch = 1 };
	struct engine_command c = good;
	int before = count_fds();
	ck_assert_uint_eq(give_as(good, BOXES_FDS).status, ST_NOT_READY); /* no parameters */
	rig_zero_params(&rig);
	c.rank = RANKS;
	ck_assert_uint_eq(give_as(c, BOXES_FDS).status, ST_RANK_OUT_OF_RANGE);
	c = good;
	c.sgen = 0;
	ck_assert_uint_eq(give_as(c, BOXES_FDS).status, ST_SESSION_FENCED);
	c.sgen = 2;
	ck_assert_uint_eq(give_as(c, BOXES_FDS).status, ST_SESSION_UNKNOWN);
	c = good;
	c.epoch = 2;
	ck_assert_uint_eq(give_as(c, BOXES_FDS).status, ST_STALE_EPOCH);
	ck_assert_uint_eq(give_as(good, 2).status, ST_INVALID_ARGUMENT);
	const int wrong[] = { fds[1].submit, fds[1].submit, fds[1].answer };
	struct engine_answer a;
	send_mailbox(good, wrong, BOXES_FDS);
	ck_assert(rig_receive(&rig, &a) && a.status == ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(count_fds(), before);
	ck_assert_uint_eq(give_as(good, BOXES_FDS).status, ST_OK);
	int with_one = count_fds();
	ck_assert_int_eq(with_one, before + 3);			   /* two bells, and the epoll that watches them */
	ck_assert_uint_eq(give_as(good, BOXES_FDS).status, ST_OK); /* again: in the place of the first */
	ck_assert_int_eq(count_fds(), with_one);
	end();
}
END_TEST

START_TEST(a_fenced_session_is_heard_no_more)
{
	begin_with_mailboxes(rig_small());
	uint64_t parked = publish(1, 0, request(0, 64));
	settle();
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
			  ST_OK);
	uint64_t late = publish(1, 1, request(0, 32));
	ck_assert_uint_eq(push(0, 0, request(0, 1)).result, COUNTED);
	ck_assert(is_open(1, 0, parked) && is_open(1, 1, late));
	unmake(1);
	make(1, 2);
	give(1, 2);
	ck_assert_uint_eq(push(1, 0, request(0, 2)).result, COUNTED);
	rig_read(&rig);
	ck_assert(rig.state.r.count == 2 && rig.state.r.sum_weight == 3);
	end();
}
END_TEST

START_TEST(what_lies_in_a_mailbox_before_it_is_given_is_taken_with_it)
{
	begin(rig_small());
	uint64_t first = box_publish(&trainer[0], 6, request(0, 1), NULL);
	uint64_t second = box_publish(&trainer[0], 2, request(1, 1), NULL);
	give(0, 1);
	ck_assert_uint_eq(await(0, 6, first).result, COUNTED);
	ck_assert(is_open(0, 2, second)); /* rank 1's first comes before */
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, COUNTED);
	ck_assert_uint_eq(await(0, 2, second).result, COUNTED);
	end();
}
END_TEST

/* ---- the end of a window ---- */

START_TEST(a_flush_waits_for_the_cells_before_it)
{
	struct engine_answer a;
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 };
	begin_with_mailboxes(rig_small());
	uint64_t seq = box_publish(&trainer[1], 0, request(0, 2), NULL); /* no bell */
	uint64_t id = rig_send(&rig, c);
	settle(); /* its answer comes first: the flush waits */
	ck_assert_uint_eq(push(0, 0, request(0, 1)).result, COUNTED);
	ck_assert_uint_eq(await(1, 0, seq).result, COUNTED);
	ck_assert(rig_receive(&rig, &a) && a.id == id && a.op == ENGINE_FLUSH && a.status == ST_OK);
	rig_read(&rig);
	ck_assert(rig.state.rank[1].flushed == RANK_FLUSHED && rig.state.rank[1].counted == 1);
	ck_assert_uint_eq(push(1, 0, request(1, 2)).status, ST_FLUSHED);
	end();
}
END_TEST

START_TEST(a_flush_that_waits_ends_with_its_session_and_with_the_window)
{
	struct engine_answer a;
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 };
	begin_with_mailboxes(rig_small());
	publish(1, 0, request(0, 2));
	uint64_t id = rig_send(&rig, c);
	uint64_t attach = rig_send(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 });
	ck_assert(rig_receive(&rig, &a) && a.id == id && a.status == ST_SESSION_FENCED);
	ck_assert(rig_receive(&rig, &a) && a.id == attach && a.status == ST_OK);
	unmake(1);
	make(1, 2);
	give(1, 2);
	uint64_t seq = publish(1, 0, request(0, 2));
	c.sgen = 2;
	id = rig_send(&rig, c);
	uint64_t close = rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&rig, &a) && a.id == close && a.status == ST_OK && a.count == 0);
	ck_assert(rig_receive(&rig, &a) && a.id == id && a.status == ST_WINDOW_CLOSED);
	ck_assert_uint_eq(await(1, 0, seq).status, ST_WINDOW_CLOSED);
	end();
}
END_TEST

START_TEST(a_late_repeat_hears_that_it_was_committed)
{
	begin_with_mailboxes(rig_small());
	for (uint32_t m = 0; m < rig.config.micro_size; m++)
		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_uint_eq(push(r, 0, request(m, 1)).result, COUNTED);
	struct gacc_box_request again = request(1, 1);
	rig_step(&rig, APPLIED, 1, 1);
	ck_assert_uint_eq(push(1, 1, again).result, ALREADY_COMMITTED);
	ck_assert_uint_eq(push(0, 1, request(0, 1)).result, COUNTED);
	end();
}
END_TEST

/* ---- deaths ---- */

#define WINDOWS 12
#define CELL(m) ((m) % GACC_BOX_CELLS)

/* A push under way: by cell, or by command. */
struct under_way {
	bool by_cell, done;
	uint64_t seq;
	struct engine_command command;
};

static unsigned seed;
static int n_deaths;

static void begin_again(void)
{
	rig_kill(&rig);
	n_deaths++;
	rig_start(&rig);
	for (uint32_t i = 0; i < RANKS; i++)
		give(i, 1);
}

static bool answered_cell(struct under_way *u, uint32_t rank, uint32_t micro)
{
	struct gacc_box_answer a;
	if (!box_await(&trainer[rank], CELL(micro), u->seq, &a, 0))
		return false;
	ck_assert_msg(a.status == ST_OK && (a.result == COUNTED || a.result == DUPLICATE), "status %u result %u",
		      a.status, a.result);
	return true;
}

static void send_commands(struct under_way *u, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!u[i].by_cell && !u[i].done)
			u[i].command.id = rig_send(&rig, u[i].command);
}

static void take_answer(struct under_way *u, uint32_t n)
{
	struct engine_answer a;
	if (channel_recv(rig.fd, &a, sizeof(a), NULL, NULL) != (int)sizeof(a))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (!u[i].by_cell && u[i].command.id == a.id) {
			ck_assert_msg(a.status == ST_OK, "status %u %s", a.status, a.text);
			u[i].done = true;
		}
}

/* Each rank's pushes in ascending order. When it goes over from cells to commands is drawn; the other way round, a cell
 * might be looked at before the command. */
static void push_window(bool deaths)
{
	uint32_t k = rig.config.micro_size, left = RANKS * k;
	struct under_way u[RANKS * 8] = { { 0 } };
	for (uint32_t m = 0; m < k; m++)
		for (uint32_t r = 0; r < RANKS; r++) {
			struct under_way *p = &u[r * k + m];
			rig_fill_slot(&rig, r * k + m, rig.window * 100 + r * k + m);
			p->command = rig_add_command(&rig, r, m, 1 + r + 2 * m);
			p->by_cell = deaths && (!m || p[-1].by_cell) && rand_r(&seed) % 4;
			if (p->by_cell)
				p->seq = publish(r, CELL(m), request(m, 1 + r + 2 * m));
			else
				p->command.id = rig_send(&rig, p->command);
		}
	while (left) {
		if (deaths && rand_r(&seed) % 200 == 0) {
			begin_again();
			send_commands(u, RANKS * k);
		}
		take_answer(u, RANKS * k);
		left = 0;
		for (uint32_t i = 0; i < RANKS * k; i++) {
			u[i].done = u[i].done || (u[i].by_cell && answered_cell(&u[i], i / k, i % k));
			left += !u[i].done;
		}
	}
}

static uint64_t run(bool deaths, double *weight)
{
	struct rig_config c = rig_small();
	uint64_t digest = 0;
	c.micro_size = 4;
	if (deaths)
		begin_with_mailboxes(c);
	else
		begin(c);
	*weight = 0;
	for (int w = 0; w < WINDOWS; w++) {
		push_window(deaths);
		if (deaths && rand_r(&seed) % 2)
			begin_again();
		rig_close_window(&rig);
		*weight += rig_go(&rig, 1).sum_weight;
		struct engine_answer a = rig_call(&rig, rig_commit_command(&rig, APPLIED, 0.125, 0.01));
		ck_assert_uint_eq(a.status, ST_OK);
		digest = a.digest;
		rig.applied_step++;
		rig.window++;
	}
	end();
	return digest;
}

START_TEST(deaths_of_the_engine_change_no_bit)
{
	double weight, with_deaths;
	seed = 1 + (unsigned)_i;
	n_deaths = 0;
	uint64_t digest = run(false, &weight);
	ck_assert(run(true, &with_deaths) == digest && digest != 0);
	ck_assert_double_eq(with_deaths, weight);
	ck_assert_int_gt(n_deaths, 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("boxes");
	TCase *c = tcase_create("boxes");
	tcase_set_timeout(c, 60);
	tcase_add_test(c, the_trainer_is_woken);
	tcase_add_test(c, a_push_in_a_cell_counts_like_one_by_command);
	tcase_add_test(c, what_it_waited_for_is_said);
	tcase_add_test(c, refusals_are_numbers);
	tcase_add_test(c, both_ways_may_be_mixed);
	tcase_add_test(c, a_command_does_not_overtake_a_cell);
	tcase_add_test(c, void_and_zeroed_after);
	tcase_add_test(c, tensors_that_are_not_present_add_nothing);
	tcase_add_test(c, mailboxes_that_are_refused_leave_no_descriptor);
	tcase_add_test(c, a_fenced_session_is_heard_no_more);
	tcase_add_test(c, what_lies_in_a_mailbox_before_it_is_given_is_taken_with_it);
	tcase_add_test(c, a_flush_waits_for_the_cells_before_it);
	tcase_add_test(c, a_flush_that_waits_ends_with_its_session_and_with_the_window);
	tcase_add_test(c, a_late_repeat_hears_that_it_was_committed);
	tcase_add_loop_test(c, deaths_of_the_engine_change_no_bit, 0, 8);
	suite_add_tcase(s, c);
	return suite_run(s);
}

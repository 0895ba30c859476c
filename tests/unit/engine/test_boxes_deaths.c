/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths of an engine with mailboxes: the bits are those of an undisturbed run without any. */
#include "boxes_rig.h"

#include <check.h>
#include <stdlib.h>

Suite *boxes_deaths_suite(void);

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
	rig_kill(&boxes_rig);
	n_deaths++;
	rig_start(&boxes_rig);
	for (uint32_t i = 0; i < BOXES_RANKS; i++)
		boxes_give(i, 1);
}

static bool answered_cell(struct under_way *u, uint32_t rank, uint32_t micro)
{
	struct gacc_box_answer a;
	if (!box_await(&boxes_trainer[rank], CELL(micro), u->seq, &a, 0))
		return false;
	ck_assert_msg(a.status == ST_OK && (a.result == COUNTED || a.result == DUPLICATE), "status %u result %u",
		      a.status, a.result);
	return true;
}

static void send_commands(struct under_way *u, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!u[i].by_cell && !u[i].done)
			u[i].command.id = rig_send(&boxes_rig, u[i].command);
}

static void take_answer(struct under_way *u, uint32_t n)
{
	struct engine_answer a;
	if (packet_recv(boxes_rig.fd, &a, sizeof(a), NULL, NULL) != (int)sizeof(a))
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
	uint32_t k = boxes_rig.config.micro_size, left = BOXES_RANKS * k;
	struct under_way u[BOXES_RANKS * 8] = { { 0 } };
	for (uint32_t m = 0; m < k; m++)
		for (uint32_t r = 0; r < BOXES_RANKS; r++) {
			struct under_way *p = &u[r * k + m];
			rig_fill_slot(&boxes_rig, r * k + m, boxes_rig.window * 100 + r * k + m);
			p->command = rig_add_command(&boxes_rig, r, m, 1 + r + 2 * m);
			p->by_cell = deaths && (!m || p[-1].by_cell) && rand_r(&seed) % 4;
			if (p->by_cell)
				p->seq = boxes_publish(r, CELL(m), boxes_request(m, 1 + r + 2 * m));
			else
				p->command.id = rig_send(&boxes_rig, p->command);
		}
	while (left) {
		if (deaths && rand_r(&seed) % 200 == 0) {
			begin_again();
			send_commands(u, BOXES_RANKS * k);
		}
		take_answer(u, BOXES_RANKS * k);
		left = 0;
		for (uint32_t i = 0; i < BOXES_RANKS * k; i++) {
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
		boxes_begin_with_mailboxes(c);
	else
		boxes_begin(c);
	*weight = 0;
	for (int w = 0; w < WINDOWS; w++) {
		push_window(deaths);
		if (deaths && rand_r(&seed) % 2)
			begin_again();
		rig_close_window(&boxes_rig);
		*weight += rig_go(&boxes_rig, 1).sum_weight;
		struct engine_answer a = rig_call(&boxes_rig, rig_commit_command(&boxes_rig, APPLIED, 0.125, 0.01));
		ck_assert_uint_eq(a.status, ST_OK);
		digest = a.digest;
		boxes_rig.applied_step++;
		boxes_rig.window++;
	}
	boxes_end();
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
	ck_assert_int_gt(n_deaths, 0);
}
END_TEST

Suite *boxes_deaths_suite(void)
{
	Suite *s = suite_create("boxes, deaths");
	TCase *c = tcase_create("deaths");
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, deaths_of_the_engine_change_no_bit, 0, 8);
	suite_add_tcase(s, c);
	return s;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The command SLOTS: a session's slots get other memory, which the engine then reads, and no other. */
#include "rig.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

static struct rig rig;
static struct segment fresh;
static char why[160];

static struct rig_config small(bool in_slot)
{
	struct rig_config c = rig_small();
	c.ranks = in_slot ? 1 : 2;
	c.micro_size = 1;
	c.in_slot = in_slot;
	return c;
}

static void begin(bool in_slot)
{
	rig_begin(&rig, small(in_slot));
	rig_zero_params(&rig);
	ck_assert_int_eq(segment_create(&fresh, RIG_JOB, RIG_GENERATION, rig.plan->fingerprint, SEG_SLOT, 0,
					rig_bytes(&rig, SEG_SLOT, 0), true, why, sizeof(why)),
			 ST_OK);
}

static void end(void)
{
	segment_close(&fresh);
	rig_close(&rig);
}

static struct engine_answer send_slots(struct engine_command c, const int *fds, int n)
{
	struct engine_answer a;
	c.op = ENGINE_SLOTS;
	c.id = ++rig.next_id;
	ck_assert_int_eq(packet_send(rig.fd, &c, sizeof(c), NULL, 0, fds, n), 0);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_SLOTS && a.id == c.id);
	return a;
}

/* What lies in the old memory counts no more, whoever writes to it. */
START_TEST(pushes_come_from_the_new_memory)
{
	begin(false);
	rig_fill_slot_exact(&rig, 0, 1);
	memcpy(fresh.data, rig_data(&rig, SEG_SLOT, 0), fresh.data_bytes);
	float want = rig_gradient(&rig, 0, 0, 0);
	unsigned char *old = rig_data(&rig, SEG_SLOT, 0);
	memset(old - SEGMENT_DATA_OFFSET, 0x3e, SEGMENT_DATA_OFFSET + fresh.data_bytes); /* with its header */
	struct engine_answer a = send_slots((struct engine_command){ .rank = 0, .sgen = 1, .slot = 0 }, &fresh.fd, 1);
	ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_read(&rig);
	ck_assert_double_eq(rig_sum(&rig, rig.state.r.x, 0, 0), (double)want);
	end();
}
END_TEST

START_TEST(only_the_session_in_force_gets_them_and_only_its_own)
{
	begin(false);
	const int two[] = { fresh.fd, fresh.fd };
	const struct engine_command good = { .rank = 0, .sgen = 1, .slot = 0 };
	struct engine_command c = good;
	c.sgen = 2;
	ck_assert_uint_eq(send_slots(c, &fresh.fd, 1).status, ST_SESSION_FENCED);
	c = good;
	c.slot = 1;
	ck_assert_uint_eq(send_slots(c, &fresh.fd, 1).status, ST_SESSION_FENCED);
	c = good;
	c.rank = 2;
	ck_assert_uint_eq(send_slots(c, &fresh.fd, 1).status, ST_RANK_OUT_OF_RANGE);
	ck_assert_uint_eq(send_slots(good, two, 2).status, ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(send_slots(good, NULL, 0).status, ST_INVALID_ARGUMENT);
	c = good; /* the segment is of slot 0 */
	c.rank = c.slot = 1;
	ck_assert_uint_eq(send_slots(c, &fresh.fd, 1).status, ST_SEGMENT_CORRUPT);
	ck_assert_uint_eq(send_slots(good, &fresh.fd, 1).status, ST_OK);
	end();
}
END_TEST

/* accumulate: none, as if the job had one slot */
START_TEST(a_slot_that_is_the_sum_stays_until_the_window_is_over)
{
	begin(true);
	struct segment other;
	const struct engine_command good = { .rank = 0, .sgen = 1, .slot = 0 };
	ck_assert_int_eq(segment_create(&other, RIG_JOB, RIG_GENERATION, rig.plan->fingerprint, SEG_SLOT, 1,
					rig_bytes(&rig, SEG_SLOT, 1), false, why, sizeof(why)),
			 ST_OK);
	const int fds[] = { fresh.fd, other.fd };
	rig_fill_slot_exact(&rig, 0, 1);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_uint_eq(send_slots(good, fds, (int)rig.plan->slots_per_rank).status, ST_NOT_READY);
	rig_step(&rig, APPLIED, 1, 1);
	ck_assert_uint_eq(send_slots(good, fds, (int)rig.plan->slots_per_rank).status, ST_OK);
	segment_close(&other);
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine_slots");
	TCase *c = tcase_create("engine_slots");
	tcase_add_test(c, pushes_come_from_the_new_memory);
	tcase_add_test(c, only_the_session_in_force_gets_them_and_only_its_own);
	tcase_add_test(c, a_slot_that_is_the_sum_stays_until_the_window_is_over);
	suite_add_tcase(s, c);
	return suite_run(s);
}

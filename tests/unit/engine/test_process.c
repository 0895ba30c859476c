/* SPDX-License-Identifier: Apache-2.0 */
/* The engine as gaccd sees it, a real process behind a socketpair: how it begins and ends, and what it refuses. */
#include "engine/engine.h"
#include "rig.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Suite *window_suite(void);
Suite *push_suite(void);
Suite *step_suite(void);
Suite *params_suite(void);

static struct rig rig;

START_TEST(a_new_engine_says_hello_and_ends_with_its_socket)
{
	struct rig_config c = rig_small();
	rig_open(&rig, &c);
	struct engine_answer a = rig_start(&rig);
	ck_assert_uint_eq(a.version, ENGINE_CHANNEL_VERSION);
	ck_assert_uint_eq(a.window, 0);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.seq, 1);
	ck_assert_uint_eq(rig.state.r.job_id, RIG_JOB);
	ck_assert_uint_eq(rig.state.r.micro_size, 2);
	struct status_page *page = rig_data(&rig, SEG_STATUS, 0);
	ck_assert_uint_eq(page->engine_pid, (uint64_t)rig.pid);
	ck_assert_int_eq(rig_wait(&rig), 0);
	rig_close(&rig);
}
END_TEST

START_TEST(stop_answers_what_is_queued)
{
	struct engine_answer a;
	rig_begin(&rig, rig_small());
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	uint64_t stop = rig_send(&rig, (struct engine_command){ .op = ENGINE_STOP });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_ENGINE_DOWN);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, stop);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert(!rig_receive(&rig, &a));
	rig_close(&rig);
}
END_TEST

/* A table that this CPU does not have; then one that it has. */
START_TEST(kernels_are_those_of_the_command)
{
	struct rig_config c = rig_small();
	int fds[32];
	rig_open(&rig, &c);
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	rig.kernels = "abacus";
	struct engine_answer a = rig_start_with(&rig, fds, rig.n_segments);
	ck_assert_uint_eq(a.status, ST_INVALID_CONFIG);
	ck_assert_msg(strstr(a.text, "abacus"), "%s", a.text);
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
	rig.kernels = "reference";
	rig_start(&rig);
	rig_close(&rig);
}
END_TEST

START_TEST(damaged_or_foreign_segments_are_refused)
{
	struct rig_config c = rig_small();
	int fds[32], what = _i;
	char why[200];
	struct segment other = SEGMENT_NONE;
	c.frozen = 1u << 5; /* a second range in the first group */
	rig_open(&rig, &c);
	rig_start(&rig);
	rig_attach_all(&rig);
	ck_assert_int_eq(rig_wait(&rig), 0);
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	int n = rig.n_segments;
	switch (what) {
	case 0: /* both records */
		memset((char *)rig.page.base + 8, 0xee, rig.page.record_bytes);
		memset((char *)rig.page.base + rig.page.record_bytes + 8, 0xee, rig.page.record_bytes - 8);
		break;
	case 1: /* two segments exchanged */
		fds[n - 1] = rig.segment[n - 2].fd;
		fds[n - 2] = rig.segment[n - 1].fd;
		break;
	case 2: /* another generation */
		ck_assert_int_eq(segment_create(&other, RIG_JOB, RIG_GENERATION + 1, rig.plan->fingerprint, SEG_STATUS,
						0, sizeof(struct status_page), false, why, sizeof(why)),
				 ST_OK);
		fds[1] = other.fd;
		break;
	case 3: /* other threads: another number of undo areas */
		rig.plan->threads++;
		ck_assert_int_eq(pwrite(rig.plan_fd, rig.plan, rig.plan->bytes, 0), (ssize_t)rig.plan->bytes);
		rig.plan->threads--;
		break;
	case 4: /* a header that lies */
		rig.segment[2].header->fingerprint++;
		break;
	default: /* other ranges of the same arena: chunks would be numbered otherwise */
		ck_assert_uint_eq(rig.plan->n_ranges, 4);
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[0].count -= ARENA_ALIGN;
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[1].start -= ARENA_ALIGN;
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[1].count += ARENA_ALIGN;
		ck_assert_int_eq(pwrite(rig.plan_fd, rig.plan, rig.plan->bytes, 0), (ssize_t)rig.plan->bytes);
	}
	struct engine_answer a = rig_start_with(&rig, fds, n);
	ck_assert_uint_eq(a.op, ENGINE_START);
	ck_assert_uint_eq(a.status, ST_SEGMENT_CORRUPT);
	ck_assert_uint_gt(strlen(a.text), 10);
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
	segment_close(&other);
	rig_close(&rig);
}
END_TEST

START_TEST(an_engine_without_descriptors_says_so)
{
	struct rig_config c = rig_small();
	rig_open(&rig, &c);
	rig.few_fds = true;
	rig_spawn(&rig);
	struct engine_answer a = { .op = 0 };
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.op, ENGINE_START);
	ck_assert_uint_eq(a.status, ST_IO_ERROR);
	ck_assert_str_eq(a.text, "reading a command: Too many open files");
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
	rig.few_fds = false;
	rig_start(&rig); /* nothing has changed for the next one */
	ck_assert_int_eq(rig_wait(&rig), 0);
	rig_close(&rig);
}
END_TEST

/* Two engines over one segment: the second waits until the first is gone. */
START_TEST(a_second_engine_waits_for_the_first)
{
	struct rig_config c = rig_small();
	struct rig second;
	int fds[32];
	rig_begin(&rig, c);
	second = rig;
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	struct engine_answer a;
	ck_assert(rig_receive(&rig, &a));
	kill(rig.pid, SIGSTOP);
	rig_read(&rig);
	uint64_t seq = rig.state.r.seq;
	pid_t killer = fork();
	if (killer == 0) {
		/* while the first is stopped it holds its lock: the second, which starts meanwhile, must publish
		 * nothing */
		for (volatile uint64_t i = 0; i < 20000000; i++)
			;
		rig_read(&rig);
		kill(rig.pid, SIGKILL);
		_exit(rig.state.r.seq != seq);
	}
	a = rig_start_with(&second, fds, second.n_segments);
	ck_assert_uint_eq(a.status, ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.seq, seq + 1);
	int early;
	ck_assert_int_eq(waitpid(killer, &early, 0), killer);
	ck_assert_int_eq(early, 0);
	ck_assert_int_eq(rig_wait(&rig), -SIGKILL);
	rig.fd = second.fd;
	rig.pid = second.pid;
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	rig_close(&rig);
}
END_TEST

START_TEST(more_descriptors_than_a_packet_carries)
{
	struct rig_config c = rig_small();
	c.ranks = 16;
	c.micro_size = 4;
	rig_begin(&rig, c);
	ck_assert_int_gt(rig.n_segments, ENGINE_MAX_FDS);
	rig_fill_slot_exact(&rig, 0, 3);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_double_eq(rig_sum(&rig, 1, 0, 5), rig_gradient(&rig, 0, 0, 5));
	rig_close(&rig);
}
END_TEST

START_TEST(only_commands_that_make_sense_are_obeyed)
{
	rig_begin(&rig, rig_small());
	struct engine_command good = rig_add_command(&rig, 0, 0, 1);
	REFUSED(c.rank = 2, RANK_OUT_OF_RANGE);
	REFUSED(c.rank = UINT32_MAX, RANK_OUT_OF_RANGE);
	REFUSED(c.slot = 2, BAD_SLOT); /* of rank 1 */
	REFUSED(c.slot = UINT32_MAX, BAD_SLOT);
	REFUSED((c.rank = 1, c.slot = 1), BAD_SLOT);
	REFUSED(c.micro = 2, WINDOW_FULL);
	REFUSED(c.micro = UINT32_MAX, WINDOW_FULL);
	REFUSED(c.micro = 1, OUT_OF_ORDER);
	REFUSED(c.weight = 0, BAD_WEIGHT);
	REFUSED(c.weight = NAN, BAD_WEIGHT);
	REFUSED(c.window_lr = -1, INVALID_ARGUMENT);
	REFUSED(c.loss_scale = 2, LOSS_SCALE_MISMATCH);
	REFUSED(c.window = 1, NOT_CURRENT_WINDOW);
	REFUSED(c.sgen = 0, SESSION_FENCED);
	REFUSED(c.sgen = 2, SESSION_UNKNOWN);
	REFUSED(c.n_present = 1, INVALID_ARGUMENT); /* no bitmap behind it */
	REFUSED(c.op = 0, INVALID_ARGUMENT);
	REFUSED(c.op = 99, INVALID_ARGUMENT);
	REFUSED(c.op = ENGINE_START, INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_ATTACH, c.rank = 2), RANK_OUT_OF_RANGE);
	REFUSED((c.op = ENGINE_FLUSH, c.rank = 2), RANK_OUT_OF_RANGE);
	REFUSED((c.op = ENGINE_FLUSH, c.window = 1), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_CLOSE, c.window = 1), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_GO, c.term = 1), NOT_READY);
	REFUSED((c.op = ENGINE_COMMIT), NOT_READY);
	REFUSED((c.op = ENGINE_ACK_STEP), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.slot = 4), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.bytes = UINT64_MAX), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.offset = UINT64_MAX, c.bytes = 2), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.offset = rig.plan->param_bytes - 1, c.bytes = 2), INVALID_ARGUMENT);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 0);
	ck_assert_uint_eq(rig_call(&rig, good).result, COUNTED);
	rig_close(&rig);
}
END_TEST

START_TEST(a_short_packet_ends_the_engine)
{
	struct engine_answer a;
	rig_begin(&rig, rig_small());
	ck_assert_int_eq(packet_send(rig.fd, "?", 1, NULL, 0, NULL, 0), 0);
	ck_assert(!rig_receive(&rig, &a));
	rig_close(&rig);
}
END_TEST

static Suite *life_suite(void)
{
	Suite *s = suite_create("life");
	TCase *t = tcase_create("life");
	tcase_add_test(t, a_new_engine_says_hello_and_ends_with_its_socket);
	tcase_add_test(t, stop_answers_what_is_queued);
	tcase_add_test(t, kernels_are_those_of_the_command);
	tcase_add_loop_test(t, damaged_or_foreign_segments_are_refused, 0, 6);
	tcase_add_test(t, an_engine_without_descriptors_says_so);
	tcase_add_test(t, a_second_engine_waits_for_the_first);
	tcase_add_test(t, more_descriptors_than_a_packet_carries);
	tcase_add_test(t, only_commands_that_make_sense_are_obeyed);
	tcase_add_test(t, a_short_packet_ends_the_engine);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return suite_run(life_suite(), window_suite(), push_suite(), step_suite(), params_suite());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine on a device beside one on the host: steps, and deaths, after which its successor adopts the memory. */
#include "engine_pair.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) ck_assert_int_eq(call, ST_OK)

START_TEST(steps_have_the_bits_of_the_host)
{
	on_host = _i >= 3;
	pair_begin(pair_config(_i % 3));
	pair_init();
	for (int i = 0; i < 3; i++)
		pair_window();
	pair_end();
}
END_TEST

/* Tensors 3 and 5 are left out by turns, tensor 3 comes back with one micro-batch; an engine dies on the way. */
START_TEST(untouched_tensors_are_left_out)
{
	static const unsigned char present[][4] = { { 0x3f, 0x3f, 0x3f, 0x3f },
						    { 0x37, 0x37, 0x37, 0x37 },
						    { 0x17, 0x17, 0x17, 0x1f },
						    { 0x37, 0x3f, 0x37, 0x37 } };
	struct rig_config c = pair_config(_i % 3);
	c.skip_untouched = true;
	on_host = _i >= 3;
	pair_begin(c);
	pair_init();
	for (uint32_t w = 0; w < 4; w++) {
		pair_fill(host.window);
		for (uint32_t i = 0; i < 4; i++) {
			pair_add_present(i, present[w][i]);
			if (w == 2 && i == 1) {
				rig_kill(&gpu);
				gpu.others_are_over = true;
				rig_start(&gpu);
			}
		}
		pair_step();
	}
	pair_end();
}
END_TEST

/* ---- lives ---- */

static void succeed(bool waited)
{
	rig_kill(&gpu);
	gpu.others_are_over = waited;
	const struct engine_answer a = rig_start(&gpu);
	ck_assert_uint_eq(a.window, host.window);
}

START_TEST(a_successor_adopts_the_memory)
{
	on_host = _i >= 2;
	pair_begin(pair_config(1));
	pair_init();
	pair_window();
	succeed(_i % 2);
	pair_window();
	pair_fill(host.window);
	pair_add(0), pair_add(1);
	succeed(_i % 2); /* in the middle of a window */
	pair_add(2), pair_add(3);
	pair_step();
	succeed(_i % 2);
	pair_window();
	pair_end();
}
END_TEST

/* More than a packet carries, both ways. */
START_TEST(many_descriptors)
{
	struct rig_config c = pair_config(0);
	c.micro_size = 30;
	pair_begin(c);
	ck_assert_int_gt(gpu.n_device, ENGINE_MAX_FDS);
	pair_init();
	succeed(true);
	const struct engine_command ping = { .op = ENGINE_PING };
	ck_assert_uint_eq(rig_call(&gpu, ping).status, ST_OK);
	pair_end();
}
END_TEST

/* It dies at some store of a kernel, in a pass or in the update, and once in that of its successor, too. */
START_TEST(deaths_at_stores)
{
	char store[32];
	unsigned deaths = 0;
	on_host = _i;
	pair_begin(pair_config(1));
	pair_init();
	for (uint64_t at = 20; at < 200000; at = at * 7 / 2 + 13) {
		pair_fill(host.window);
		rig_kill(&gpu);
		snprintf(store, sizeof(store), "%llu", (unsigned long long)at);
		setenv("FAKE_CUDA_KILL", store, 1);
		gpu.others_are_over = true;
		struct engine_answer a = { .op = 0 };
		rig_spawn(&gpu);
		unsetenv("FAKE_CUDA_KILL");
		bool lives = rig_receive(&gpu, &a);
		ck_assert(!lives || !a.status);
		for (uint32_t i = 0; i < SLOTS; i++) {
			ck_assert_uint_eq(rig_add(&host, i % 2, i / 2, 1 + pair_nth(i)).status, ST_OK);
			rig_send(&gpu, rig_add_command(&gpu, i % 2, i / 2, 1 + pair_nth(i)));
			lives = lives && rig_receive(&gpu, &a);
		}
		const struct engine_command close = { .op = ENGINE_CLOSE, .window = gpu.window },
					    go = { .op = ENGINE_GO, .window = gpu.window, .term = 1, .attempt = 1 };
		const struct engine_command commit = rig_commit_command(&gpu, APPLIED, 0.25, 0.1);
		if (lives) {
			const struct engine_command rest[] = { close, go, commit };
			for (int i = 0; i < 3 && lives; i++) {
				rig_send(&gpu, rest[i]);
				lives = rig_receive(&gpu, &a);
			}
		}
		deaths += !lives;
		rig_kill(&gpu);
		rig_start(&gpu); /* which finishes what the record says */
		rig_read(&gpu);
		if (gpu.state.r.window == host.window) { /* what was counted comes as a duplicate */
			for (uint32_t i = 0; i < SLOTS; i++)
				ck_assert_uint_eq(rig_add(&gpu, i % 2, i / 2, 1 + pair_nth(i)).status, ST_OK);
			pair_step();
		} else {
			rig_close_window(&host);
			rig_go(&host, 1);
			const struct engine_answer b = rig_call(&host, rig_commit_command(&host, APPLIED, 0.25, 0.1));
			ck_assert_uint_eq(gpu.state.r.params_digest, b.digest);
			host.window = gpu.window = b.window;
			host.applied_step++, gpu.applied_step++;
			pair_same_params();
		}
	}
	ck_assert_uint_ge(deaths, 4);
	printf("%u deaths\n", deaths);
	pair_window();
	pair_end();
}
END_TEST

/* Those of rank 0. */
static void exchange_slots(struct segment *fresh, uint32_t n)
{
	struct engine_command c = { .op = ENGINE_SLOTS, .sgen = 1, .id = ++gpu.next_id };
	struct engine_answer a;
	char why[160];
	int fds[SLOTS];
	for (uint32_t i = 0; i < n; i++) {
		OK(segment_create(&fresh[i], RIG_JOB, RIG_GENERATION, gpu.plan->fingerprint, SEG_SLOT, i,
				  gpu.plan->slot_bytes, true, why, sizeof(why)));
		fds[i] = fresh[i].fd;
	}
	OK(packet_send(gpu.fd, &c, sizeof(c), NULL, 0, fds, (int)n));
	ck_assert(rig_receive(&gpu, &a));
	ck_assert_msg(a.op == ENGINE_SLOTS && !a.status, "%u %s", a.status, a.text);
}

START_TEST(pushes_come_from_exchanged_slots)
{
	struct segment fresh[SLOTS];
	on_host = true;
	pair_begin(pair_config(0));
	pair_init();
	const uint32_t n = gpu.plan->slots_per_rank;
	exchange_slots(fresh, n);
	pair_fill(host.window);
	for (uint32_t i = 0; i < n; i++) {
		memcpy(fresh[i].data, rig_data(&host, SEG_SLOT, i), fresh[i].data_bytes);
		memset(rig_data(&gpu, SEG_SLOT, i), 0x3e, fresh[i].data_bytes);
	}
	for (uint32_t i = 0; i < SLOTS; i++)
		pair_add(i);
	pair_step();
	for (uint32_t i = 0; i < n; i++)
		segment_close(&fresh[i]);
	pair_end();
}
END_TEST

/* Those of rank 0's session `sgen`, from `slot` on; how many descriptors came. */
static int make_slots(uint64_t sgen, uint32_t slot, int *fds, struct engine_answer *a)
{
	const struct engine_command c = { .op = ENGINE_MAKE_SLOTS, .sgen = sgen, .slot = slot, .id = ++gpu.next_id };
	int n = ENGINE_MAX_FDS, rc;
	OK(packet_send(gpu.fd, &c, sizeof(c), NULL, 0, NULL, 0));
	while ((rc = packet_recv(gpu.fd, a, sizeof(*a), fds, &n)) == -EAGAIN ||
	       (rc == (int)sizeof(*a) && a->op == ENGINE_PING)) {
		n = ENGINE_MAX_FDS;
		poll(&(struct pollfd){ .fd = gpu.fd, .events = POLLIN }, 1, -1);
	}
	ck_assert_int_eq(rc, sizeof(*a));
	ck_assert_uint_eq(a->op, ENGINE_MAKE_SLOTS);
	ck_assert_uint_eq(a->id, c.id);
	return n;
}

static struct engine_answer give_slots(const int *fds, int n)
{
	const struct engine_command c = { .op = ENGINE_SLOTS, .sgen = 1, .id = ++gpu.next_id };
	struct engine_answer a;
	OK(packet_send(gpu.fd, &c, sizeof(c), NULL, 0, fds, n));
	ck_assert(rig_receive(&gpu, &a));
	ck_assert_uint_eq(a.op, ENGINE_SLOTS);
	return a;
}

/* Where gaccd has the descriptor of a slot. */
static int *device_slot(uint32_t slot)
{
	return &gpu.device_fd[gpu.n_device - 1 - (int)gpu.plan->slots + (int)slot];
}

START_TEST(slots_on_the_device_are_exchanged)
{
	int fresh[ENGINE_MAX_FDS], old[SLOTS];
	struct engine_answer a;
	on_host = false;
	pair_begin(pair_config(0));
	pair_init();
	const int n = (int)gpu.plan->slots_per_rank;
	pair_window();
	/* the session's alone */
	ck_assert_int_eq(make_slots(2, 0, fresh, &a), 0);
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED);
	ck_assert_int_eq(make_slots(1, 1, fresh, &a), 0);
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED);
	ck_assert_int_eq(make_slots(1, 0, fresh, &a), n);
	ck_assert_msg(!a.status && a.n_device == (uint32_t)n, "%u %s", a.status, a.text);
	/* something else in their place changes nothing */
	int other[SLOTS];
	for (int i = 0; i < n; i++)
		other[i] = gpu.device_fd[1];
	a = give_slots(other, n);
	ck_assert_uint_eq(a.status, ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(a.text, "slot 0: "), "%s", a.text);
	pair_window();
	/* what is written to the old memory from now on is nobody's gradient */
	a = give_slots(fresh, n);
	ck_assert_msg(!a.status, "%u %s", a.status, a.text);
	for (int i = 0; i < n; i++) {
		old[i] = *device_slot((uint32_t)i);
		*device_slot((uint32_t)i) = fresh[i];
	}
	pair_fill(host.window);
	for (int i = 0; i < n; i++) {
		*device_slot((uint32_t)i) = old[i];
		pair_give(1 - (uint32_t)i, (uint32_t)i);
		*device_slot((uint32_t)i) = fresh[i];
		close(old[i]);
	}
	for (uint32_t i = 0; i < SLOTS; i++)
		pair_add(i);
	pair_step();
	/* and a successor adopts the new memory */
	rig_kill(&gpu);
	gpu.others_are_over = true;
	rig_start(&gpu);
	pair_window();
	pair_end();
}
END_TEST

static void both_refuse(uint64_t attempt)
{
	const struct engine_answer a = rig_go(&host, attempt), b = rig_go(&gpu, attempt);
	ck_assert_uint_eq(a.status, ST_PARAMS_ALTERED);
	ck_assert_uint_eq(b.status, ST_PARAMS_ALTERED);
	ck_assert_str_eq(b.text, a.text);
}

/* verify_params, with and without masters: the digest that trainers see is the same on both, and one bit of an f32, a
 * bf16 and an f16 parameter is noticed. A successor on the device knows it, too. */
START_TEST(altered_parameters_are_noticed)
{
	struct rig_config c = pair_config(_i % 2);
	c.verify_params = true;
	c.no_master = _i % 2;
	on_host = false;
	pair_begin(c);
	pair_init();
	for (int i = 0; i < 2; i++) {
		pair_window();
		rig_kill(&gpu);
		gpu.others_are_over = true;
		rig_start(&gpu);
		rig_read(&host);
		rig_read(&gpu);
		ck_assert_uint_eq(gpu.state.r.seen_digest, host.state.r.seen_digest);
		ck_assert((gpu.state.r.seen_digest == gpu.state.r.params_digest) == c.no_master);
	}
	pair_fill(host.window);
	for (uint32_t i = 0; i < SLOTS; i++)
		pair_add(i);
	ck_assert(!rig_close_window(&host).status && !rig_close_window(&gpu).status);
	const struct arena_tensor *t = &host.arena.tensor[_i / 2 == 0 ? 0 : _i / 2 == 1 ? 1 : 3];
	pair_alter(t->param_offset);
	both_refuse(1);
	rig_kill(&gpu);
	rig_start(&gpu);
	both_refuse(2);
	pair_end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_engine");
	TCase *t = tcase_create("engine"), *fake = tcase_create("deaths"); /* which a real driver has no switch for */
	/* enough to show that a copy of this program finds what it needs (test_bundle.py) */
	TCase *few = tcase_create("engine");
	tcase_set_tags(few, "few");
	tcase_set_timeout(t, 60);
	tcase_set_timeout(few, 60);
	tcase_set_timeout(fake, 60);
	if (HAS_KERNELS) {
		tcase_add_loop_test(t, steps_have_the_bits_of_the_host, 0, 6);
		tcase_add_loop_test(t, untouched_tensors_are_left_out, 0, 6);
		tcase_add_loop_test(few, a_successor_adopts_the_memory, 0, 4);
		tcase_add_test(t, many_descriptors);
		tcase_add_test(t, pushes_come_from_exchanged_slots);
		tcase_add_test(t, slots_on_the_device_are_exchanged);
		tcase_add_loop_test(t, altered_parameters_are_noticed, 0, 6);
		tcase_add_loop_test(fake, deaths_at_stores, 0, 2);
	}
	suite_add_tcase(s, t);
	suite_add_tcase(s, few);
	suite_add_tcase(s, fake);
	return suite_run(s);
}

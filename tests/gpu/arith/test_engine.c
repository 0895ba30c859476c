/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine on a device beside one on the host: steps, and deaths, after which its successor adopts the memory. */
#include "engine_pair.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
	Suite *s = suite_create("cuda_engine");
	TCase *t = tcase_create("engine");
	tcase_set_timeout(t, 60);
	if (HAS_KERNELS) {
		tcase_add_loop_test(t, steps_have_the_bits_of_the_host, 0, 6);
		tcase_add_loop_test(t, a_successor_adopts_the_memory, 0, 4);
		tcase_add_test(t, many_descriptors);
		tcase_add_test(t, pushes_come_from_exchanged_slots);
		tcase_add_loop_test(t, deaths_at_stores, 0, 2);
	}
	suite_add_tcase(s, t);
	return suite_run(s);
}

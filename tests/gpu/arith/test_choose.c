/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a job gets: the rule, and what the driver and NVML say on a machine with several. */
#include "cuda/choose.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char why[256];
static const struct gpu_seen three[] = {
	{ .name = "GPU-11112222-0000-4000-8000-000000000001", .free = 5 },
	{ .name = "GPU-11113333-0000-4000-8000-000000000002", .free = 7 },
	{ .name = "GPU-44440000-0000-4000-8000-000000000003", .free = 7 },
};

static const struct {
	int n;
	const char *name;
	int pick;
	const char *why;
} picks[] = {
	{ 3, "", 1, "" }, /* of the two that have most the first */
	{ 1, "", 0, "" },
	{ 3, "GPU-11112222-0000-4000-8000-000000000001", 0, "" },
	{ 3, "GPU-4", 2, "" },
	{ 3, "GPU-11112", 0, "" },
	{ 3, "GPU-1111", -1, "GPU-1111 is the beginning of 2 GPUs: GPU-11112222" },
	{ 3, "GPU-5", -1, "GPU-5 is none of this node's 3 GPUs: GPU-11112222-0000-4000-8000-000000000001, GPU-1111" },
	{ 3, "GPU-44440000-0000-4000-8000-0000000000031", -1, "is none of" },
	{ 3, "#0", 0, "" },
	{ 3, "#2", 2, "" },
	{ 3, "#3", -1, "part 4 of those that the job has on this node wants a GPU of its own, and there are 3" },
	{ 1, "#1", -1, "there is 1" },
	{ 3, "#", -1, "wants a GPU" },
	{ 0, "", -1, "there is no GPU" },
	{ 0, "GPU-4", -1, "there is no GPU" },
};

START_TEST(the_rule)
{
	*why = 0;
	ck_assert_int_eq(gpu_pick(three, picks[_i].n, picks[_i].name, why, sizeof(why)), picks[_i].pick);
	ck_assert_msg(picks[_i].pick >= 0 ? !*why : strstr(why, picks[_i].why) != NULL, "%s", why);
}
END_TEST

START_TEST(where_nothing_is_known_of_the_memory_it_is_the_first)
{
	struct gpu_seen g[2] = { three[1], three[2] };
	g[0].free = g[1].free = 0;
	ck_assert_int_eq(gpu_pick(g, 2, "", why, sizeof(why)), 0);
}
END_TEST

/* ---- on the rig ---- */

static struct cuda_driver cu;

static void machine(const char *devices)
{
	char text[32];
	snprintf(text, sizeof(text), "choose%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", text, 1);
	setenv("FAKE_CUDA_DEVICES", devices, 1);
	ck_assert_msg(cuda_driver_load(&cu, why, sizeof(why)), "%s", why);
	ck_assert_int_eq(cu.cuInit(0), CUDA_SUCCESS);
}

static int chosen(const char *name)
{
	struct gpu_seen g;
	if (cuda_choose(&cu, name, &g, why, sizeof(why)))
		return -1;
	struct cu_uuid is;
	ck_assert_int_eq(cu.cuDeviceGetUuid(&is, g.number), CUDA_SUCCESS);
	ck_assert_mem_eq(&is, &g.uuid, sizeof(is));
	return g.name[strlen(g.name) - 1] - '1';
}

/* Takes memory of a device, for as long as the process lives. */
static void take(cu_device device, size_t bytes)
{
	cu_context context;
	cu_memory at;
	ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
	ck_assert_int_eq(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
	ck_assert_int_eq(cu.cuMemAlloc(&at, bytes), CUDA_SUCCESS);
}

START_TEST(the_one_with_the_most_free_memory)
{
	machine("3");
	ck_assert_int_eq(chosen(""), 0);
	take(0, 3 << 20);
	take(1, 1 << 20);
	take(2, 2 << 20);
	ck_assert_int_eq(chosen(""), 1);
	ck_assert_int_eq(chosen("GPU-facecda0-6acc-4000-8000-000000000003"), 2);
	ck_assert_int_eq(chosen("GPU-facecda0"), -1);
	ck_assert_msg(strstr(why, "beginning of 3 GPUs"), "%s", why);
}
END_TEST

/* NVML counts the machine's GPUs, the driver those that the process may see. */
START_TEST(of_those_that_the_process_may_see)
{
	setenv("CUDA_VISIBLE_DEVICES", "2,1", 1);
	machine("4");
	ck_assert_int_eq(chosen(""), 2);
	take(0, 1 << 20);
	ck_assert_int_eq(chosen(""), 1);
	ck_assert_int_eq(chosen("GPU-facecda0-6acc-4000-8000-000000000001"), -1);
	ck_assert_msg(strstr(why, "none of this node's 2 GPUs"), "%s", why);
}
END_TEST

START_TEST(without_nvml_it_is_the_first)
{
	setenv("FAKE_CUDA_NVML_INIT", "999", 1);
	machine("2");
	take(0, 1 << 20);
	ck_assert_int_eq(chosen(""), 0);
	ck_assert_int_eq(chosen("GPU-facecda0-6acc-4000-8000-000000000002"), 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_choose");
	TCase *t = tcase_create("choose");
	tcase_add_loop_test(t, the_rule, 0, sizeof(picks) / sizeof(*picks));
	tcase_add_test(t, where_nothing_is_known_of_the_memory_it_is_the_first);
	tcase_add_test(t, the_one_with_the_most_free_memory);
	tcase_add_test(t, of_those_that_the_process_may_see);
	tcase_add_test(t, without_nvml_it_is_the_first);
	suite_add_tcase(s, t);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda.so as an engine would load it: what it says where there is no driver, and a job's memory through its table
 * on the fake driver. */
#include "twin.h"

#include "engine/device_plugin.h"
#include "support/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[256];
static const struct device_user plain = { "test", LOG_TEXT, LOG_ERROR, NULL, NULL };

static const struct device_plugin *load(void)
{
	const struct device_plugin *p = NULL;
	ck_assert_msg(device_plugin_load(&p, PLUGIN, why, sizeof(why)) == ST_OK, "%s", why);
	return p;
}

START_TEST(where_it_is_not_it_says_so)
{
	const struct device_plugin *p = NULL;
	ck_assert_int_eq(device_plugin_load(&p, "/nonexistent/gacc_cuda.so", why, sizeof(why)), ST_INVALID_CONFIG);
	ck_assert_msg(strstr(why, "/nonexistent/gacc_cuda.so"), "%s", why);
	ck_assert_int_eq(device_plugin_load(&p, GPU_KERNELS, why, sizeof(why)), ST_INVALID_CONFIG);
	ck_assert_msg(strstr(why, "one release"), "%s", why);
	ck_assert_ptr_null(p);
}
END_TEST

#ifdef WITHOUT_DRIVER
START_TEST(without_a_driver_it_says_one_sentence)
{
	struct device *d = NULL;
	const struct device_plugin *p = load();
	ck_assert_str_eq(p->name, "cuda");
	if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
		printf("this machine has a driver: not run\n");
		return;
	}
	ck_assert_int_eq(p->open(&d, "", &plain, why, sizeof(why)), ST_INVALID_CONFIG);
	ck_assert_ptr_null(d);
	ck_assert_str_eq(why, HAS_KERNELS ? "there is no NVIDIA driver here: libcuda.so.1 is not found"
					  : "this build of gacc has no kernels for GPUs: it was made without nvcc");
}
END_TEST
#else
/* Two lives: one makes the memory, the next one adopts it. */
START_TEST(memory_goes_from_one_life_to_the_next)
{
	struct rig_config c = rig_small();
	const struct device_plugin *p = load();
	struct device *first, *second;
	struct rig rig;
	struct arith *a, *b;
	const int *fds;
	int n, kept[64];
	char name[64];
	char back[8] = "";
	if (!HAS_KERNELS)
		return;
	twin_environment(0);
	rig_open(&rig, &c);
	twin_plan(&rig);
	ck_assert(p->takes(rig.plan, why, sizeof(why)));
	OK(p->open(&first, "", &plain, why, sizeof(why)));
	OK(p->allocate(first, rig.plan, RIG_GENERATION, &fds, &n, why, sizeof(why)));
	for (int i = 0; i < n; i++)
		kept[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	OK(p->arith(first, &a, &rig.page, false, TWIN_QUIET_NS, why, sizeof(why)));
	OK(a->ops->write(a, SEG_PARAMS, 8, 8, "gradient"));
	a->ops->close(a);
	snprintf(name, sizeof(name), "%s", p->identity(first));
	ck_assert_str_eq(name, "GPU-facecda0-6acc-4000-8000-000000000001");
	p->close(first);
	OK(p->open(&second, name, &plain, why, sizeof(why)));
	OK(p->adopt(second, rig.plan, RIG_GENERATION, kept, n, why, sizeof(why)));
	OK(p->arith(second, &b, &rig.page, false, TWIN_QUIET_NS, why, sizeof(why)));
	OK(b->ops->read(b, SEG_PARAMS, 8, 8, back));
	ck_assert_mem_eq(back, "gradient", 8);
	b->ops->close(b);
	p->close(second);
	rig_close(&rig);
}
END_TEST
#endif

int main(void)
{
	Suite *s = suite_create("cuda_plugin");
	TCase *t = tcase_create("plugin");
	tcase_add_test(t, where_it_is_not_it_says_so);
#ifdef WITHOUT_DRIVER
	tcase_add_test(t, without_a_driver_it_says_one_sentence);
#else
	tcase_add_test(t, memory_goes_from_one_life_to_the_next);
#endif
	suite_add_tcase(s, t);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda_register where there is no driver. */
#include "gacc/gacc_cuda.h"
#include "map_rig.h"
#include "support/suite.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

START_TEST(says_that_there_is_none)
{
	static struct gacc_client client;
	struct map_daemon d;

	if (dlopen("libcuda.so.1", RTLD_NOW))
		return;
	client.pid = getpid();
	map_job.client = &client;
	map_job.registered = true;
	map_daemon_init(&d);
	ck_assert_int_eq(map_with(&d), ST_OK);
	map_daemon_fini(&d);
	ck_assert_int_eq(gacc_cuda_register(&map_job, NULL), GACC_ENOSYS);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&map_job), "there is no NVIDIA driver here"));
	ck_assert_ptr_null(map_job.memory.cuda);
	ck_assert_int_eq(gacc_cuda_launched(&map_job), GACC_EINVAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&map_job), "call gacc_cuda_register"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("no driver");
	TCase *t = tcase_create("no driver");

	tcase_add_checked_fixture(t, map_setup, map_teardown);
	tcase_add_test(t, says_that_there_is_none);
	suite_add_tcase(s, t);
	return suite_run(s);
}

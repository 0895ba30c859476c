/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccctl finds out about GPUs: each fault, and its fix. Compiled three times: with the fake driver of tests/gpu,
 * with a library that is too old (GPUS_OLD), and without any (GPUS_NONE). Folders stand for /dev and the rest. */
#include "cli/gpus.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dev[SCRATCH_PATH], pci[SCRATCH_PATH], mps[SCRATCH_PATH];
static struct gpu_places places = { dev, pci, mps };
static gacc_device_node nodes[] = {
	{ "/dev/nvidiactl", "" }, { "/dev/nvidia-uvm", "" }, { "/dev/nvidia0", "" }, { "/dev/nvidia1", "" }
};
static gacc_node_info node;
static struct gpu_report report;

static void make(const char *dir, const char *name, const char *text)
{
	char path[SCRATCH_PATH + 32];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

/* A machine whose GPUs gaccd may use. */
static void setup(void)
{
	scratch_make(dev);
	scratch_make(pci);
	scratch_make(mps);
	for (int i = 0; i < 4; i++)
		make(dev, strrchr(nodes[i].path, '/') + 1, "");
	node = (gacc_node_info){ .has_device_access = 1, .memlock_limit = UINT64_MAX, .n_device = 4, .device = nodes };
	setenv("FAKE_CUDA_PERSISTENCE", "1", 1);
}

static void no_nodes(void)
{
	scratch_make(dev);
	node.n_device = 0;
}

static void look(bool devices)
{
	gpus_look(&node, &places, devices, &report);
}

/* The only row of this name. */
static const struct gpu_check *row(const char *name)
{
	const struct gpu_check *found = NULL;
	for (size_t i = 0; i < report.n; i++) {
		if (strcmp(report.check[i].name, name) != 0)
			continue;
		ck_assert_ptr_null(found);
		found = &report.check[i];
	}
	return found;
}

static void is(const char *name, enum gpu_state state, const char *on, const char *value, const char *fix)
{
	const struct gpu_check *c = row(name);
	ck_assert_msg(c != NULL, "no row %s", name);
	ck_assert_str_eq(c->value, value);
	ck_assert_str_eq(c->on, on);
	ck_assert_int_eq(c->state, state);
	if (*fix)
		ck_assert_ptr_nonnull(strstr(c->fix, fix));
	else
		ck_assert_str_eq(c->fix, "");
}

#if defined(GPUS_NONE)
START_TEST(a_machine_without_a_gpu)
{
	no_nodes();
	look(true);
	ck_assert_uint_eq(report.n, 0);
	ck_assert_ptr_nonnull(strstr(report.none, "libnvidia-ml.so.1 is not found"));
}
END_TEST

START_TEST(nodes_without_a_library)
{
	look(true);
	is("driver", GPU_FAULT, "", "libnvidia-ml.so.1 is not found", "install NVIDIA's driver");
	is("nodes", GPU_OK, "nvidiactl nvidia-uvm nvidia0 nvidia1", "gaccd may use them", "");
}
END_TEST

/* A card in a slot that is no GPU, or not NVIDIA's, and one that is. */
START_TEST(a_card_without_a_driver)
{
	static const char *const device[][3] = { { "0", "0x10de\n", "0x068000\n" }, { "1", "0x8086\n", "0x030000\n" } };
	char dir[SCRATCH_PATH + 8];
	no_nodes();
	for (int i = 0; i < 2; i++) {
		snprintf(dir, sizeof(dir), "%s/%s", pci, device[i][0]);
		ck_assert_int_eq(mkdir(dir, 0700), 0);
		make(dir, "vendor", device[i][1]);
		make(dir, "class", device[i][2]);
	}
	look(true);
	ck_assert_uint_eq(report.n, 0);
	make(dir, "vendor", "0x10de\n");
	make(dir, "class", "0x030200\n");
	look(true);
	is("driver", GPU_FAULT, "", "libnvidia-ml.so.1 is not found", "install NVIDIA's driver");
	is("nodes", GPU_FAULT, "nvidiactl nvidia-uvm", "not there", "nvidia-persistenced make the node");
}
END_TEST
#elif defined(GPUS_OLD)
START_TEST(a_library_that_is_too_old)
{
	look(true);
	is("driver", GPU_FAULT, "", "too old", "install R525 or a later driver");
	no_nodes();
	look(true);
	ck_assert_uint_eq(report.n, 0);
	ck_assert_ptr_nonnull(strstr(report.none, "nvmlSystemGetDriverVersion"));
}
END_TEST
#else
START_TEST(all_is_well)
{
	look(true);
	ck_assert_uint_eq(report.n, 6);
	is("driver", GPU_OK, "", "580.00.00, 2 GPUs", "");
	is("memlock", GPU_OK, "", "unlimited", "");
	is("nodes", GPU_OK, "nvidiactl nvidia-uvm nvidia0 nvidia1", "gaccd may use them", "");
	is("compute mode", GPU_OK, "0 1", "default", "");
	is("persistence", GPU_OK, "0 1", "on", "");
	is("MPS", GPU_OK, "0 1", "off", "");
}
END_TEST

START_TEST(devices_are_asked_only_on_demand)
{
	setenv("FAKE_CUDA_NVML_LOST", "0", 1);
	look(false);
	ck_assert_uint_eq(report.n, 3);
	look(true);
	is("GPU", GPU_FAULT, "0", "lost (NVML error 15)", "nvidia-smi -r");
	is("compute mode", GPU_OK, "1", "default", "");
}
END_TEST

START_TEST(compute_mode_exclusive)
{
	setenv("FAKE_CUDA_ATTRIBUTES", "20=3", 1);
	look(true);
	is("compute mode", GPU_FAULT, "0 1", "exclusive", "nvidia-smi -c DEFAULT");
}
END_TEST

START_TEST(compute_mode_prohibited)
{
	setenv("FAKE_CUDA_ATTRIBUTES", "20=2", 1);
	look(true);
	is("compute mode", GPU_FAULT, "0 1", "prohibited", "nvidia-smi -c DEFAULT");
}
END_TEST

START_TEST(persistence_off)
{
	setenv("FAKE_CUDA_PERSISTENCE", "0", 1);
	look(true);
	is("persistence", GPU_FAULT, "0 1", "off", "nvidia-persistenced");
}
END_TEST

/* Allowed, so no fault. */
START_TEST(mps_with_clients)
{
	setenv("FAKE_CUDA_MPS", "3", 1);
	look(true);
	is("MPS", GPU_NOTE, "0 1", "on, 3 clients", "nvidia-cuda-mps-control");
}
END_TEST

START_TEST(mps_without_clients)
{
	make(mps, "control", "");
	look(true);
	is("MPS", GPU_NOTE, "0 1", "on, no clients", "nvidia-cuda-mps-control");
}
END_TEST

START_TEST(memlock_of_gaccd)
{
	node.memlock_limit = 8 << 20;
	look(false);
	is("memlock", GPU_FAULT, "", "8.00 MiB for gaccd", "LimitMEMLOCK=infinity");
	node.memlock_limit = UINT64_MAX - 1; /* more than there can be */
	look(false);
	ck_assert_int_eq(row("memlock")->state, GPU_OK);
}
END_TEST

static void node_says(const char *error, const char *value, const char *fix)
{
	gacc_device_node told[2] = { { "/dev/nvidiactl", error }, { "/dev/nvidia-uvm", error } };
	scratch_make(dev);
	node.n_device = 2;
	node.device = told;
	look(false);
	is("nodes", GPU_FAULT, "nvidiactl nvidia-uvm", value, fix);
}

START_TEST(nodes_that_gaccd_may_not_use)
{
	node_says("EPERM", "refused to gaccd by its unit", "restart gaccd with the drop-in gaccd-gpu.conf");
	node_says("EACCES", "refused to gaccd by their mode", "NVreg_DeviceFileMode");
	node_says("ELOOP", "gaccd gets ELOOP", "nvidia-modprobe");
}
END_TEST

START_TEST(nodes_that_gaccd_does_not_see)
{
	node.n_device = 0;
	look(false);
	is("nodes", GPU_FAULT, "nvidiactl nvidia-uvm nvidia0 nvidia1", "hidden from gaccd", "install gaccd-gpu.conf");
	no_nodes();
	look(false);
	is("nodes", GPU_FAULT, "nvidiactl nvidia-uvm", "not there", "nvidia-persistenced make the node");
}
END_TEST

START_TEST(gaccd_of_another_version)
{
	node = (gacc_node_info){ .name = "old" };
	look(true);
	is("gaccd", GPU_NOTE, "", "older than gaccctl", "install");
	ck_assert_ptr_null(row("nodes"));
	ck_assert_ptr_null(row("memlock"));
}
END_TEST

static void init_gives(const char *code, const char *value, const char *fix)
{
	look(true);
	is("driver", GPU_FAULT, "", value, fix);
	ck_assert_ptr_null(row("compute mode"));
	no_nodes();
	look(true);
	ck_assert_uint_eq(report.n, 0); /* the library may be there without a GPU */
	ck_assert_ptr_nonnull(strstr(report.none, code));
}

static const char *const inits[][3] = {
	{ "9", "its module is not loaded (NVML error 9)", "modprobe nvidia" },
	{ "4", "you may not use it (NVML error 4)", "/dev/nvidiactl" },
	{ "18", "its library and its module differ (NVML error 18)", "restart the machine" },
	{ "999", "it does not start (NVML error 999)", "nvidia-smi" },
};

START_TEST(driver_that_does_not_start)
{
	setenv("FAKE_CUDA_NVML_INIT", inits[_i][0], 1);
	init_gives(inits[_i][0], inits[_i][1], inits[_i][2]);
}
END_TEST

START_TEST(driver_without_gpus)
{
	setenv("FAKE_CUDA_DEVICES", "0", 1);
	look(true);
	is("driver", GPU_FAULT, "", "580.00.00, no GPU", "Xid");
	no_nodes();
	look(true);
	ck_assert_uint_eq(report.n, 0);
	ck_assert_str_eq(report.none, "the driver 580.00.00 has none");
}
END_TEST
#endif

int main(void)
{
	Suite *s = suite_create("gpus");
	TCase *t = tcase_create("gpus");
	tcase_add_checked_fixture(t, setup, NULL);
#if defined(GPUS_NONE)
	if (dlopen("libnvidia-ml.so.1", RTLD_NOW)) /* the machine has one */
		return 0;
	tcase_add_test(t, a_machine_without_a_gpu);
	tcase_add_test(t, nodes_without_a_library);
	tcase_add_test(t, a_card_without_a_driver);
#elif defined(GPUS_OLD)
	tcase_add_test(t, a_library_that_is_too_old);
#else
	tcase_add_test(t, all_is_well);
	tcase_add_test(t, devices_are_asked_only_on_demand);
	tcase_add_test(t, compute_mode_exclusive);
	tcase_add_test(t, compute_mode_prohibited);
	tcase_add_test(t, persistence_off);
	tcase_add_test(t, mps_with_clients);
	tcase_add_test(t, mps_without_clients);
	tcase_add_test(t, memlock_of_gaccd);
	tcase_add_test(t, nodes_that_gaccd_may_not_use);
	tcase_add_test(t, nodes_that_gaccd_does_not_see);
	tcase_add_test(t, gaccd_of_another_version);
	tcase_add_loop_test(t, driver_that_does_not_start, 0, 4);
	tcase_add_test(t, driver_without_gpus);
#endif
	suite_add_tcase(s, t);
	return suite_run(s);
}

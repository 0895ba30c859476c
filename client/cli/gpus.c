/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the machine's GPUs for `gaccctl health`: by NVML, which needs no context on a device, by /dev and the list
 * of PCI devices, and by what gaccd told of itself. gaccctl's main thread. */
#include "gpus.h"

#include "output.h"
#include "proto/cuda_types.h"
#include "proto/nvml.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define PCI_NVIDIA "0x10de"
#define PCI_DISPLAY "0x03" /* the class of a GPU, with or without a display */

/* ---- the fixes ---- */

#define FIX_NO_LIBRARY                                                                                                 \
	"install NVIDIA's driver, R525 or later, with its libraries; in a container ask for them "                     \
	"(NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
#define FIX_TOO_OLD "install R525 or a later driver"
#define FIX_NOT_LOADED "load the driver's module: modprobe nvidia; if that fails, dmesg says why"
#define FIX_NO_PERMISSION "give yourself read and write access to /dev/nvidiactl, by its group or its mode"
#define FIX_MISMATCH "restart the machine: the driver's libraries are newer than the module that is loaded"
#define FIX_OTHER "look at what nvidia-smi and dmesg say"
#define FIX_NO_DEVICE "look for lines with NVRM and Xid in dmesg: the driver has none of the GPUs that are here"
#define FIX_LOST "restart the machine, or reset the GPU with nvidia-smi -r: it has fallen off the bus"
#define FIX_MEMLOCK                                                                                                    \
	"set LimitMEMLOCK=infinity in gaccd's unit (systemctl edit gaccd), or start gaccd after ulimit -l unlimited"
#define FIX_HIDDEN                                                                                                     \
	"install gaccd-gpu.conf (/usr/share/doc/gaccd/examples) as a drop-in of gaccd's unit and restart gaccd, or "   \
	"give gaccd's container the GPUs"
#define FIX_MISSING                                                                                                    \
	"let nvidia-persistenced make the node (systemctl enable --now nvidia-persistenced), or nvidia-modprobe -c 0 " \
	"-u, and restart gaccd"
#define FIX_REFUSED                                                                                                    \
	"restart gaccd with the drop-in gaccd-gpu.conf (/usr/share/doc/gaccd/examples): its unit allows the nodes "    \
	"that "                                                                                                        \
	"were there when it started"
#define FIX_MODE "let gaccd's user read and write the node: by its group, or NVreg_DeviceFileMode=0666 of the module"
#define FIX_NODE "look at the node with ls -l and make it again with nvidia-modprobe -c 0 -u"
#define FIX_COMPUTE_MODE                                                                                               \
	"set it back with nvidia-smi -c DEFAULT (-i N for one GPU): else processes cannot share the GPU"
#define FIX_PERSISTENCE                                                                                                \
	"turn it on with systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1: else the GPU is shut down "  \
	"whenever nobody uses it, and starting it takes seconds"
#define FIX_MPS                                                                                                        \
	"a fault of one trainer ends all that share the GPU through MPS; echo quit | nvidia-cuda-mps-control stops it"

/* ---- the report ---- */

const char *gpu_state_name(enum gpu_state state)
{
	static const char *const names[] = { "ok", "note", "fault" };

	return names[state];
}

/* One row for all GPUs or nodes of which the same is true. */
static void add(struct gpu_report *out, const char *name, enum gpu_state state, const char *fix, const char *on,
		const char *fmt, ...) __attribute__((format(printf, 6, 7)));

static void add(struct gpu_report *out, const char *name, enum gpu_state state, const char *fix, const char *on,
		const char *fmt, ...)
{
	struct gpu_check *c = out->check;
	char value[sizeof(c->value)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(value, sizeof(value), fmt, ap);
	va_end(ap);
	while (c < out->check + out->n && (strcmp(c->name, name) != 0 || strcmp(c->value, value) != 0))
		c++;
	if (c == out->check + GPU_CHECKS_MAX)
		return;
	if (c == out->check + out->n) {
		out->n++;
		*c = (struct gpu_check){ .name = name, .state = state, .fix = state == GPU_OK ? "" : fix };
		memcpy(c->value, value, sizeof(value));
	}
	size_t used = strlen(c->on);
	snprintf(c->on + used, sizeof(c->on) - used, "%s%s", used ? " " : "", on);
}

/* ---- signs of a GPU that ask no driver ---- */

static bool begins(const char *dir, const char *device, const char *file, const char *with)
{
	char path[512], text[16] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/%s", dir, device, file);
	f = fopen(path, "re");
	if (!f)
		return false;
	bool same = fgets(text, sizeof(text), f) && !strncmp(text, with, strlen(with));
	fclose(f);
	return same;
}

static bool has_card(const char *pci)
{
	DIR *dir = opendir(pci);
	bool found = false;

	if (!dir)
		return false;
	for (struct dirent *e; !found && (e = readdir(dir));)
		found = begins(pci, e->d_name, "vendor", PCI_NVIDIA) && begins(pci, e->d_name, "class", PCI_DISPLAY);
	closedir(dir);
	return found;
}

static bool has_node(const char *dev, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", dev, name);
	return !access(path, F_OK);
}

static bool may_have_gpu(const gacc_node_info *node, const struct gpu_places *places)
{
	return node->n_device || has_node(places->dev, "nvidiactl") || has_card(places->pci);
}

/* ---- gaccd ---- */

static void check_memlock(const gacc_node_info *node, struct gpu_report *out)
{
	uint64_t limit = node->memlock_limit;
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char text[SHORT];

	if (limit == UINT64_MAX)
		add(out, "memlock", GPU_OK, "", "", "unlimited");
	else
		add(out, "memlock", limit < memory ? GPU_FAULT : GPU_OK, FIX_MEMLOCK, "", "%s for gaccd",
		    bytes(text, limit));
}

/* What gaccd told of this node; NULL: for gaccd it is not there. */
static const char *told(const gacc_node_info *node, const char *name)
{
	for (size_t i = 0; i < node->n_device; i++) {
		const char *slash = strrchr(node->device[i].path, '/');

		if (slash && !strcmp(slash + 1, name))
			return node->device[i].error;
	}
	return NULL;
}

static void check_node(const gacc_node_info *node, const char *dev, const char *name, struct gpu_report *out)
{
	const char *error = told(node, name);

	if (error && !*error)
		add(out, "nodes", GPU_OK, "", name, "gaccd may use them");
	else if (!error && has_node(dev, name))
		add(out, "nodes", GPU_FAULT, FIX_HIDDEN, name, "hidden from gaccd");
	else if (!error)
		add(out, "nodes", GPU_FAULT, FIX_MISSING, name, "not there");
	else if (!strcmp(error, "EPERM"))
		add(out, "nodes", GPU_FAULT, FIX_REFUSED, name, "refused to gaccd by its unit");
	else if (!strcmp(error, "EACCES"))
		add(out, "nodes", GPU_FAULT, FIX_MODE, name, "refused to gaccd by their mode");
	else
		add(out, "nodes", GPU_FAULT, FIX_NODE, name, "gaccd gets %s", error);
}

static void check_gaccd(const gacc_node_info *node, const struct gpu_places *places, struct gpu_report *out)
{
	char name[16];

	if (!node->has_device_access) {
		add(out, "gaccd", GPU_NOTE, "install this gaccctl's gaccd, which tells its limits and devices", "",
		    "older than gaccctl");
		return;
	}
	check_memlock(node, out);
	check_node(node, places->dev, "nvidiactl", out);
	check_node(node, places->dev, "nvidia-uvm", out);
	for (int i = 0; i < 32; i++) { /* as many as gaccd looks for */
		snprintf(name, sizeof(name), "nvidia%d", i);
		if (told(node, name) || has_node(places->dev, name))
			check_node(node, places->dev, name, out);
	}
}

/* ---- the driver ---- */

static void check_init(nvml_result result, struct gpu_report *out)
{
	const char *fix = result == NVML_ERROR_DRIVER_NOT_LOADED	 ? FIX_NOT_LOADED
			  : result == NVML_ERROR_NO_PERMISSION		 ? FIX_NO_PERMISSION
			  : result == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? FIX_MISMATCH
									 : FIX_OTHER;
	const char *what = result == NVML_ERROR_DRIVER_NOT_LOADED	  ? "its module is not loaded"
			   : result == NVML_ERROR_NO_PERMISSION		  ? "you may not use it"
			   : result == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? "its library and its module differ"
									  : "it does not start";

	add(out, "driver", GPU_FAULT, fix, "", "%s (NVML error %u)", what, result);
}

static void check_compute_mode(const struct nvml *nvml, nvml_device device, const char *on, struct gpu_report *out)
{
	nvml_compute_mode mode;

	if (nvml->nvmlDeviceGetComputeMode(device, &mode))
		add(out, "compute mode", GPU_NOTE, "", on, "the driver does not tell it");
	else if (mode == CU_COMPUTEMODE_DEFAULT)
		add(out, "compute mode", GPU_OK, "", on, "default");
	else
		add(out, "compute mode", GPU_FAULT, FIX_COMPUTE_MODE, on, "%s",
		    mode == CU_COMPUTEMODE_PROHIBITED ? "prohibited" : "exclusive");
}

static void check_persistence(const struct nvml *nvml, nvml_device device, const char *on, struct gpu_report *out)
{
	nvml_enabled enabled;

	if (nvml->nvmlDeviceGetPersistenceMode(device, &enabled))
		add(out, "persistence", GPU_NOTE, "", on, "the driver does not tell it");
	else if (enabled)
		add(out, "persistence", GPU_OK, "", on, "on");
	else
		add(out, "persistence", GPU_FAULT, FIX_PERSISTENCE, on, "off");
}

/* Its control daemon may run without a client, which NVML does not say. */
static void check_mps(const struct nvml *nvml, nvml_device device, bool daemon, const char *on, struct gpu_report *out)
{
	unsigned n = 0;
	nvml_result result = nvml->nvmlDeviceGetMPSComputeRunningProcesses(device, &n, NULL);

	if (n && (!result || result == NVML_ERROR_INSUFFICIENT_SIZE))
		add(out, "MPS", GPU_NOTE, FIX_MPS, on, "on, %u clients", n);
	else if (daemon)
		add(out, "MPS", GPU_NOTE, FIX_MPS, on, "on, no clients");
	else
		add(out, "MPS", GPU_OK, "", on, "off");
}

static void check_devices(const struct nvml *nvml, unsigned n, const struct gpu_places *places, struct gpu_report *out)
{
	bool daemon = has_node(places->mps, "control");
	char on[16];

	for (unsigned i = 0; i < n; i++) {
		nvml_device device;
		nvml_result result = nvml->nvmlDeviceGetHandleByIndex(i, &device);

		snprintf(on, sizeof(on), "%u", i);
		if (result) {
			add(out, "GPU", GPU_FAULT, result == NVML_ERROR_GPU_IS_LOST ? FIX_LOST : FIX_OTHER, on,
			    result == NVML_ERROR_GPU_IS_LOST ? "lost (NVML error %u)" : "unusable (NVML error %u)",
			    result);
			continue;
		}
		check_compute_mode(nvml, device, on, out);
		check_persistence(nvml, device, on, out);
		check_mps(nvml, device, daemon, on, out);
	}
}

/* NVML has begun. */
static void look_closer(const struct nvml *nvml, const gacc_node_info *node, const struct gpu_places *places,
			bool devices, struct gpu_report *out)
{
	char version[80] = "?"; /* NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE */
	unsigned n = 0;

	nvml->nvmlDeviceGetCount(&n);
	nvml->nvmlSystemGetDriverVersion(version, sizeof(version));
	if (!n && !may_have_gpu(node, places)) {
		snprintf(out->none, sizeof(out->none), "the driver %s has none", version);
		return;
	}
	if (n)
		add(out, "driver", GPU_OK, "", "", "%s, %u GPU%s", version, n, n == 1 ? "" : "s");
	else
		add(out, "driver", GPU_FAULT, FIX_NO_DEVICE, "", "%s, no GPU", version);
	check_gaccd(node, places, out);
	if (devices)
		check_devices(nvml, n, places, out);
}

void gpus_look(const gacc_node_info *node, const struct gpu_places *places, bool devices, struct gpu_report *out)
{
	struct nvml nvml;
	nvml_result result;
	enum nvml_found found;

	*out = (struct gpu_report){ .n = 0 };
	found = nvml_load(&nvml, out->none, sizeof(out->none));
	result = found == NVML_LOADED ? nvml.nvmlInit() : 0;
	if (found == NVML_LOADED && !result) {
		look_closer(&nvml, node, places, devices, out);
		nvml.nvmlShutdown();
		return;
	}
	if (found == NVML_LOADED)
		snprintf(out->none, sizeof(out->none), "NVIDIA's driver does not start (NVML error %u)", result);
	if (!may_have_gpu(node, places))
		return;
	if (found == NVML_ABSENT)
		add(out, "driver", GPU_FAULT, FIX_NO_LIBRARY, "", "libnvidia-ml.so.1 is not found");
	else if (found == NVML_TOO_OLD)
		add(out, "driver", GPU_FAULT, FIX_TOO_OLD, "", "too old");
	else
		check_init(result, out);
	check_gaccd(node, places, out);
}

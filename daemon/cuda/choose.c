/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a GPU among those that this process may see, by name or by the free memory that NVML tells. For device.c; the
 * engine's main thread. */
#include "cuda/choose.h"

#include "base/log.h"
#include "proto/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_MOST 64 /* of one machine; those behind it are not seen */

/* ---- the choice ---- */

static void say_all(const struct gpu_seen *g, int n, char *out, size_t n_out)
{
	size_t at = 0;
	for (int i = 0; i < n && at < n_out; i++)
		at += (size_t)snprintf(out + at, n_out - at, "%s%s", i ? ", " : "", g[i].name);
}

static int pick_number(int n, const char *name, char *why, size_t n_why)
{
	char *end;
	const unsigned long i = strtoul(name, &end, 10);
	if (end != name && !*end && i < (unsigned long)n)
		return (int)i;
	snprintf(why, n_why, "part %lu of those that the job has on this node wants a GPU of its own, and there %s %d",
		 i + 1, n == 1 ? "is" : "are", n);
	return -1;
}

int gpu_pick(const struct gpu_seen *g, int n, const char *name, char *why, size_t n_why)
{
	char all[256] = "none";
	int best = -1, like = 0;
	if (*name == '#')
		return pick_number(n, name + 1, why, n_why);
	for (int i = 0; i < n; i++) {
		if (strncmp(g[i].name, name, strlen(name)) != 0)
			continue;
		like++;
		if (best < 0 || g[i].free > g[best].free)
			best = i;
	}
	if (n && (like == 1 || (like && !*name)))
		return best;
	say_all(g, n, all, sizeof(all));
	if (!n)
		snprintf(why, n_why, "there is no GPU that this process may see");
	else
		snprintf(why, n_why,
			 like ? "%s is the beginning of %d GPUs: %s" : "%s is none of this node's %d GPUs: %s", name,
			 like ? like : n, all);
	return -1;
}

/* ---- what there is ---- */

static enum status failed(const struct cuda_driver *cu, const char *what, cu_result r, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s: %s", what, cuda_result_name(cu, r));
	return ST_IO_ERROR;
}

static enum status look(const struct cuda_driver *cu, struct gpu_seen *out, int *n, char *why, size_t n_why)
{
	cu_result r = cu->cuDeviceGetCount(n);
	if (r)
		return failed(cu, "cuDeviceGetCount", r, why, n_why);
	*n = *n < GPUS_MOST ? *n : GPUS_MOST;
	for (int i = 0; i < *n; i++) {
		out[i] = (struct gpu_seen){ .free = 0 };
		if ((r = cu->cuDeviceGet(&out[i].number, i)) || (r = cu->cuDeviceGetUuid(&out[i].uuid, out[i].number)))
			return failed(cu, "cuDeviceGet", r, why, n_why);
		cuda_uuid_text(&out[i].uuid, out[i].name);
	}
	return ST_OK;
}

/* Of the GPUs that NVML knows, which are all of the machine. */
static void ask_free(const struct nvml *nvml, struct gpu_seen *g, int n)
{
	unsigned all = 0;
	if (nvml->nvmlDeviceGetCount(&all))
		all = 0;
	for (unsigned k = 0; k < all; k++) {
		char name[96];
		nvml_device device;
		struct nvml_memory memory;
		if (nvml->nvmlDeviceGetHandleByIndex(k, &device) ||
		    nvml->nvmlDeviceGetUUID(device, name, sizeof(name)) ||
		    nvml->nvmlDeviceGetMemoryInfo(device, &memory))
			continue;
		for (int i = 0; i < n; i++)
			if (!strcmp(g[i].name, name))
				g[i].free = memory.free;
	}
}

static void find_free(struct gpu_seen *g, int n)
{
	struct nvml nvml;
	char why[160];
	if (nvml_load(&nvml, why, sizeof(why)) == NVML_LOADED && !nvml.nvmlInit()) {
		ask_free(&nvml, g, n);
		nvml.nvmlShutdown();
	} else {
		log_notice("NVML does not say how much memory the GPUs have: the first one is taken");
	}
}

enum status cuda_choose(const struct cuda_driver *cu, const char *name, struct gpu_seen *out, char *why, size_t n_why)
{
	struct gpu_seen seen[GPUS_MOST];
	int n = 0;
	enum status st = look(cu, seen, &n, why, n_why);
	if (st)
		return st;
	if (n > 1 && !*name)
		find_free(seen, n);
	const int i = gpu_pick(seen, n, name, why, n_why);
	if (i < 0)
		return ST_INVALID_CONFIG;
	*out = seen[i];
	return ST_OK;
}

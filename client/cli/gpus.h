/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the GPUs of this machine can be used: what the driver says of them, and what gaccd says of itself. */
#ifndef GACCCTL_GPUS_H
#define GACCCTL_GPUS_H

#include "command.h"

enum gpu_state {
	GPU_OK,
	GPU_NOTE, /* worth knowing; nothing has to be changed */
	GPU_FAULT
};

#define GPU_CHECKS_MAX 32

struct gpu_check {
	const char *name; /* "driver", "memlock", "nodes", "compute mode", "persistence", "MPS"; static */
	enum gpu_state state;
	char on[256];	 /* which GPUs, by the driver's numbers, or which nodes, separated by spaces; "": all alike */
	char value[128]; /* what was found */
	const char *fix; /* what to do about it, one sentence; "" if nothing. Static */
};

struct gpu_report {
	size_t n; /* 0: there is no GPU here, and `none` says how that is known */
	struct gpu_check check[GPU_CHECKS_MAX];
	char none[200];
};

struct gpu_places {
	const char *dev; /* "/dev" */
	const char *pci; /* "/sys/bus/pci/devices" */
	const char *mps; /* where the control daemon of MPS has its pipes */
};

/* `node`: of the gaccd on this machine. `devices`: ask for the state of each device, too, which begins to use it:
 * seconds for each that is shut down. Else only what costs next to nothing. Loads the driver's library; one thread. */
void gpus_look(const gacc_node_info *node, const struct gpu_places *places, bool devices, struct gpu_report *out);
const char *gpu_state_name(enum gpu_state); /* "ok", "note", "fault" */

#endif

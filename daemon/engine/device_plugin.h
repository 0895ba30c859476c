/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object with the arithmetic of one kind of device, which an engine loads when its job's memory is there. It
 * exports one table, DEVICE_PLUGIN_SYMBOL, and needs nothing of the program that loads it: the two share no variables.
 *
 * The engine's main thread; what an arith allows other threads, it allows them here, too.
 */
#ifndef GACC_ENGINE_DEVICE_PLUGIN_H
#define GACC_ENGINE_DEVICE_PLUGIN_H

#include "base/log.h"
#include "engine/arith.h"
#include "engine/control_page.h"
#include "engine/plan.h"

#include <stddef.h>

#define DEVICE_PLUGIN_VERSION 8 /* of this table, the plan, the control segment and arith.h */
#define DEVICE_PLUGIN_SYMBOL "gacc_device_plugin"

struct device;

/* Of the process that opens a device. */
struct device_user {
	const char *ident; /* of its log's lines; static storage */
	enum log_format format;
	enum log_level level;
	/* Called, on the same thread, between the parts of a call that may take long: to say that it gets on. May be
	 * NULL. */
	void (*at_work)(void *arg);
	void *arg;
};

/* Where a function has a status, `why` says in a sentence what is wrong. */
struct device_plugin {
	uint32_t version;
	const char *name; /* "cuda" */
	/* Whether such a job can be on a device. Pure. */
	bool (*takes)(const struct plan *, char *why, size_t n_why);
	/* The device of this name, or with a name that begins so; "": the one with the most free memory, of those that
	 * this process may see. Its log's lines are as those of its user. ST_INVALID_CONFIG: there is none, or it
	 * cannot do what is needed. */
	enum status (*open)(struct device **out, const char *name, const struct device_user *, char *why, size_t n_why);
	const char *(*identity)(const struct device *); /* its whole name, by which its memory is found again */
	void (*close)(struct device *);			/* after its arith. NULL is fine */
	/* Makes a job's memory, zeroed, and gives its descriptors, in the order in which adopt takes them; they stay
	 * the device's until close. The plan is borrowed until then. ST_NO_MEMORY, with the numbers. */
	enum status (*allocate)(struct device *, const struct plan *, uint64_t generation, const int **fds, int *n,
				char *why, size_t n_why);
	/* Takes such descriptors, also on errors. ST_SEGMENT_CORRUPT, ST_INVALID_CONFIG. */
	enum status (*adopt)(struct device *, const struct plan *, uint64_t generation, const int *fds, int n,
			     char *why, size_t n_why);
	/* Of a plan with slots_on_host, when the memory is there, and not during an operation: the slot's segment is
	 * mapped here, its header page first, and has so many bytes of data. NULL: no longer, before it is unmapped.
	 * ST_NO_MEMORY (it cannot be pinned), ST_IO_ERROR. */
	enum status (*slot)(struct device *, uint32_t slot, void *pages, uint64_t bytes);
	/* Of a plan without slots_on_host, when the memory is there. make_slot: other memory for a slot, zeroed; its
	 * descriptor is the caller's, and nothing else of it is left. ST_NO_MEMORY, with the numbers. take_slot: the
	 * slot gets such memory, in the place of what it was before, not during an operation. The descriptor is taken,
	 * also on errors, after which the slot is as it was. As of adopt. */
	enum status (*make_slot)(struct device *, uint32_t slot, uint64_t generation, int *fd, char *why, size_t n_why);
	enum status (*take_slot)(struct device *, uint32_t slot, uint64_t generation, int fd, char *why, size_t n_why);
	/* The arithmetic of that memory: one life's. It comes back when no earlier engine writes there any more:
	 * `others_are_over` says that this is known, as their processes have been waited for; otherwise it waits until
	 * the device shows it, for quiet_ns at most (ST_IO_ERROR). */
	enum status (*arith)(struct device *, struct arith **out, const struct control_page *, bool others_are_over,
			     uint64_t quiet_ns, char *why, size_t n_why);
};

/* Where the plug-in of NVIDIA's GPUs is, if it is installed: beside the program that asks, ../lib/gacc/gacc_cuda.so
 * from its directory. "" if that is not known. */
void device_plugin_path(char *out, size_t n);
/* Loads it; it stays loaded until the process ends. ST_INVALID_CONFIG: it is not there, or is of another version. */
enum status device_plugin_load(const struct device_plugin **out, const char *path, char *why, size_t n_why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a job on a device, as its engine gets it: made by the first engine, adopted by each later one, through
 * the plug-in that knows such devices (device_plugin.h). Main thread.
 */
#ifndef GACC_ENGINE_ON_DEVICE_H
#define GACC_ENGINE_ON_DEVICE_H

#include "engine/arith.h"
#include "engine/channel.h"
#include "engine/memory.h"

struct device;
struct device_plugin;

struct on_device {
	const struct device_plugin *plugin; /* NULL: not loaded */
	struct device *device;		    /* NULL: not open */
	bool has_memory;
	/* Set before it is opened: says that the engine gets on, while memory is made, adopted or pinned. */
	void (*at_work)(void *arg);
	void *at_work_arg;
};

/* All functions: `why` is one sentence on errors, also where a device may be at fault. */

/* Loads the plug-in at `path`, asks whether it takes the job of this plan, and opens a device of this name
 * (device_plugin.h). `ident`: of the
 * process, for its log. ST_INVALID_CONFIG, ST_INVALID_ARGUMENT (such a job cannot be on it), ST_NO_MEMORY. */
enum status on_device_open(struct on_device *, const struct plan *, const char *name, const char *path,
			   const char *ident, const struct engine_command *, char *why, size_t n_why);
/* The whole name of the device that is open. */
const char *on_device_name(const struct on_device *);
/* Makes the memory. The descriptors stay the device's. */
enum status on_device_allocate(struct on_device *, const struct plan *, uint64_t generation, const int **fds, int *n,
			       char *why, size_t n_why);
/* Adopts what has come after the segments on the host; nothing, if this engine has made the memory. */
enum status on_device_adopt(struct on_device *, struct memory *, char *why, size_t n_why);
/* The slots that are on the host, all of them, or one that is about to be unmapped or has been mapped anew. Not during
 * an operation. Nothing to do where the job is not on a device, or its slots are. */
enum status on_device_slots(struct on_device *, const struct memory *, char *why, size_t n_why);
/* Slots on the device: other memory for one, as its descriptor, which is the caller's; and what takes its place, of
 * such a descriptor, which is taken, also on errors, after which the slot is as it was. Not during an operation. */
enum status on_device_make_slot(struct on_device *, const struct memory *, uint32_t slot, int *fd, char *why,
				size_t n_why);
enum status on_device_take_slot(struct on_device *, const struct memory *, uint32_t slot, int fd, char *why,
				size_t n_why);
void on_device_drop_slot(struct on_device *, const struct memory *, uint32_t slot);
enum status on_device_slot(struct on_device *, const struct memory *, uint32_t slot);
/* The arithmetic, when no earlier engine writes there any more. */
enum status on_device_arith(struct on_device *, const struct memory *, bool others_are_over, struct arith **out,
			    char *why, size_t n_why);
/* Trainers of a job with slots_on_host see a copy of the parameters on the host: it becomes what they are on the
 * device. Before they are declared ready, and after each update, while the status page is odd. Nothing to do for other
 * jobs. ST_NO_MEMORY, or the device has failed: arith_need. */
enum status on_device_show_params(const struct memory *, struct arith *);
void on_device_fini(struct on_device *); /* after the arith, before the memory; zeroed is fine */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes or adopts a job's memory on a device, through the plug-in that knows such devices. Called by engine.c, when the
 * plan says that the job is on one; the engine's main thread. */
#include "engine/on_device.h"

#include "engine/device_plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOW_BYTES (UINT64_C(4) << 20)
#define QUIET_NS (UINT64_C(10) * 1000000000) /* for a dead engine's work on the device to end */

enum status on_device_open(struct on_device *d, const struct plan *p, const char *name, const char *path,
			   const char *ident, const struct engine_command *c, char *why, size_t n_why)
{
	const struct device_user user = { ident, (enum log_format)c->log_format, (enum log_level)c->log_level,
					  d->at_work, d->at_work_arg };
	if (d->device)
		return ST_OK;
	if (!path) {
		snprintf(why, n_why, "this program has no arithmetic of devices");
		return ST_INVALID_CONFIG;
	}
	enum status st = d->plugin ? ST_OK : device_plugin_load(&d->plugin, path, why, n_why);
	if (!st && !d->plugin->takes(p, why, n_why))
		st = ST_INVALID_ARGUMENT;
	return st ? st : d->plugin->open(&d->device, name, &user, why, n_why);
}

const char *on_device_name(const struct on_device *d)
{
	return d->plugin->identity(d->device);
}

enum status on_device_allocate(struct on_device *d, const struct plan *p, uint64_t generation, const int **fds, int *n,
			       char *why, size_t n_why)
{
	enum status st = ST_INVALID_ARGUMENT;
	if (d->has_memory)
		snprintf(why, n_why, "the memory on the device has been made already");
	else
		st = d->plugin->allocate(d->device, p, generation, fds, n, why, n_why);
	d->has_memory |= !st;
	return st;
}

enum status on_device_adopt(struct on_device *d, struct memory *m, char *why, size_t n_why)
{
	int *fds;
	const int n = d->has_memory ? 0 : memory_device(m, &fds);
	if (d->has_memory)
		return ST_OK;
	enum status st = d->plugin->adopt(d->device, m->plan, m->generation, fds, n, why, n_why);
	d->has_memory = !st;
	return st;
}

enum status on_device_arith(struct on_device *d, const struct memory *m, bool others_are_over, struct arith **out,
			    char *why, size_t n_why)
{
	return d->plugin->arith(d->device, out, &m->page, others_are_over, QUIET_NS, why, n_why);
}

/* ---- slots on the device ---- */

enum status on_device_make_slot(struct on_device *d, const struct memory *m, uint32_t slot, int *fd, char *why,
				size_t n_why)
{
	return d->plugin->make_slot(d->device, slot, m->generation, fd, why, n_why);
}

enum status on_device_take_slot(struct on_device *d, const struct memory *m, uint32_t slot, int fd, char *why,
				size_t n_why)
{
	return d->plugin->take_slot(d->device, slot, m->generation, fd, why, n_why);
}

/* ---- what is on the host ---- */

enum status on_device_slot(struct on_device *d, const struct memory *m, uint32_t slot)
{
	if (!m->plan->slots_on_host)
		return ST_OK;
	return d->plugin->slot(d->device, slot, m->slot[slot] - SEGMENT_DATA_OFFSET, m->plan->slot_bytes);
}

void on_device_drop_slot(struct on_device *d, const struct memory *m, uint32_t slot)
{
	if (m->plan->slots_on_host)
		d->plugin->slot(d->device, slot, NULL, 0);
}

enum status on_device_slots(struct on_device *d, const struct memory *m, char *why, size_t n_why)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i < m->plan->slots && !st; i++) {
		st = on_device_slot(d, m, i);
		if (m->plan->slots_on_host)
			d->at_work(d->at_work_arg);
	}
	if (st)
		snprintf(why, n_why, "the slots' memory cannot be pinned for the device: %s", status_info(st)->text);
	return st;
}

/* Through memory of this process: a copy that a dead engine has queued must not reach what its successor shows. */
enum status on_device_show_params(const struct memory *m, struct arith *a)
{
	const uint64_t all = m->plan->slots_on_host ? m->plan->param_bytes : 0;
	unsigned char *piece = all ? malloc(SHOW_BYTES) : NULL;
	enum status st = all && !piece ? ST_NO_MEMORY : ST_OK;
	for (uint64_t at = 0, n; at < all && !st; at += n) {
		n = all - at < SHOW_BYTES ? all - at : SHOW_BYTES;
		st = a->ops->read(a, SEG_PARAMS, at, n, piece);
		if (!st)
			memcpy(m->params + at, piece, n);
	}
	free(piece);
	return st;
}

void on_device_fini(struct on_device *d)
{
	if (d->plugin)
		d->plugin->close(d->device);
}

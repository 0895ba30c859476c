/* SPDX-License-Identifier: Apache-2.0 */
/* Which session's device uses a slot, as gaccd notes it. For session_map.c, part_slots.c and part_memory.c; loop
 * thread.
 *
 * The note of a slot on the host lies in the slot itself, so it is there as long as that is, whoever dies. Those of
 * slots on a device lie in the status segment, as gaccd cannot look into a device's memory. docs/protocol.md has the
 * table. */
#include "runtime/part.h"

#include <stddef.h>

bool part_slots_on_device(const struct part *p)
{
	return p->spec->device != DEVICE_HOST && p->spec->slots_on == SLOTS_ON_DEVICE;
}

int part_slot_index(const struct part *p, uint32_t slot)
{
	for (int i = 0; i < p->mem.n; i++)
		if (p->mem.wanted[i].role == SEG_SLOT && p->mem.wanted[i].index == slot)
			return i;
	return -1;
}

/* ---- where a note lies ---- */

static struct status_slot *row_of(struct part *p, uint32_t slot)
{
	unsigned char *status = part_map(p, SEG_STATUS, 0, true);
	return status ? (struct status_slot *)(status + plan_status_slots(p->mem.plan)) + slot : NULL;
}

/* One that cannot be read is of a session that there never was. */
static struct segment_device read_row(struct part *p, uint32_t slot)
{
	const struct status_slot *row = row_of(p, slot);
	if (!row)
		return (struct segment_device){ .used = 1 };
	return (struct segment_device){ atomic_load(&row->sgen), atomic_load(&row->rank), atomic_load(&row->used) };
}

static enum status write_row(struct part *p, uint32_t slot, const struct segment_device *d)
{
	struct status_slot *row = row_of(p, slot);
	if (!row)
		return ST_IO_ERROR;
	atomic_store(&row->used, 0);
	atomic_store(&row->sgen, d->sgen);
	atomic_store(&row->rank, d->rank);
	atomic_store(&row->used, d->used);
	return ST_OK;
}

static bool is_there(struct part *p, uint32_t slot)
{
	const struct segment *s = part_segment(p, SEG_SLOT, slot);
	return s && s->fd >= 0;
}

static struct segment_device read_note(struct part *p, uint32_t slot)
{
	return part_slots_on_device(p) ? read_row(p, slot) : segment_read_device(part_segment(p, SEG_SLOT, slot)->fd);
}

static enum status write_note(struct part *p, uint32_t slot, const struct segment_device *d)
{
	return part_slots_on_device(p) ? write_row(p, slot, d)
				       : segment_set_device(part_segment(p, SEG_SLOT, slot)->fd, d);
}

/* ---- notes ---- */

static bool is_of(const struct segment_device *d, const struct part *p, uint32_t rank)
{
	return d->rank == rank && d->sgen == job_generation(p->job, rank);
}

bool part_slots_foreign(struct part *p, uint32_t rank, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!is_there(p, first + i))
			continue;
		const struct segment_device d = read_note(p, first + i);
		if (d.used && !is_of(&d, p, rank))
			return true;
	}
	return false;
}

static uint64_t bytes_of_set(const struct part *p, int slot_0)
{
	return (p->mem.wanted[slot_0].bytes + SEGMENT_DATA_OFFSET) * p->spec->slots_per_rank;
}

uint64_t part_slots_reserve(const struct part *p)
{
	return p->mem.device ? bytes_of_set(p, part_slot_index(p, 0)) : 0;
}

/* From now on the part may have a set of slots twice. */
static void count_set(struct part *p)
{
	const int i = part_slot_index(p, 0);
	if (p->mem.device || i < 0)
		return;
	p->mem.device = true;
	const uint64_t bytes = bytes_of_set(p, i);
	if (p->mem.wanted[i].on_device) {
		p->mem.gpu_bytes += bytes;
	} else {
		p->mem.bytes += bytes;
		p->node->host_bytes += bytes;
	}
}

enum status part_slots_device(struct part *p, uint32_t rank)
{
	uint32_t n, first = job_session_slots(p->job, rank, &n);
	const struct segment_device d = { job_generation(p->job, rank), rank, 1 };
	enum status st = ST_OK;
	count_set(p);
	for (uint32_t i = 0; i < n && !st; i++) {
		const struct segment_device is = read_note(p, first + i);
		if (!is.used || !is_of(&is, p, rank))
			st = write_note(p, first + i, &d);
	}
	return st;
}

void part_slots_quiet(struct part *p, uint32_t rank)
{
	static const struct segment_device none;
	uint32_t n, first = job_session_slots(p->job, rank, &n);
	for (uint32_t i = 0; i < n; i++) {
		const struct segment_device d = is_there(p, first + i) ? read_note(p, first + i) : none;
		if (d.used && is_of(&d, p, rank))
			write_note(p, first + i, &none);
	}
}

void part_slots_adopted(struct part *p)
{
	for (int i = 0; i < p->mem.n; i++)
		if (p->mem.wanted[i].role == SEG_SLOT && is_there(p, p->mem.wanted[i].index) &&
		    read_note(p, p->mem.wanted[i].index).used)
			count_set(p);
}

/* ---- other memory ---- */

/* On the host the old memory, unless a session has got the new one already, whose device has then been noted there. */
bool part_slots_second(struct part *p, int i, int first, int second)
{
	if (p->mem.wanted[i].on_device) {
		const struct status_slot *row = row_of(p, p->mem.wanted[i].index);
		return row && atomic_load(&row->exchanges) & 1;
	}
	const struct segment_device a = segment_read_device(first), b = segment_read_device(second);
	return b.used && (!a.used || b.sgen > a.sgen);
}

/* The count before the note: a gaccd that ends between them exchanges the new memory, too, and not gives the old one
 * away. */
void part_slots_exchanged(struct part *p, uint32_t slot)
{
	struct status_slot *row = part_slots_on_device(p) ? row_of(p, slot) : NULL;
	if (!row)
		return;
	atomic_fetch_add(&row->exchanges, 1);
	atomic_store(&row->used, 0);
}

uint64_t part_slots_exchanges(struct part *p, uint32_t slot)
{
	const struct status_slot *row = part_slots_on_device(p) ? row_of(p, slot) : NULL;
	return row ? atomic_load(&row->exchanges) : 0;
}

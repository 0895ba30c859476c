/* SPDX-License-Identifier: Apache-2.0 */
/* Finds segments of a part, and maps those that gaccd itself reads or writes: the control record, and what clients
 * without shared memory send or read. Loop thread. */
#include "base/log.h"
#include "runtime/part.h"
#include "runtime/stored.h"

void part_kept_name(const struct part *p, int i, char out[FDSTORE_MAX_NAME])
{
	stored_name(p->id, p->number, p->n_parts, &p->mem.wanted[i], out);
	if (p->mem.other_name[i])
		stored_other_name(out);
}

struct segment *part_segment(struct part *p, uint32_t role, uint32_t index)
{
	for (int i = 0; i < p->mem.n; i++)
		if (p->mem.wanted[i].role == role && p->mem.wanted[i].index == index)
			return &p->mem.segment[i];
	return NULL;
}

void *part_map(struct part *p, uint32_t role, uint32_t index, bool writable)
{
	struct segment *s = part_segment(p, role, index);
	char why[256];
	if (!s || s->fd < 0)
		return NULL;
	if (s->header)
		return s->data;
	struct segment m = SEGMENT_NONE;
	if (segment_adopt(&m, s->fd, p->id, p->mem.plan->fingerprint, role, index, writable, why, sizeof(why))) {
		log_job(p->id, LOG_ERROR, "MapFailed", "segment %u.%u: %s", role, index, why);
		return NULL;
	}
	*s = m; /* under the same number, which an engine that is being started may still be sent */
	return s->data;
}

bool part_control_page(struct part *p, struct control_page *out)
{
	void *data = part_map(p, SEG_CONTROL, 0, false);
	if (data)
		control_page_view(out, data, p->spec->ranks, p->spec->max_micro_size, p->mem.plan->threads,
				  p->mem.plan->n_tensors);
	return data != NULL;
}

enum status part_read_control(struct part *p, struct control_state *out)
{
	struct control_page page;
	bool corrupt;
	if (!part_control_page(p, &page) || control_state_init(out, p->spec->ranks, p->spec->max_micro_size))
		return ST_NO_MEMORY;
	if (control_page_read(&page, out, &corrupt))
		return ST_OK;
	control_state_fini(out);
	return ST_SEGMENT_CORRUPT;
}

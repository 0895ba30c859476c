/* SPDX-License-Identifier: Apache-2.0 */
/* Maps parts of a job's memory that gaccd itself reads or writes. */
#include "edge/live_job.h"

#include "base/log.h"

struct segment *live_segment(struct live_job *l, uint32_t role, uint32_t index)
{
	for (int i = 0; i < l->n_segments; i++)
		if (l->wanted[i].role == role && l->wanted[i].index == index)
			return &l->segment[i];
	return NULL;
}

void *live_map(struct live_job *l, uint32_t role, uint32_t index, bool writable)
{
	struct segment *s = live_segment(l, role, index);
	char why[256];
	if (!s || s->fd < 0)
		return NULL;
	if (s->header)
		return s->data;
	struct segment m = SEGMENT_NONE;
	if (segment_adopt(&m, s->fd, l->id, l->plan->fingerprint, role, index, writable, why, sizeof(why))) {
		log_job(l->id, LOG_ERROR, "MapFailed", "segment %u.%u: %s", role, index, why);
		return NULL;
	}
	*s = m; /* under the same number, which an engine that is being started may still be sent */
	return s->data;
}

bool live_control_page(struct live_job *l, struct control_page *out)
{
	void *data = live_map(l, SEG_CONTROL, 0, false);
	if (data)
		control_page_view(out, data, l->spec.ranks, l->spec.max_micro_size, l->plan->threads,
				  l->plan->n_tensors);
	return data != NULL;
}

enum status live_read_control(struct live_job *l, struct control_state *out)
{
	struct control_page page;
	bool corrupt;
	if (!live_control_page(l, &page) || control_state_init(out, l->spec.ranks, l->spec.max_micro_size))
		return ST_NO_MEMORY;
	if (control_page_read(&page, out, &corrupt))
		return ST_OK;
	control_state_fini(out);
	return ST_SEGMENT_CORRUPT;
}

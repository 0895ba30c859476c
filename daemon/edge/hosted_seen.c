/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the views that the nodes of parts send, and keeps the newest of each job, from which people are answered. For
 * links. Loop thread. */
#include "edge/hosted_seen.h"

#include "edge/hosted.h"

#include <stdlib.h>

/* Of this job's part, and not overtaken. A job has one part. */
static bool concerns_us(const struct hosted *h, const struct part_view *v)
{
	const struct part_view *last = h->seen ? &h->seen->view : NULL;
	if (v->job_id != h->id || v->part || v->epoch != coord_epoch(h->coord))
		return false;
	return !last || v->epoch > last->epoch || v->incarnation > last->incarnation ||
	       (v->incarnation == last->incarnation && v->number > last->number);
}

void hosted_take_view(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_find(d, m->job);
	struct part_view v;
	char why[200];
	if (!h || !h->coord)
		return; /* it is over */
	enum status st = part_view_unpack(m->bytes, m->n, &v, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || !concerns_us(h, &v))
		return;
	h->changed |= !h->seen || !part_view_same(&h->seen->view, &v);
	if (!h->seen)
		h->seen = malloc(sizeof(*h->seen));
	if (h->seen)
		*h->seen = (struct hosted_seen){ daemon_now(d).mono_ns, v };
}

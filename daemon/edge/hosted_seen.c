/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the views that the nodes of parts send, and keeps the newest of each part, from which people are answered. For
 * links. Loop thread. */
#include "edge/hosted_seen.h"

#include "edge/hosted.h"

#include <stdlib.h>

/* Of this part, and not overtaken. */
static bool concerns_us(const struct hosted *h, uint32_t part, const struct part_view *v)
{
	const struct hosted_seen *seen = h->part[part].seen;
	const struct part_view *last = seen ? &seen->view : NULL;
	if (v->job_id != h->id || v->part != part || v->epoch != coord_epoch(h->coord))
		return false;
	return !last || v->epoch > last->epoch || v->incarnation > last->incarnation ||
	       (v->incarnation == last->incarnation && v->number > last->number);
}

void hosted_take_view(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_view v;
	char why[200];
	if (!h)
		return;
	enum status st = part_view_unpack(m->bytes, m->n, &v, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || !concerns_us(h, m->part, &v))
		return;
	struct hosted_seen **seen = &h->part[m->part].seen;
	h->changed |= !*seen || !part_view_same(&(*seen)->view, &v);
	if (!*seen)
		*seen = malloc(sizeof(**seen));
	if (*seen)
		**seen = (struct hosted_seen){ daemon_now(d).mono_ns, v };
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees jobs with their machines: the coordinator and the checkpoints. For Submit, the recovery after a
 * restart, and all that lets a job go. Loop thread. */
#include "edge/hosted_life.h"

#include "base/array.h"
#include "edge/checkpoints.h"
#include "edge/hosted_ports.h"
#include "edge/launching.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdlib.h>

void hosted_drop_machines(struct hosted *h)
{
	if (h->coord)
		placing_drop(h);
	coord_free(h->coord);
	h->coord = NULL;
	shared_drop(h->tensors);
	h->tensors = NULL;
	/* the part is no longer this job's */
	free(h->seen);
	free(h->ledger.micro);
	h->seen = NULL;
	h->ledger = (struct hosted_ledger){ 0 };
}

void hosted_free(struct hosted *h)
{
	if (!h)
		return;
	launching_free(h);
	hosted_history_fini(h);
	saving_free(h);
	saved_fini(&h->saved);
	hosted_drop_machines(h);
	hosted_unmake(h);
}

void hosted_free_all(struct daemon *d)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		hosted_free(d->job[i]);
	free(d->job);
	d->job = NULL;
	d->n_jobs = 0;
}

enum status hosted_new(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct prepared *p,
		       struct hosted **out)
{
	if (p->status)
		return p->status;
	struct hosted *h = hosted_make(d, id, uid, user, specification_new(p), HOSTED_EVENTS);
	if (!h)
		return ST_NO_MEMORY;
	const struct coord_ports cp = hosted_coord_ports(h);
	enum status st = saving_new(h);
	if (!st)
		st = coord_new(&h->coord, id, h->spec, d->term, 1, NULL, &cp);
	if (st) {
		hosted_free(h);
		return st;
	}
	if (p->set.n)
		st = part_need(&d->node, h->spec, &p->set.arena, &h->place.need);
	if (st)
		hosted_free(h);
	else
		*out = h;
	return st;
}

enum status hosted_add(struct daemon *d, struct hosted *h)
{
	struct hosted **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	d->job[d->n_jobs++] = h;
	return ST_OK;
}

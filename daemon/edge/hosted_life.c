/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees jobs with their machines: the coordinator, the part on this node, the checkpoints. For Submit, the
 * recovery after a restart, and whoever lets a job go. Loop thread. */
#include "edge/hosted_life.h"

#include "base/array.h"
#include "edge/checkpoints.h"
#include "edge/hosted_ports.h"
#include "edge/launching.h"
#include "edge/part_ports.h"
#include "edge/registering.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdlib.h>
#include <string.h>

void hosted_drop_machines(struct hosted *h)
{
	if (h->part)
		registering_drop(h->part);
	part_free(h->part);
	coord_free(h->coord);
	h->part = NULL;
	h->coord = NULL;
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
	struct part_origin o = { .job = id, .epoch = 1, .uid = uid, .user = user, .text = h->text };
	memcpy(o.uuid, h->uuid, sizeof(o.uuid));
	const struct part_ports pp = part_ports();
	const struct coord_ports cp = hosted_coord_ports(h);
	enum status st = saving_new(h);
	if (!st)
		st = part_new(&d->node, &o, &pp, &h->part);
	if (!st)
		st = coord_new(&h->coord, id, h->spec, d->term, 1, NULL, &cp);
	if (st) {
		hosted_free(h);
		return st;
	}
	h->part->tensors.durable = h->text->pb->n_tensors != 0;
	if (p->set.n)
		job_take_tensors(h->part->job, &p->set);
	*out = h;
	return ST_OK;
}

enum status hosted_add(struct daemon *d, struct hosted *h)
{
	struct hosted **j = array_grow(d->job, d->n_jobs, &d->jobs_capacity, sizeof(*j));
	if (!j)
		return ST_NO_MEMORY;
	d->job = j;
	if (h->part)
		memcpy(h->part->uuid, h->uuid, sizeof(h->uuid));
	if (h->part && part_publish(h->part))
		return ST_NO_MEMORY;
	d->job[d->n_jobs++] = h;
	return ST_OK;
}

enum status hosted_declare_spec_tensors(struct hosted *h, char *why, size_t n_why)
{
	struct tensor_spec *t = NULL;
	enum status st = tensors_from_message(h->text->pb->tensors, h->text->pb->n_tensors, &t, why, n_why);
	if (!st)
		st = job_set_tensors(h->part->job, t, h->text->pb->n_tensors, why, n_why);
	free(t);
	return st;
}

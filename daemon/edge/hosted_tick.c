/* SPDX-License-Identifier: Apache-2.0 */
/* Drives each job once a tick: its launcher, its part, its checkpoints, its coordinator; then tells those who watch or
 * wait. For daemon.c. Loop thread. */
#include "edge/hosted_life.h"

#include "edge/checkpoints.h"
#include "edge/hosted_aside.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_past.h"
#include "edge/hosted_waits.h"
#include "edge/hosted_watchers.h"
#include "edge/launching.h"
#include "edge/registering.h"
#include "edge/submitting.h"

/* Nothing uses its state machines. */
static bool is_free(const struct hosted *h)
{
	return coord_phase(h->coord) < COORD_ENDING && !h->n_holders && !h->watchers.n && !h->part->n_holders &&
	       !h->part->n_links && !h->waits && !h->norms_calls.n && !saving_busy(h);
}

/* Lets a part read the tensor set that it has left packed since the restart. true: the set cannot be read, and the
 * job has been set aside. */
static bool tensors_tick(struct hosted *h)
{
	const struct part_tensors *t = &h->part->tensors;
	if (!t->due || h->part->mem.allocating || h->admission.queued || coord_phase(h->coord) >= COORD_ENDING)
		return false;
	if (!t->wrong) {
		part_allocate(h->part);
		return false;
	}
	if (!is_free(h) || hosted_set_aside(h, "TENSORS", t->wrong))
		return false;
	launching_free(h);
	return true;
}

void hosted_tick(struct hosted *h, struct now now)
{
	launching_tick(h, now);
	if (!h->coord) {
		hosted_past_tick(h, now);
		return;
	}
	if (tensors_tick(h))
		return;
	registering_tick(h->part, now);
	part_tick(h->part, now);
	saving_tick(h);
	coord_tick(h->coord, now);
	if (hosted_ended(h))
		submitting_done(h, ST_OK, NULL); /* it has ended before its memory was there: its state says how */
	if (h->norms_calls.n && hosted_ended(h))
		hosted_fail_norms(h, ST_JOB_ENDED, "it has ended");
	hosted_tell(h, now);
	hosted_waits(h, now);
	hosted_end_tick(h, now);
}

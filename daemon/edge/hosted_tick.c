/* SPDX-License-Identifier: Apache-2.0 */
/* Drives each job once a tick: its launcher, its placement, its checkpoints, its coordinator; then tells those who
 * watch or wait. For daemon.c. Loop thread. */
#include "edge/hosted_life.h"

#include "cluster/placed_message.h"
#include "edge/checkpoints.h"
#include "edge/hosted_aside.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_past.h"
#include "edge/hosted_scalars.h"
#include "edge/hosted_waits.h"
#include "edge/hosted_watchers.h"
#include "edge/launching.h"
#include "edge/placing.h"
#include "edge/submitting.h"

#include <stdio.h>

/* Nothing uses its state machines. */
static bool is_free(const struct hosted *h)
{
	return !h->n_holders && !h->watchers.n && !h->waits && !h->norms_calls.n && !saving_busy(h);
}

/* No node takes a part of the job: a new one ends, and one of an earlier gaccd is set aside, because nothing of it must
 * be lost. true: it has been set aside. */
static bool refused_tick(struct hosted *h, struct now now)
{
	if (!h->place.refused || coord_phase(h->coord) >= COORD_ENDING)
		return false;
	if (!h->submitted_here) {
		bool aside = is_free(h) && !hosted_aside_refused(h);
		if (aside)
			launching_free(h);
		return aside;
	}
	char why[PLACED_TEXT + 16];
	hosted_part_text(h, h->place.refused_part, h->place.why ? h->place.why : status_info(h->place.refused)->text,
			 why, sizeof(why));
	submitting_done(h, h->place.refused, why); /* ends the job, where somebody waits */
	if (coord_phase(h->coord) < COORD_ENDING)
		coord_end(h->coord, h->place.refused, why, now);
	return false;
}

/* A submitter whose deadline comes hears what its job waits for, instead of nothing. */
static void answer_late_submitters(struct hosted *h, struct now now)
{
	char waits[200] = "its memory is not there yet", why[sizeof(waits) + 200];
	submitted_fn *cb;
	void *arg;
	while (submitting_take_late(h, now.mono_ns, &cb, &arg)) {
		placing_is_late(h, now, waits, sizeof(waits));
		snprintf(why, sizeof(why),
			 "job %llu is submitted and goes on, but %s: see gaccctl status %llu, or end it with gaccctl "
			 "cancel %llu",
			 (unsigned long long)h->id, waits, (unsigned long long)h->id, (unsigned long long)h->id);
		cb(arg, NULL, false, ST_DEADLINE, why, NULL);
	}
}

void hosted_tick(struct hosted *h, struct now now)
{
	launching_tick(h, now);
	if (!h->coord) {
		hosted_past_tick(h, now);
		return;
	}
	if (refused_tick(h, now))
		return;
	placing_tick(h, now);
	answer_late_submitters(h, now);
	saving_tick(h, now);
	coord_tick(h->coord, now);
	if (hosted_ended(h))
		submitting_done(h, ST_OK, NULL); /* it has ended before its memory was there: its state says how */
	hosted_norms_tick(h, now);
	hosted_scalars_tick(h, now);
	hosted_tell(h, now);
	hosted_waits(h, now);
	hosted_end_tick(h, now);
}

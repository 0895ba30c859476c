/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that another thread or a device still writes to, since their ready words have not come: how long they are
 * awaited, and what is said of them then. For map.c, push_send.c and async.c; the job's thread, late_left also the
 * sender's. */
#include "lib/internal.h"

#include <inttypes.h>
#include <stdio.h>

int64_t late_left(const struct gacc_job *job, int64_t until)
{
	int64_t by = __atomic_load_n(&job->ready_by, __ATOMIC_RELAXED);

	return (by && by < until ? by : until) - now_ms();
}

bool late_await(const struct gacc_job *job, uint32_t slot, int64_t ms)
{
	const struct late *l = &job->memory.late[slot];
	int64_t left;

	if (!l->at || words_reached(&job->memory.words, l->at, l->value))
		return true;
	left = late_left(job, l->until);
	return words_await(&job->memory.words, l->at, l->value, left < ms ? left : ms);
}

void late_name(const struct gacc_job *job, uint32_t slot, char *out, size_t n)
{
	const struct late *l = &job->memory.late[slot];

	snprintf(out, n,
		 "slot %u, with micro-batch %u of window %" PRIu64 ", is still written to: ready word %u has not come "
		 "to %" PRIu64 " in time",
		 slot, l->micro, l->window, l->at, l->value);
}

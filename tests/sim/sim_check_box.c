/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of mailboxes, looked at after every event: what has come in them is known to gaccd, and those that are
 * over are closed. */
#include "sim.h"

#include <string.h>

#define STALE_NS (50 * MS)    /* an ATTACH that the engine has stored, and its answer */
#define COMPLETE_NS (10 * MS) /* PROGRESS, or the answer to the last push */

/* I24: a mailbox is closed when its session, or the job, is over. */
static void check_closed(struct sim *s, struct sim_box *b)
{
	uint32_t rank = part_global(&s->part, b->rank);
	if (b->mem->header.closed)
		return;
	bool newer = job_generation(s->job, rank) != b->sgen;
	if (job_ended(s->job) || (!newer && !job_session_is(s->job, rank, b->sgen)))
		sim_fail(s, "I24: the mailbox of rank %u is open, and its session, or the job, is over", b->rank);
	if (!newer || !s->engine_up) /* the answer to the ATTACH was lost: it is sent again */
		b->stale_since = 0;
	else if (!b->stale_since)
		b->stale_since = s->now;
	else if (s->now - b->stale_since > STALE_NS)
		sim_fail(s, "I24: the mailbox of session %llu of rank %u is open, and session %llu is in force",
			 (unsigned long long)b->sgen, b->rank, (unsigned long long)job_generation(s->job, rank));
}

/* I25: gaccd that has read the newest record knows every push in it. */
static void check_mirror(struct sim *s)
{
	const struct control_state *m = job_record(s->job);
	const size_t bytes = s->d.n_words * sizeof(*s->d.counted);
	if (!m || s->looked != s->d.r.seq || m->r.window != s->d.r.window)
		return;
	bool same = m->r.count == s->d.r.count && !memcmp(m->counted, s->d.counted, bytes) &&
		    !memcmp(m->voided, s->d.voided, bytes) && (!s->d.r.count || m->r.window_lr == s->d.r.window_lr);
	for (uint32_t i = 0; i < s->spec.ranks; i++)
		same = same && m->rank[i].counted == s->d.rank[i].counted;
	if (!same)
		sim_fail(s, "I25: gaccd has read record %llu of window %llu, and has other micro-batches",
			 (unsigned long long)s->looked, (unsigned long long)s->d.r.window);
}

/* I26: the coordinator is told of a complete window at once. */
static void check_told_complete(struct sim *s)
{
	bool is_read = s->part.n_parts > 1 && s->d.r.client_pending; /* GO would overwrite what trainers read */
	bool complete = s->engine_up && !job_ended(s->job) && s->d.r.phase == WINDOW_OPEN && !sim_owing(s) && !is_read;
	if (!complete || s->complete_said == s->d.r.window + 1)
		s->complete_since = 0;
	else if (!s->complete_since)
		s->complete_since = s->now;
	else if (s->now - s->complete_since > COMPLETE_NS && s->now > s->unread_until)
		sim_fail(s, "I26: part %u: window %llu is complete since %.3f s, and no report says so", s->part.number,
			 (unsigned long long)s->d.r.window, (double)s->complete_since / 1e9);
}

/* The answer to a Flush says how much is counted, unless the record could not be read. */
void sim_check_flush(struct sim *s, const struct proc *p, uint32_t counted)
{
	if (p->window == s->d.r.window && counted != s->d.rank[p->rank].counted && s->now >= s->unread_until)
		sim_fail(s, "I4: rank %u has flushed window %llu and is told that %u count, not %u", p->rank,
			 (unsigned long long)p->window, counted, s->d.rank[p->rank].counted);
}

void sim_check_boxes(struct sim *s)
{
	if (!s->gaccd_up)
		return;
	for (uint32_t i = 0; i < s->spec.ranks; i++)
		if (s->given[i])
			check_closed(s, s->given[i]);
	check_mirror(s);
	check_told_complete(s);
}

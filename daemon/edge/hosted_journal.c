/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a job's commits and its end to the journal, for the coordinator's ports and its last checkpoint. Loop thread;
 * the journal's thread writes. */
#include "edge/hosted_journal.h"

#include "base/log.h"
#include "cluster/job_records.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_past.h"
#include "edge/hosted_waits.h"
#include "edge/placing.h"

#include <stdlib.h>
#include <string.h>

struct pending_commit {
	struct hosted *h;
	uint64_t window;
	struct decided told; /* for the nodes of parts elsewhere; counted NULL: for nobody */
};

/* A node that comes back must know the last windows; one that is here keeps them as long as this gaccd. Without memory
 * it does not hear of this one. */
static struct decided told_of(const struct hosted *h, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct decided told = { .commit = *k, .n_words = n_words };
	if (hosted_parts_here(h) < h->n_parts)
		told.counted = malloc(n_words * sizeof(*counted) + 1);
	if (told.counted)
		memcpy(told.counted, counted, n_words * sizeof(*counted));
	return told;
}

static void on_commit_durable(void *arg, enum status st)
{
	const struct pending_commit *p = arg;
	daemon_check_store(st);
	if (!st)
		hosted_history_durable(p->h, p->window);
	if (p->told.counted && (st || !placing_note_window(p->h, &p->told)))
		free(p->told.counted);
	coord_on_persisted(p->h->coord, p->window, st, daemon_now(p->h->d));
}

void hosted_persist_commit(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n_words)
{
	struct hosted *h = ctx;
	hosted_history_decided(h, k);
	size_t n = 0;
	void *payload = commit_record_pack(k, counted, n_words, &n);
	struct pending_commit *p = malloc(sizeof(*p));
	enum status st = ST_NO_MEMORY;
	if (payload && p) {
		*p = (struct pending_commit){ h, k->window, told_of(h, k, counted, n_words) };
		struct journal_record r = { .kind = JOURNAL_COMMIT,
					    .commit = { .job = h->id,
							.epoch = k->epoch,
							.window = k->window,
							.applied_step = k->applied_step,
							.term = k->term,
							.attempt = k->attempt,
							.outcome = k->outcome,
							.unix_ns = k->unix_nanos,
							.payload = { payload, n } } };
		st = persist_put_own(h->d->persist, &r, on_commit_durable, p);
	} else {
		free(p);
	}
	free(payload);
	if (st) {
		log_job(h->id, LOG_ERROR, "CommitLost", "no memory to write the commit of window %llu",
			(unsigned long long)k->window);
		daemon_fail();
	}
}

static void on_end_durable(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	if (st && st != ST_STALE_TERM && st != ST_JOB_ENDED) /* nobody must be told that it has ended */
		daemon_fail();
	struct now then = { daemon_now(h->d).mono_ns, h->ending_unix_ns }; /* as the next gaccd will see it */
	h->ended_unix_ns = h->ending_unix_ns;
	coord_on_ended(h->coord, st, then);
	hosted_waits(h, daemon_now(h->d));
}

void hosted_write_end(struct hosted *h, enum status end, const char *reason)
{
	enum job_state state = coord_end_state(end);
	struct now now = daemon_now(h->d);
	/* without memory the next gaccd shows less of it, if this one dies soon */
	struct journal_bytes view = hosted_past_record(h, now);
	struct journal_record r = {
		.kind = JOURNAL_END,
		.end = { .job = h->id, .state = state, .reason = reason, .unix_ns = now.unix_ns, .view = view }
	};
	h->ending_unix_ns = now.unix_ns;
	hosted_event(h, state != JOB_COMPLETED, state == JOB_COMPLETED ? "Completed" : "Ended", -1, reason);
	if (persist_put(h->d->persist, &r, on_end_durable, h))
		daemon_fail();
	free((void *)view.data);
}

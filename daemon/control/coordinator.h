/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator of one job: collects reports, closes windows, runs attempts, decides, commits.
 *
 * Pure state machine; one thread; time is an argument. States and transitions: docs/protocol.md, "Window at the
 * coordinator". The commit point is the moment coord_on_persisted(ok) is called. After a restart a new coordinator
 * (with a higher term, taken before the log is read) starts from coord_restore.
 */
#ifndef GACC_CONTROL_COORDINATOR_H
#define GACC_CONTROL_COORDINATOR_H

#include "control/decide.h"
#include "control/part.h"
#include "control/ports.h"

enum coord_phase {
	COORD_START,   /* nodes allocate and get their parameters */
	COORD_COLLECT, /* the window is open */
	/* CLOSE sent, until all are CLOSED; passed over where all parts are complete, or there is one. Then until the
	 * job has its exchange slots */
	COORD_CLOSE,
	COORD_GO,      /* attempt running, until all have voted for it; one that has failed is followed by another */
	COORD_PERSIST, /* the commit is being written */
	COORD_COMMIT,  /* durable; sent until all nodes have applied it */
	COORD_ENDING,  /* the end is being written */
	COORD_ENDED
};

/* Numbers are those of gacc.v1.JobState. */
enum job_state {
	JOB_PENDING = 1,
	JOB_STARTING = 2,
	JOB_RUNNING = 3,
	JOB_STALLED = 4,
	JOB_PAUSED = 5,
	JOB_COMPLETING = 6,
	JOB_COMPLETED = 7,
	JOB_FAILED = 8,
	JOB_CANCELLED = 9,
	JOB_NODE_FAIL = 10
};

struct coord;

/* `spec` is the whole job's; it is borrowed and must outlive the coordinator. Of its n_parts >= 1 parts `part` names
 * the ranks, copied; each rank is in exactly one. NULL: one part has all. ST_NO_MEMORY. */
enum status coord_new(struct coord **out, uint64_t job_id, const struct job_spec *spec, uint64_t term, uint32_t n_parts,
		      const struct part_ranks *part, const struct coord_ports *);
void coord_free(struct coord *);
/* Before anything else, of a job of 2 to COLL_MAX_PARTS parts whose engines sum together: they form communicators
 * (ports.board), in which they give up on one that does not answer for stall_ns. ST_NO_MEMORY. */
enum status coord_set_collectives(struct coord *, int64_t stall_ns);
/* The last durable commit, read after the term was taken. `counted` is not kept. */
void coord_restore(struct coord *, const struct commit *last);
/* A new job that begins with this window, as a checkpoint left it; `last`: the outcome before, or NULL. */
void coord_start_at(struct coord *, uint64_t window, uint64_t applied_step, const struct commit *last);
/* Before coord_restore: the job is paused, and each update ever made, in their order; those of a checkpoint before
 * coord_start_at. ST_NO_MEMORY. */
void coord_restore_hold(struct coord *, const char *reason);
enum status coord_restore_update(struct coord *, const struct update *);
/* After all that: since when it has been in the state that it has now. Without: since the submission. */
void coord_restore_since(struct coord *, int64_t unix_ns);

/* Texts name the part's node from now on. For jobs with parts elsewhere. */
void coord_part_on(struct coord *, uint32_t part, const char *node);

/* Whoever passes it on has made sure that it comes from the node of its part. */
void coord_on_report(struct coord *, const struct report *, struct now);
/* The part's node cannot be heard, or does not take the part: the job is degraded, whatever the part has said last, and
 * nothing times out. "": no longer. */
void coord_part_away(struct coord *, uint32_t part, const char *why, struct now);
/* The part's node has another build than that of part 0 (control/alike.h): the job is degraded, nothing times out, and
 * engines of the two do not get to know each other, so that no step is taken. "": no longer. */
void coord_part_unlike(struct coord *, uint32_t part, const char *why, struct now);
/* The node has lost what it counted its starts by: its reports are taken again, whatever was their number. */
void coord_part_anew(struct coord *, uint32_t part);
/* The same for the address of an engine. ST_OK: it was of use. Else it is dropped: ST_STALE_ATTEMPT: of another
 * communicator. ST_NOT_READY: the newest report of the part, or of another part on the complete board, has another life
 * of its engine. ST_ALREADY_EXISTS, ST_MALFORMED, ST_INVALID_ARGUMENT: as in coll/board.h. ST_JOB_ENDED: none is
 * wanted. ST_NO_MEMORY. */
enum status coord_on_blob(struct coord *, const struct part_blob *, struct now);
/* The turn of a job that has asked for exchange slots has come: ports.exchange_ask says so, too. */
void coord_on_exchange(struct coord *, struct now);
/* ST_OK: durable. ST_STALE_TERM: another coordinator has taken over, this one stops for good. Others: the store failed;
 * nothing was decided and the window stays prepared. */
void coord_on_persisted(struct coord *, uint64_t window, enum status, struct now);
void coord_on_ended(struct coord *, enum status, struct now);
/* Repeats orders that seem not to have arrived, watches for late ranks. Call it every 100 ms or so. */
void coord_tick(struct coord *, struct now);
/* Repeats them to all nodes at once. */
void coord_resend(struct coord *, struct now);

/* Closes the open window with what is counted: ST_NOT_READY when the job does not run, ST_PAUSED while it is held,
 * ST_OK otherwise (also when it is closing already); *out_window says which. */
enum status coord_flush(struct coord *, uint64_t *out_window, struct now);
/* The job waits for its turn: PENDING with this reason; the time in which it must start does not run. */
void coord_enqueue(struct coord *, const char *reason, struct now);
/* Its turn has come: STARTING. */
void coord_admit(struct coord *, struct now);
/* Holds the job at the window's end: the open window may fill, but is not closed; one that is closing already is
 * committed first. A part that closed its window by itself meanwhile has its vote taken after the resume. Nobody counts
 * as late meanwhile. Both are durable before they are said here; `reason` says who and
 * why. ST_JOB_ENDED. */
enum status coord_pause(struct coord *, const char *reason, struct now);
enum status coord_resume(struct coord *, const char *reason, struct now);
bool coord_held(const struct coord *);
/* Values from a window on; u->window 0: the earliest possible, filled in. Of the two halves the first checks and the
 * second takes effect; the caller puts the update into the journal's queue between them, in the same turn, so that it
 * is durable before any commit that it shapes. ST_INVALID_ARGUMENT, ST_WINDOW_BEGUN, ST_RESOURCE_EXHAUSTED,
 * ST_JOB_ENDED, ST_NO_MEMORY. */
enum status coord_prepare_update(struct coord *, struct update *u, const char **field, char *why, size_t n_why);
void coord_take_update(struct coord *, const struct update *u);
/* Not in force yet. */
const struct updates *coord_updates(const struct coord *);
/* Of the open window. */
const struct values *coord_values(const struct coord *);
const struct carry *coord_carry(const struct coord *);
/* The next window that closes asks its engines for the norms of all tensors; ports.norms says when they are there.
 * ST_NOT_READY, ST_JOB_ENDED. */
enum status coord_want_norms(struct coord *);
/* Ends the job unless it has ended, as operators want it; nodes do that by their reports (job_fail). `end` is ST_OK,
 * ST_CANCELLED or what failed it. */
void coord_end(struct coord *, enum status end, const char *reason, struct now);
/* The state of a job that has ended with this status. */
enum job_state coord_end_state(enum status end);
/* What coord_end was told, from COORD_ENDING on. */
enum status coord_end_status(const struct coord *);

enum coord_phase coord_phase(const struct coord *);
/* No rank can give it anything any more: its end is being written, or follows since all ranks have left for good. */
bool coord_is_over(const struct coord *);
enum job_state coord_state(const struct coord *, const char **out_reason, int64_t *out_since_unix_ns);
uint64_t coord_window(const struct coord *);
/* The job's numbers of a part's ranks; lent. */
const struct part_ranks *coord_part_ranks(const struct coord *, uint32_t part);
/* The communicator that a part's engine was last said to have joined (struct coll_id, its k); 0: none. */
uint64_t coord_part_comm(const struct coord *, uint32_t part);
/* The parts that this one's engine could not reach when it last failed an attempt, bit i being part i; 0 once all have
 * reached each other. */
uint64_t coord_part_unreachable(const struct coord *, uint32_t part);
/* The window whose outcome the parts do not have, and will not get before the next message to them: what they hold is
 * the state before it. false: a COMMIT is on its way, or they are not started, or it is not known. */
bool coord_window_at_parts(const struct coord *, uint64_t *out);
uint64_t coord_epoch(const struct coord *);
uint64_t coord_applied_step(const struct coord *);
/* Last commit decided; NULL before the first. */
const struct commit *coord_last_commit(const struct coord *);
/* All ranks as last reported; *n ranks, indexed by rank; ages are of the time of the report. Ranks never reported have
 * pid 0. */
const struct rank_progress *coord_ranks(const struct coord *, uint32_t *n);
/* For how long others have been waiting for this rank in the open window; 0: nobody waits for it. */
int64_t coord_rank_late_ns(const struct coord *, uint32_t rank, struct now);
int64_t coord_window_opened_unix_ns(const struct coord *);
/* Ranks and parts that it has looked at so far: what a report costs must not grow with their number. */
uint64_t coord_visits(const struct coord *);
/* For tests: a count that is kept differs from what the reports say; why names it. Looks at everything. */
bool coord_counts_wrong(const struct coord *, char *why, size_t n);

#endif

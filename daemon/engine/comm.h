/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of an engine: it has one member (coll.h) at a time, and a thread that runs the member's calls.
 *
 * For jobs of several parts; an engine of a job of one part makes no struct comm. All functions are called by one
 * thread, the engine's main thread, and none of them waits for another part: what takes long runs on the communication
 * thread, one call at a time, and an eventfd tells when a call has come back. The communication thread runs coll's
 * calls and the functions that comm_reduce, comm_fill and comm_gather are given, and nothing else: it does not log,
 * publish or allocate (coll itself does).
 *
 * A member is never used again once it is aborted, has failed or is replaced: it is "the old one" until its last call
 * has come back and it has left, and a new member joins after that only. There is at most one old one.
 *
 *   state     event                                   next      what happens
 *   any       join, id above all of this life         OFFERED   the member is aborted; coll_open; OK with the blob
 *   any       the same, coll_open fails               NONE      its status and words; the same id may be tried again
 *   OFFERED.. join, the member's own id               same      OK with the same blob
 *   any       join, another id                        same      STALE_ATTEMPT: it is older, or this life has left it
 *   OFFERED   address of the member's id              OFFERED   OK, kept; again, and the same: OK
 *   OFFERED   the same, other than before             OFFERED   MALFORMED
 *   OFFERED   own entry with another life or blob     OFFERED   MALFORMED
 *   OFFERED   all addresses here, no old one          JOINING   coll_join on the thread
 *   JOINING.. address of the member's id              same      OK: sent again
 *   other     address                                 same      STALE_ATTEMPT
 *   JOINING   OK                                      READY     COMM_EVENT_JOINED
 *   JOINING   failed                                  BROKEN    COMM_EVENT_LOST; the member leaves
 *   READY     comm_reduce, _fill, _gather             BUSY      the function runs on the thread
 *   BUSY      OK                                      READY     COMM_EVENT_DONE
 *   BUSY      failed                                  BROKEN    COMM_EVENT_DONE with the failure; the member leaves
 *   OFFERED.. abort of the member's id                BROKEN    the member is aborted and leaves; no event
 *   other     abort, or abort of another id           same      nothing
 *
 * "OFFERED.." is OFFERED, JOINING, READY and BUSY, "JOINING.." the last three. A call that is aborted brings no event;
 * until it has come back comm_is_working says so, and what the function was given is still the thread's.
 */
#ifndef GACC_ENGINE_COMM_H
#define GACC_ENGINE_COMM_H

#include "coll/coll.h"

struct comm;

enum comm_state { COMM_NONE, COMM_OFFERED, COMM_JOINING, COMM_READY, COMM_BUSY, COMM_BROKEN };
enum comm_task { COMM_JOIN, COMM_REDUCE, COMM_FILL, COMM_GATHER };
enum comm_event_kind { COMM_EVENT_JOINED, COMM_EVENT_LOST, COMM_EVENT_DONE };
enum comm_look { COMM_LOOK_QUIET, COMM_LOOK_MOVES, COMM_LOOK_HANGS };

/* What has become of a call. */
struct comm_event {
	enum comm_event_kind kind;
	enum comm_task task;
	struct coll_id id;
	enum status status;				     /* of the call; not ST_OK: the communicator is broken */
	uint32_t connected;				     /* other members that have joined */
	uint64_t pieces;				     /* as coll_poll counts them, of all calls */
	uint64_t suspects;				     /* bit s: part s is one */
	char text[sizeof(((struct coll_failure *)0)->text)]; /* why; "" when the status is ST_OK */
};

/* A call on the communication thread: operations of this member, and what lies between them. It returns what the first
 * operation that has failed returned; any other failure breaks the communicator, too. */
typedef enum status comm_fn(void *arg, struct coll *);

/* The net is the caller's, and stays until comm_free has returned true. life: of this engine, not 0. small: as in
 * coll_config. ST_NO_MEMORY,
 * ST_IO_ERROR (no eventfd, no thread). */
enum status comm_new(struct coll_net *, uint64_t life, int64_t stall_ns, uint32_t small, struct comm **out);
/* Aborts and leaves everything, and waits at most limit_ns for that. true, also for NULL: it is freed. false: a call
 * hangs; nothing is freed, the call may go on to use what it was given, and the process is to end (_exit). */
bool comm_free(struct comm *, int64_t limit_ns);

/* Becomes part `part` of n in this communicator. *blob and *n_blob: its address for the board, valid until the next
 * call of comm_join or comm_abort. Statuses: the table; *why (not NULL) tells more. */
enum status comm_join(struct comm *, const struct coll_id *, uint32_t part, uint32_t n, int64_t join_ns,
		      const void **blob, size_t *n_blob, struct coll_failure *why);
/* One entry of the complete board; bytes are copied. Statuses: the table; INVALID_ARGUMENT (part, life or size out of
 * bounds), NO_MEMORY. */
enum status comm_address(struct comm *, const struct coll_id *, uint32_t part, uint64_t life, const void *blob,
			 size_t n_blob);
/* In READY alone. `arg`, and what it names, is the thread's until the event, or until comm_is_working says false. */
void comm_reduce(struct comm *, comm_fn *, void *arg);
void comm_fill(struct comm *, comm_fn *, void *arg);
void comm_gather(struct comm *, comm_fn *, void *arg);
/* true: it was the member's id, which is over now. */
bool comm_abort(struct comm *, const struct coll_id *);

enum comm_state comm_state(const struct comm *); /* NULL: COMM_NONE */
/* How *id lies to the newest communicator that this life has been in: below 0, older; 0, the same; above 0, newer. Of
 * NULL, and of one that has been in none, every id is newer. */
int comm_compare(const struct comm *, const struct coll_id *id);
/* A function of comm_reduce, comm_fill or comm_gather runs, or one that was aborted has not come back. NULL: false. */
bool comm_is_working(const struct comm *);
bool comm_is_filling(const struct comm *); /* the same, of comm_fill alone */

/* ---- events ---- */

int comm_fd(const struct comm *); /* readable: comm_next may have something */
/* Goes on as the table says; true: *out is an event. To be called until it says false. */
bool comm_next(struct comm *, struct comm_event *out);
/* When comm_look wants to be called next, in ms from now; -1: not before something else happens. NULL: -1. */
int comm_patience_ms(const struct comm *);
/* The caller has got on with what other parts may wait for: they are told (coll_at_work), and comm_look finds that the
 * member moves. Nothing without a member that has joined; NULL is fine. */
void comm_at_work(struct comm *);
/* now: CLOCK_MONOTONIC, no earlier than before. COMM_LOOK_MOVES: the member has got on, of which *out says how far
 * (kind and status mean nothing); at most twice a second. COMM_LOOK_HANGS: a call of the old one has not come back in
 * COLL_ABORT_NS: this process is to end. Of the time between two looks one second counts at most, since a caller that
 * was busy or stopped has not seen what came back. NULL: COMM_LOOK_QUIET. */
enum comm_look comm_look(struct comm *, int64_t now, struct comm_event *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that control calls upwards. The edge implements them with the real world, tests with fakes.
 *
 * No port calls back into control before it has returned. `ctx` is the edge's.
 */
#ifndef GACC_CONTROL_PORTS_H
#define GACC_CONTROL_PORTS_H

#include "control/messages.h"
#include "engine/channel.h"

#include <stddef.h>

struct reply;
struct control_state;
struct ledger_cell;
struct status_rank;

/* What an engine's segments say at this moment: lent until the next event of the job. */
struct record_view {
	const struct control_state *state; /* NULL: it is not newer than what was asked for */
	const struct ledger_cell *ledger;  /* [ranks * max_micro_size] of the part */
	const struct status_rank *rank;	   /* [ranks] of the part */
};

/* Of a job on a node. */
struct job_ports {
	void *ctx;
	/* Answers a trainer's call; unknown (gone) calls are ignored. */
	void (*reply)(void *ctx, uint64_t call, const struct reply *);
	/* To the job's engine; false: it cannot take it now (down or full), control sends again after on_engine_up or
	 * tick. A MAILBOX goes with the descriptors that were made for this rank (job_on_mailbox). */
	bool (*engine_send)(void *ctx, uint64_t job, const struct engine_command *, const void *present);
	/* To the coordinator. */
	void (*report)(void *ctx, const struct report *);
	/* The same, for a job of several parts. NULL: there is only one, and it is not called. */
	void (*blob)(void *ctx, const struct part_blob *);
	/* The job needs memory and an engine now: answered by job_on_engine_up or job_on_allocate_failed. */
	void (*allocate)(void *ctx, uint64_t job);
	/* Something that an operator wants to read. `rank` -1: the job. */
	void (*event)(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text);
	/* Is the process that mapped a slot still alive? */
	bool (*process_alive)(void *ctx, int64_t pid, uint64_t start_time);
	/* 16 random bytes. */
	void (*random16)(void *ctx, uint8_t out[16]);
	/* The control record in force, if its seq is above this one; it is noted as told, so that no later engine goes
	 * on from an older one. false: there is no memory to read it, or nothing to read. Asked only where sessions
	 * have mailboxes, because the answers to their pushes do not come this way. */
	bool (*record)(void *ctx, uint64_t newer_than, struct record_view *out);
	/* The mailbox of this rank, by its index in the part, is over: its trainer is told to go on by RPC. */
	void (*mailbox_over)(void *ctx, uint32_t rank);
};

/* Of a coordinator. */
struct coord_ports {
	void *ctx;
	/* To the node of this part. */
	void (*order)(void *ctx, uint32_t part, const struct order *);
	/* The same, for a job of several parts whose engines form communicators. NULL: there is only one, and it is not
	 * called. */
	void (*board)(void *ctx, uint32_t part, const struct part_board *);
	/* Of a job of several parts. Asks for its exchange slots: true, it has them; false, it waits, and
	 * coord_on_exchange tells when to ask again. Gives them back, or does not want them any more. What it waits
	 * for, as exchanges.h says it. NULL, all three: there is no limit. */
	bool (*exchange_ask)(void *ctx, struct now);
	void (*exchange_give)(void *ctx, struct now);
	void (*exchange_waits)(void *ctx, char *text, size_t n, struct now);
	/* Makes a commit durable, guarded by the term; answered by coord_on_persisted. `counted` has n_words words. */
	void (*persist_commit)(void *ctx, const struct commit *, const uint64_t *counted, uint32_t n_words);
	/* Makes the end of the job durable; answered by coord_on_ended. */
	void (*persist_end)(void *ctx, uint64_t job, enum status, const char *reason);
	/* Makes durable that the job is paused, which it is already: nobody has asked for it. NULL: it is not. */
	void (*hold)(void *ctx, uint64_t job, const char *reason);
	void (*event)(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text);
	/* The engines have left the norms of all tensors of this window, which has this outcome (not durable yet).
	 * NULL: two attempts in a row that asked for them have failed, and those that follow do not. */
	void (*norms)(void *ctx, const struct commit *);
	/* The job's state as users see it has changed. */
	void (*changed)(void *ctx, uint64_t job);
	/* What to go back to, behind a reason: "; restore PATH (step N)" or "; there is no checkpoint". NULL: nothing
	 * is known of that. */
	void (*saved)(void *ctx, char *text, size_t n);
};

#endif

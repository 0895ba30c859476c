/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between coordinator and nodes about one job, and what the coordinator makes durable.
 *
 * Both messages carry state, not events: a report says where a node's window stands, an order says what the coordinator
 * wants of it. Each may be lost, repeated, delayed or overtaken; receivers ignore what is older by term, epoch, window
 * and attempt, and both sides repeat their message until the other's state shows that it has arrived. docs/protocol.md
 * has the tables.
 */
#ifndef GACC_CONTROL_MESSAGES_H
#define GACC_CONTROL_MESSAGES_H

#include "control/loss_scale.h"
#include "engine/channel.h"
#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coll_address;
struct engine_command;

/* Numbers are those of gacc.v1.StepOutcome. */
enum outcome { OUTCOME_NONE = 0, OUTCOME_APPLIED = 1, OUTCOME_SKIPPED = 2, OUTCOME_EMPTY = 3, OUTCOME_DROPPED = 4 };

/* Why a window was SKIPPED; numbers are those of gacc.v1.SkipReason. */
enum skip_reason { SKIP_NONE = 0, SKIP_NONFINITE = 1, SKIP_OUTLIER = 2 };

/* What has happened since the job's start: gacc.v1.Counters. */
struct counters {
	uint64_t applied, skipped_nonfinite, skipped_outlier, dropped, empty;
	uint64_t rejected_micros, partial;
};

/* Exponential moving average of the norms of applied steps: sum / weight. */
struct norm_mean {
	double sum, weight;
	uint32_t steps;	  /* applied */
	uint32_t refused; /* outliers since the last of them */
};

/* What later decisions build on besides their own window. It travels with the commits, so that a restart changes
 * nothing. */
struct carry {
	struct loss_scale scale;
	struct norm_mean norms;
	struct counters counters;
};

/* A durable decision: the record that makes a window's outcome a fact. */
struct commit {
	uint64_t job_id, epoch, window, term, attempt;
	uint64_t applied_step; /* after this window */
	uint32_t outcome;      /* enum outcome */
	uint32_t skip_reason;  /* enum skip_reason */
	uint32_t micro_size, next_micro_size;
	double scale, clip_value, lr; /* what the engines need */
	double loss_scale;	      /* of this window's gradients */
	double usual_norm;	      /* the mean that outlier_skip compares with; 0: none yet */
	double total_weight, divisor, grad_norm, mean_loss;
	uint64_t micro_count;
	uint32_t last_rank;
	uint32_t final; /* no window follows: `steps` reached, or all ranks have left */
	int64_t last_lag_ns, unix_nanos;
	/* of the window's time, averaged over ranks, that a rank had given all and waited; pauses left out */
	double wait_fraction;
	uint64_t digest;	/* of the reduced sum */
	uint64_t params_before; /* digest of the parameters that this window found: those after the window before */
	uint64_t params_digest; /* after the update; known once applied, durable in the next commit only */
	struct carry next;	/* next.scale is that of the next window */
};

/* The scalars of the COMMIT that an engine is sent for it. */
void commit_fill_command(const struct commit *, struct engine_command *);

/* One rank as its node sees it. Clocks of two machines cannot be compared, so times are given as ages: for so many ns
 * when the report was sent, at least 1. */
struct rank_progress {
	uint32_t rank; /* the job's number of it */
	uint32_t counted, voided;
	uint32_t first_void; /* lowest void micro-batch, if any */
	/* counted ones with non-finite values (nonfinite: skip_step), and the first of them; what was counted before
	 * gaccd's start is not in it */
	uint32_t nonfinite, first_nonfinite;
	uint8_t flushed;   /* enum rank_flushed */
	uint8_t attached;  /* has a live session */
	uint8_t lost;	   /* had one, and it broke */
	uint8_t known;	   /* has or had one, however that ended */
	uint8_t unwatched; /* it maps no memory and has no lifeline: nothing would tell its end */
	/* such a one, whose process cannot be looked at either, and which has not called for stall_warn */
	uint8_t silent;
	/* for how long it has waited for others (all given, or a push parked); 0: it computes */
	int64_t waiting_ns;
	int64_t lost_ns; /* for how long it has been lost; 0: it is not */
	int64_t pid;	 /* 0: not known */
	double weight;
	/* how long ago it had given all that it owes the report's window, which happens once in a window; 0: not yet */
	int64_t ready_ns;
	int64_t last_push_unix_ns;
};

/* How far a job's start has come on a node. */
enum start_phase {
	START_DECLARED = 0,  /* no tensor set, or no memory yet */
	START_ALLOCATED = 1, /* memory is there, the engine is up */
	START_PARAMS = 2     /* and the initial parameters are ready */
};

#define REPORT_TEXT 256 /* as order.end_reason */

/* From a node, about the part of a job that it has. */
struct report {
	uint64_t job_id, epoch, incarnation;
	uint32_t part;
	/* counts the reports of this incarnation about the part: a later one says more; 0: the sender does not count */
	uint64_t number;
	uint64_t term, order; /* of the newest order that was taken; 0: none */
	uint64_t window;
	uint32_t phase;	       /* enum window_phase */
	uint32_t start;	       /* enum start_phase */
	char start_waits[160]; /* before START_PARAMS: what the start waits for; later, of several parts: whom the step
				waits for that reads. For people */
	bool complete;	       /* no rank of the part owes anything (monotone within a window) */
	bool all_left;	       /* all ranks of the part have left for good */
	/* The part cannot go on for now, for this reason (its engine does not come up); "": it can. */
	char hindrance[REPORT_TEXT];
	/* It cannot go on at all: the job has to end with this status and this reason. ST_OK: nothing of that. */
	struct {
		enum status status;
		char text[REPORT_TEXT];
	} failed;
	/* of the exchange with the other parts that is under way; the attempt goes on while either grows */
	uint32_t connected; /* parts that it has reached */
	uint64_t pieces;    /* of the arena, sent or received */
	/* Of a job of several parts (coll/coll.h), 0 with one part: the life of the part's engine, 0 while there is
	 * none; and the communicator of the order's term that this life has joined and can use, 0: none. */
	uint64_t life, comm;
	bool ended; /* the node knows that the job has ended: it wants no more orders */
	/* the part votes for this attempt of the order's term by itself, once it is complete; 0: it does not */
	uint64_t armed;
	/* from CLOSED on */
	uint64_t count;
	double sum_weight, sum_loss;
	/* that this node's pushes gave the window; 0: the schedule's, or nothing is counted */
	double lr;
	uint32_t lr_rank; /* who did: the job's number */
	/* from PREPARED on: the vote */
	uint64_t vote_term, vote_attempt;
	enum status vote_status; /* ST_OK, or why the attempt failed here */
	char vote_text[160];	 /* ... as a sentence; "": the status says it all */
	uint64_t vote_suspects;	 /* ... and the parts that it failed by, as far as seen from here: bit i is part i */
	double sumsq;
	uint64_t nonfinite, digest;
	/* the engine has refused the COMMIT of this window: ST_NOT_READY: not yet, it is sent again; else for good.
	 * ST_OK: it has not */
	enum status refused;
	char refusal[160];
	/* of the window before; params_lost: its update has left values that are inf or NaN, and which, as a sentence;
	 * "": none */
	uint64_t params_digest;
	char params_lost[160];
	/* borrowed for the call */
	const struct rank_progress *rank;
	uint32_t n_ranks;
	/* from CLOSED on: max_micro_size bits for each rank of the part, in the part's numbering (control/part.h) */
	const uint64_t *counted;
	uint32_t n_words;
};

enum want { WANT_NOTHING = 0, WANT_CLOSE = 1, WANT_GO = 2, WANT_COMMIT = 3, WANT_END = 4 };

struct late_rank {
	uint32_t rank, counted, micro_size; /* rank: the job's number */
	int64_t pid, waiting_ns;
	bool attached, lost, known;
};

#define ORDER_MAX_LATE 16

/* To the node of one part; all parts get the same. A report of an epoch before this one is answered with it. */
struct order {
	uint64_t job_id, epoch, term, window;
	uint64_t uuid_high,
		uuid_low; /* of the job; between gaccds, which may have different jobs with an id. 0: not said */
	/* counts what this coordinator has wanted: repeated until a report says that it was taken */
	uint64_t number;
	enum want want;
	uint64_t attempt;     /* GO */
	bool norms;	      /* GO: the engine is to leave the norms of all tensors */
	struct commit commit; /* COMMIT */
	/* NOTHING: the part may vote for this attempt by itself, once it is complete; COMMIT: the same, of the window
	 * after; 0: not. For jobs of one part */
	uint64_t armed;
	/* For jobs of several parts. The communicator that the engines form and use, its k (struct coll_id); it is the
	 * number of the attempt that it was made for. 0: none, and whoever is in one leaves it. */
	uint64_t comm;
	uint32_t join_ms;	/* comm: the time that all of joining it may take */
	uint32_t fill_part;	/* the parts get their parameters from part fill_part - 1 over `comm`; 0: they do not */
	bool run;		/* all nodes have the parameters: trainers may push */
	enum status end_status; /* END: ST_OK completed, ST_CANCELLED, else failed */
	char end_reason[256];
	/* who is late, the first of them, for replies; borrowed for the call */
	const struct late_rank *late;
	uint32_t n_late; /* at most ORDER_MAX_LATE */
	bool paused;	 /* the window is not closed before the operator says so */
};

#define SAVE_MAX_PATH 4095 /* bytes, as of a path anywhere */

/* To the node of one part: its engine is to write the files of a checkpoint. Repeated until a part_saved answers it. */
struct save {
	uint64_t job_id, epoch;
	uint32_t part;
	uint64_t term, number; /* number: counts what this coordinator has asked for, from 1 */
	uint64_t window;       /* saved is what the part has while this is its window */
	bool inside_window;    /* with the sum so far, and who is in it */
	bool own_only;	       /* without what all parts have alike: part 0 saves that */
	bool states; /* with the trainers' own states of the part; of a job of one part that goes without saying */
	bool states_alone; /* they are all that the part saves: its engine has nothing to write */
	char path[SAVE_MAX_PATH + 1];
};

/* What became of it. */
struct part_saved {
	uint64_t job_id, epoch;
	uint32_t part;
	uint64_t term, number; /* of the save */
	bool passed;	       /* nothing was written: the part was in a later window already */
	/* ST_OK: the files are on the disk; ST_ENGINE_DOWN: their engine has died, or there is none; else why they are
	 * not */
	enum status status;
	char text[160];
	/* With ST_OK: the state that was saved, in the words of the engine's answer (engine/channel.h), but ranks are
	 * the job's. */
	uint64_t window, applied_step, params_digest, count;
	double loss_scale, sum_weight, sum_loss, window_lr;
	uint32_t micro_size, last_rank, lr_rank;
	struct engine_dir dir;
	struct engine_file file[ENGINE_FILES];
	/* the trainers' own states, which gaccd has written beside them (runtime/part_states.h) */
	struct engine_file states;
	uint32_t n_states; /* ranks that have one; 0: there is no such file */
};

/* From the node of one part: the address of its engine in a communicator. Repeated until a board of that communicator
 * comes. The bytes hold the key of its digests: they are never logged, shown or written anywhere. */
struct part_blob {
	uint64_t job_id, epoch;
	uint32_t part;
	uint64_t term, comm; /* as in the order that it answers */
	uint64_t life;	     /* of the engine, not 0 */
	const void *bytes;   /* borrowed for the call; 1 to COLL_MAX_BLOB of them */
	size_t n;
};

/* To the node of one part: the addresses of all. */
struct part_board {
	uint64_t job_id, epoch, term, comm;
	uint32_t n_parts;
	const struct coll_address *address; /* [n_parts], in part order; borrowed for the call */
};

/* Time is an argument everywhere. */
struct now {
	int64_t mono_ns; /* CLOCK_BOOTTIME */
	int64_t unix_ns;
};

#endif

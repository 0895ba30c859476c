/* SPDX-License-Identifier: Apache-2.0 */
/* A job as its trainers see it, with fakes for the rest: an engine that answers when it is told to, processes that live
 * or not. The state is that of the running test; setup makes it anew. */
#ifndef GACC_TESTS_SESSION_RIG_H
#define GACC_TESTS_SESSION_RIG_H

#include "control/job.h"

#define COUNTED 1
#define DUPLICATE 2
#define VOIDED 4
#define ANONYMOUS 99 /* calls of which only the number counts */

extern struct job_spec spec;
extern struct job *job;
/* the engine's, when it came up, and as it is read later; [ranks * max_micro_size], [ranks] */
extern struct control_state record;
extern struct ledger_cell *ledger;
extern struct status_rank *row;
extern const struct now now;
extern const struct job_ports session_ports;
extern struct session_key key; /* of rank 0, whose process is 42 */
/* what the job has said last */
extern struct engine_command sent[16];
extern int n_sent;
extern struct reply reply_to[16]; /* by call */
extern bool replied[16];
extern int n_anonymous;
extern char last_event[32];
extern struct report reported;	   /* the last one; without its arrays */
extern struct rank_progress shown; /* by it, rank 0 */
extern int n_reports;
extern int n_over; /* mailboxes, and the rank of the last one */
extern uint32_t over;
extern uint64_t asked; /* the record's number must be above this one */
/* what it is told */
extern bool alive;	    /* all processes */
extern int64_t dead_pid[2]; /* but these */
extern uint32_t unsendable; /* enum engine_op that the engine's socket has no room for; 0: none */
extern int looks;	    /* at processes */
extern uint32_t ranks;	    /* of the job that setup makes */
extern bool readable;	    /* the record */

/* A job with tensors, and nothing else. */
void setup_job(void);
/* A job that runs with parameters, in window 0, micro_size 4; rank 0 has attached. */
void setup(void);
/* The same, with a mailbox of rank 0 that the engine knows; nothing else has been sent. The second has two ranks. */
void setup_mailbox(void);
void setup_mailbox_of_two(void);
void teardown(void);
/* Commands of this kind since n_sent was 0. */
int count_sent(uint32_t op);
/* The engine's answer to the newest command, which must be this one. */
void answer(uint32_t op, uint32_t result);
/* Of rank 0. */
void push(uint64_t call, uint32_t micro, uint32_t slot);
/* The call has this answer. */
void expect(uint64_t call, enum status st, uint32_t result);

#endif

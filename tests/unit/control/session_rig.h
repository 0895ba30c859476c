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
extern struct control_state record; /* the engine's, when it came up */
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
extern struct rank_progress shown; /* by the last report */
/* what it is told */
extern bool alive;	    /* all processes */
extern int64_t dead_pid[2]; /* but these */
extern int looks;	    /* at processes */
extern uint32_t ranks;	    /* of the job that setup makes */

/* A job that runs with parameters, in window 0, micro_size 4; rank 0 has attached. */
void setup(void);
void teardown(void);
/* The engine's answer to the newest command, which must be this one. */
void answer(uint32_t op, uint32_t result);
/* Of rank 0. */
void push(uint64_t call, uint32_t micro, uint32_t slot);
/* The call has this answer. */
void expect(uint64_t call, enum status st, uint32_t result);

#endif

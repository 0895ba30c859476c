/* SPDX-License-Identifier: Apache-2.0 */
/* Part 1 of a job of two parts, with ranks 1 and 3 of 4, and an engine and a coordinator that say what the test says.
 * Its communicators are of term 2. The state is that of the running test; setup makes it anew. */
#ifndef GACC_TESTS_PART_COMM_RIG_H
#define GACC_TESTS_PART_COMM_RIG_H

#include "control/job.h"

#define MICRO_SIZE 2
#define CALLS 16
#define SECOND INT64_C(1000000000)
#define LIFE 77 /* of the engine that setup starts */

extern struct job_spec spec;
extern struct job *job;
extern struct now now;
extern struct control_state record; /* the engine's, when it comes up */
extern struct order order;	    /* the newest one */
/* what the job has said */
extern struct engine_command sent[64];
extern char sent_bytes[64][8]; /* behind each, as far as there is room */
extern int n_sent, n_reports, n_blobs;
extern struct reply reply_to[CALLS]; /* by call */
extern bool replied[CALLS];
extern struct report said; /* the last one; without its arrays */
extern struct part_blob blob;
extern char blob_bytes[64];
/* an op that the engine's socket has no room for once so many of it were sent; 0: none */
extern uint32_t unsendable;
extern int unsendable_from;

/* A part with tensors; `up`: its engine comes, with this life and `record`. */
void make_job(uint32_t part, enum optim_type);
void up(uint64_t life);
/* One that has parameters with digest 0xabc. */
void setup(void);
void teardown(void);
/* Of rank 1 or 3; replied[call]. */
struct session_key attach(uint32_t rank, uint64_t call);

/* `order`, with the next number; with this communicator (0: none); a GO of this attempt in it. */
void give_order(void);
void order_comm(uint64_t k);
void order_go(uint64_t attempt, uint64_t k);
/* Commands of this kind; the last command, which must be one; the last one of this kind. */
int count(uint32_t op);
const struct engine_command *last(uint32_t op);
const struct engine_command *newest(uint32_t op);
/* Its answer; and that of the newest one of this kind, given. */
struct engine_answer to(const struct engine_command *, enum status);
void answer(uint32_t op, enum status);
/* bytes "": there are none. */
void answer_join(enum status, const char *bytes);
void progress(uint64_t k, uint32_t news, uint32_t connected, uint64_t pieces);
/* With another part's address ("other", life 55), and this one's. */
void give_board(uint64_t term, uint64_t k, uint64_t own_life, const char *own);
/* From JOIN to all addresses; from the order until it has joined. */
void reach_given(uint64_t k);
void reach_joined(uint64_t k);
/* The last report says this of the attempt. */
void expect_vote(uint64_t attempt, enum status);

#endif

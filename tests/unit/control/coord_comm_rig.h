/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator of three parts, each with one rank and an engine of its own, message by message; the engines form
 * communicators. The state is that of the running test; setup makes it anew. */
#ifndef GACC_TESTS_COORD_COMM_RIG_H
#define GACC_TESTS_COORD_COMM_RIG_H

#include "control/coordinator.h"
#include "support/suite.h"

enum { D = 3 };
#define SECOND INT64_C(1000000000)
#define STALL (8 * SECOND)

/* What the next open_coord begins with. */
extern bool collectives, spec_restores, spec_inits;

/* The next open_coord begins with a limit of exchanges; whether slots are free; whether the job asks for them, and has
 * them; how often it has given them back. */
extern bool limited, slots_free, slots_wanted, slots_held;
extern unsigned n_slots_given;

/* There is no memory, which libcheck would need: nothing is checked. */
extern bool unchecked;

extern struct job_spec spec;
extern struct coord *coord;
extern struct now now;
/* what the nodes say next */
extern struct report node[D];
/* what the coordinator has said last */
extern struct order order[D];
extern struct part_board board;
extern uint64_t lives[D]; /* of the last board, and its bytes */
extern char bytes[D][40];
extern unsigned n_boards[D];
extern struct commit stored;
extern char last_event[32], last_text[400], end_reason[300];

void setup(void);
void teardown(void);
/* A coordinator of term 5, to which nobody has reported; another one, of this term, in place of it. */
void open_coord(void);
void reopen(uint64_t term);
unsigned boards_known(void);

void tell(uint32_t part);
void tick(int64_t after_ns);
/* The address of a part's engine, for the communicator of its newest order; it is said. */
struct part_blob blob(uint32_t part);
const char *blob_of(uint32_t part);
enum status say(uint32_t part);
void say_all(void);
/* The engine has joined the communicator of the order. */
void join(uint32_t part);
void join_all(void);
/* The parts have memory, and engines with the lives 100, 101 and 102, unless the test has set others; with open_coord.
 */
void start_all(void);
void form(void);
/* The part has parameters with this digest; 0: it has none. */
void params(uint32_t part, uint64_t digest);
/* The job runs, in communicator 1. */
void run(void);
/* An engine of another life has taken the place of this part's. */
void restart(uint32_t part);
/* All ranks give what they owe; all parts are frozen. */
void complete(void);
/* The same, but this part is not, and says what it waits for. */
void complete_but(uint32_t part, const char *waits);
void freeze(void);
/* The part votes for the attempt that is ordered, or has to be. */
void vote(uint32_t part);
void fail_vote(uint32_t part, uint64_t attempt, enum status, uint64_t suspects, const char *text);
void persisted(void);
/* All vote, and the journal has the outcome. */
void vote_all(void);
/* All have applied it. */
void apply(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Fake engines of three parts, which form communicators, fill parameters over them and sum, as far as their parts can
 * see. What no part may ask for ends the test. */
#ifndef GACC_TESTS_COMM_ENGINES_H
#define GACC_TESTS_COMM_ENGINES_H

#include "control/job.h"
#include "support/suite.h"

enum { D = 3 };
#define SECOND INT64_C(1000000000)

enum membership_of { OUT, OFFERED, JOINING, IN, BROKEN };

struct engine {
	bool up;
	uint64_t life, term, k, given[D];
	uint32_t n_given;
	enum membership_of is;
	int64_t up_ns, since_ns; /* when it comes up; since when it joins or is in an operation */
	int64_t stopped_ns;	 /* until then it does nothing */
	struct engine_command held[64];
	uint32_t n_held;
	struct engine_command go, fill;
	bool has_go, has_fill;
	struct control_state record; /* outlives it */
};

/* The test's: the parts, to which engines answer; all engines; the time. */
extern struct job *job[D];
extern struct engine engine[D];
extern struct now now;

void engine_take(uint32_t part, const struct engine_command *);
/* Does what has come while it was stopped, and gives up on a communicator in which nothing has moved for stall_ns. */
void engine_tick(uint32_t part, int64_t stall_ns);
/* This one is gone: those who wait for it in an operation notice at once, others with their next. */
void engine_broken(uint32_t part);

#endif

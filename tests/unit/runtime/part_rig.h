/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job on a real node, with a real engine process, for tests: its ports are answered here and what it says
 * is kept. There is no coordinator: tests are one, and build its orders.
 *
 * The engine is the test program itself with `--engine`, so main() begins with RIG_ENGINE. One thread; one rig in a
 * process.
 */
#ifndef GACC_TESTS_PART_RIG_H
#define GACC_TESTS_PART_RIG_H

#include "runtime/part.h"

#include <check.h>

enum { RIG_JOB = 7, RIG_RANKS = 2, RIG_MICROS = 2, RIG_ELEMENTS = 43, RIG_CALLS = 64, RIG_KEPT = 64 };

#define RIG_ENGINE(argc, argv)                                                                                         \
	do {                                                                                                           \
		if ((argc) == 2 && !strcmp((argv)[1], "--engine"))                                                     \
			return rig_engine();                                                                           \
	} while (0)
int rig_engine(void);

/* All that parts have said, newest values. */
struct said {
	uint32_t reports, events, placed, engine_up, n_saved, asked_fits, asked_keep;
	struct report report;
	struct rank_progress rank[RIG_RANKS];
	uint64_t counted;
	char event[64], event_text[320];
	enum status placed_status;
	char placed_why[320];
	uint64_t fits_bytes;
	struct part_saved saved;
	bool answered[RIG_CALLS];
	struct reply reply[RIG_CALLS];
};

/* How the ports answer. */
struct answers {
	enum status fits, keep; /* of the call */
	enum status kept;	/* what becomes of the tensor set later */
};

extern struct node node;
extern struct conf *conf; /* node's, which a test may change */
extern struct said said;
extern struct answers answers;
/* What the service manager of rig_open_managed keeps. */
extern struct fdstore_fd kept[RIG_KEPT];
extern int n_kept, n_ever_kept;

/* It reads nothing any more, or again. */
void rig_manager_stops(bool yes);

/* Fixtures: a node whose gaccd has no service manager; one that has. */
void rig_open(void);
void rig_open_managed(void);
void rig_close(void); /* all parts are freed */

struct Gacc__V1__JobSpec;
/* From here on, specifications are changed by this before parts get them; NULL: not. */
void rig_change_spec(void (*change)(struct Gacc__V1__JobSpec *));
/* A published part that has its tensors; nothing has begun. */
struct part *rig_part(uint64_t job);
/* The same without tensors. */
struct part *rig_bare_part(uint64_t job);
/* A part of a job that an earlier gaccd has begun: the same, over the descriptors that the manager keeps. */
struct part *rig_adopting_part(uint64_t job);
/* The earlier gaccd is gone: its parts are freed, their engines have ended, and its successor finds what was kept. */
void rig_restart(void);
/* Such a part, begun, with its parameters drawn and both ranks attached; trainers may push. */
struct part *rig_running_part(void);
/* The same for a part whose memory is on its way. */
void rig_run_part(struct part *);

/* One turn of the loop, with ticks of all parts. */
void rig_turn(void);
void rig_wait_begins(const char *what);
#define UNTIL(condition)                                                                                               \
	do {                                                                                                           \
		rig_wait_begins(#condition);                                                                           \
		while (!(condition))                                                                                   \
			rig_turn();                                                                                    \
	} while (0)

/* ---- trainers; each returns the call's number ---- */
void rig_attach(struct part *, uint32_t rank); /* waits for the answer; with its slots mapped */
/* Gives all initial parameters, each `value`. */
uint64_t rig_put(struct part *, uint32_t rank, float value);
/* All elements of the gradient are `value`; the weight is 1. */
uint64_t rig_push(struct part *, uint32_t rank, uint32_t micro, float value);
uint64_t rig_wait_step(struct part *, uint32_t rank, uint64_t window);
/* Each micro-batch of the open window that is not counted yet, with the values 1, 2, 3, 4; until all are counted. */
void rig_push_all(struct part *);

/* ---- the coordinator ---- */
struct order rig_order(const struct part *, enum want);
/* An applied step of lr 0.5 over the mean of four micro-batches. */
struct order rig_commit(const struct part *, uint64_t window);
/* GO until the vote is there. */
void rig_go(struct part *);

/* ---- part_manager.c, for part_rig.c ---- */
void rig_manager_open(void);   /* before the node's descriptor store */
void rig_manager_listen(void); /* on the node's loop; nothing where none is open */
void rig_manager_close(void);  /* with what it keeps */

/* ---- looking ---- */
/* Of the parameters: all elements of all tensors have this value. */
void rig_expect_params(struct part *, float value);
/* The engine's process; 0: there is none. */
int64_t rig_engine_pid(const struct part *);

#endif

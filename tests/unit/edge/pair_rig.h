/* SPDX-License-Identifier: Apache-2.0 */
/* Two gaccds in one process, for unit tests: the rig's daemon `d` coordinates jobs and has no part of them, `other` has
 * the parts and coordinates nothing. What they tell each other are the messages of their links, which are carried from
 * one to the other. The engine is real: the test program itself with `--engine`, so main() begins with PAIR_ENGINE. One
 * thread.
 */
#ifndef GACC_TESTS_EDGE_PAIR_RIG_H
#define GACC_TESTS_EDGE_PAIR_RIG_H

#include "cluster/placed_message.h"
#include "cluster/link.h"
#include "edge_rig.h"

#include <check.h>
#include <string.h>
#include <time.h>

enum { JOB = 7, RANKS = 2, CALLS = 64, PATIENCE_S = 20 };

#define PAIR_ENGINE(argc, argv)                                                                                        \
	do {                                                                                                           \
		if ((argc) == 2 && !strcmp((argv)[1], "--engine"))                                                     \
			return pair_engine();                                                                          \
	} while (0)
int pair_engine(void);

extern struct daemon other; /* the node */
extern struct hosted *job;  /* at the coordinator: JOB, unless a test makes another */
struct pair_seen {
	uint32_t calls;
	bool answered[CALLS];
	struct reply reply[CALLS];
	struct placed placed;	 /* the node's last answer */
	struct part_saved saved; /* what became of the last checkpoint there */
	uint32_t n[LINK_KINDS];	 /* messages of each kind */
	bool lost[LINK_KINDS];	 /* those of this kind do not arrive */
	bool lost_part[2];	 /* those about this part do not */
};
extern struct pair_seen seen;

/* A fixture. */
void pair_open(void);
void pair_close(void);
/* The node ends as if by SIGKILL, but for what is on its way to its journal. `k`: what the service manager has of it
 * then, which a test may change. */
enum { PAIR_KEPT = 256 };
struct pair_kept {
	struct fdstore_fd fd[PAIR_KEPT];
	size_t n;
};
void pair_stop(struct pair_kept *k);
/* It starts with what is left in its journal and with these descriptors, which are taken. */
void pair_start(const struct pair_kept *);
void pair_restart(void);
/* Descriptors that the manager has given it and that nobody has taken. */
size_t pair_left(void);
/* One turn of both loops, with their ticks; fails behind `end`. */
void pair_turn(time_t end, const char *what);
#define UNTIL(condition)                                                                                               \
	do {                                                                                                           \
		time_t end = time(NULL) + PATIENCE_S;                                                                  \
		while (!(condition))                                                                                   \
			pair_turn(end, #condition);                                                                    \
	} while (0)
/* The part of `job` at the node, or NULL. */
struct part *there(void);

/* ---- trainers of the node; they wait for their answers, which must be good ---- */
struct session_key pair_attach(uint32_t rank);
void pair_push(const struct session_key *, uint32_t micro, float value);
/* Does not wait for anything; returns the call's number. */
uint64_t pair_push_in(const struct session_key *, uint64_t window, uint32_t micro, float value);

#endif

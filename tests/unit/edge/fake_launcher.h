/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher that the test plays, in place of launch/proc.c: it notes the orders that it gets, and says what the test
 * says. There is one at a time; no process is started. One thread.
 */
#ifndef GACC_TESTS_EDGE_FAKE_LAUNCHER_H
#define GACC_TESTS_EDGE_FAKE_LAUNCHER_H

#include "launch/proc.h"

struct Gacc__V1__JobSpec;

#define FAKE_ORDERS 16
#define FAKE_WORDS 512
#define FAKE_PID 4321

struct fake_launcher {
	/* what the test says */
	bool lives;   /* one of an earlier gaccd is found */
	bool refuses; /* none can be reached, and none be started */
	bool full;    /* takes no orders now */
	/* what has come */
	uint32_t found, started;
	char uuid[64]; /* by which it was looked for last */
	uint32_t n_orders;
	struct launch_order order[FAKE_ORDERS]; /* the newest is last */
	char words[FAKE_WORDS];			/* behind the newest; each ends with a '|' */
	bool open;				/* somebody is connected */
};

extern struct fake_launcher fake;

void fake_launcher_reset(void);
/* To whoever is connected. The cause, if there is one, is of this rank. */
void fake_says(const struct launch_summary *);
void fake_says_phase(enum launch_phase);
void fake_says_rank(uint32_t rank, enum launch_rank_state, int64_t pid, int32_t exit_status, uint32_t restarts);
/* Its end. */
void fake_dies(void);
/* The newest order; what it was. */
const struct launch_order *fake_order(void);
/* The file that a launcher leaves behind when it dies before its end is there, or is not. */
void fake_traces(const char *runtime_dir, uint64_t job, const char *uuid, bool there);

/* Makes a specification one whose ranks gaccd launches: "train now" with A=b in the folder /tmp, logs in /tmp/logs,
 * grace of 700 ms, 5 restarts. */
void with_launch(struct Gacc__V1__JobSpec *);

#endif

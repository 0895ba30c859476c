/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between gaccd and a job's launcher, over a SOCK_SEQPACKET socket at
 * <runtime_dir>/launch-<job>.<uuid>.sock; one packet is one message (base/packet.h).
 *
 * Messages are plain structs, because both ends are one binary; but a launcher outlives gaccd and may meet a newer one,
 * so every message begins with a version. The launcher sends state, not events: after a connect all its ranks and the
 * summary, then every change. Orders are idempotent.
 */
#ifndef GACC_LAUNCH_CHANNEL_H
#define GACC_LAUNCH_CHANNEL_H

#include "control/launch.h"
#include "control/spec.h"

#define LAUNCH_CHANNEL_VERSION 3
#define LAUNCH_LISTEN_FD 3   /* the listening socket, inherited */
#define LAUNCH_MAX_TAIL 8192 /* bytes of a log's end */
#define LAUNCH_TAIL_LINES 20
#define LAUNCH_MAX_WORDS (SPEC_MAX_LAUNCH_BYTES + 16384) /* bytes behind an order */

/* Among the environment of a START: ranks get no RANK, MASTER_ADDR and the like. They see this one. */
#define LAUNCH_NO_TORCH "GACC_TORCH_ENV=0"

enum launch_op {
	LAUNCH_OP_START = 1, /* all ranks, unless they have been started; strings behind */
	LAUNCH_OP_DRAIN,     /* the job is complete: exit when the ranks have ended by themselves */
	LAUNCH_OP_LOGS,	     /* how long logs may get: log_max */
	LAUNCH_OP_END,	     /* SIGTERM, grace, SIGKILL to what is left, then exit */
	LAUNCH_OP_ALLOW	     /* how many restarts are allowed: max_restarts, final */
};

/* Behind a START, each ended by a NUL: endpoint, working directory, log directory, address at which the job's ranks
 * meet, the words of the command, NAME=value of the environment. The launcher has ranks `first` to `first` + n_ranks -
 * 1 of the job's `world`; in words about ranks they are counted from 0. */
struct launch_order {
	uint32_t version, op;
	uint64_t job_id;
	uint32_t n_ranks, max_restarts, micro_size;
	uint32_t final; /* no more than max_restarts will be allowed later */
	uint32_t first, world;
	uint32_t group, n_groups; /* START: which of the job's nodes this is */
	uint32_t master_port;	  /* START: where ranks meet; 0: one that is free here */
	uint32_t uid;		  /* whose the ranks are to be */
	uint32_t change_user;	  /* 0: the launcher already runs as this user */
	uint32_t n_command, n_environment;
	uint32_t fresh;			/* nothing of the job has run yet: what is in its logs is another job's */
	uint64_t log_max;		/* START, LOGS: bytes that a rank's log may have; launch/logs.h */
	int64_t grace_ns;		/* START: of stops that the launcher decides on; END: of this one */
	uint32_t log_level, log_format; /* base/log.h */
};

enum launch_word_kind { LAUNCH_WORD_RANK = 1, LAUNCH_WORD_SUMMARY };

struct launch_word {
	uint32_t version, kind;
	int64_t pid; /* the launcher's */
	uint32_t rank;
	uint32_t n_tail; /* SUMMARY: bytes of text behind: what the cause's rank wrote last */
	union {
		struct launch_rank state;
		struct launch_summary summary;
	};
};

#endif

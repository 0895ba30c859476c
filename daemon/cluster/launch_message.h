/* SPDX-License-Identifier: Apache-2.0 */
/* What a coordinator wants of the ranks that the gaccd of a node launches, and how they are, as messages of
 * gacc/internal/v1/cluster.proto. Any thread; no state.
 *
 * Both are state: each may be lost or repeated, and the receiver ignores what is older.
 */
#ifndef GACC_CLUSTER_LAUNCH_MESSAGE_H
#define GACC_CLUSTER_LAUNCH_MESSAGE_H

#include "control/launch.h"

#define LAUNCHED_MAX_TAIL 8192
#define LAUNCHED_FAILURE 200
#define LAUNCH_ADDRESS 48 /* bytes of an IP address as text, with its end */

enum launch_want { LAUNCH_WANT_NOTHING = 1, LAUNCH_WANT_RUN, LAUNCH_WANT_DRAIN, LAUNCH_WANT_END };

/* What a node's ranks are to do. */
struct launch_wish {
	enum launch_want want;
	int64_t grace_ns; /* of an end, where an operator has said it; 0: the specification's */
	uint32_t allowed; /* restarts of this node's ranks */
	bool final;	  /* no more will be allowed */
	bool fresh;	  /* nothing of the job has run yet */
	uint32_t first, n_ranks;
	uint32_t group, n_groups;	  /* which of the job's nodes this is */
	uint32_t master_port;		  /* 0: chosen there */
	char master_addr[LAUNCH_ADDRESS]; /* where the job's ranks meet */
};

struct launch_wanted {
	uint64_t job_id, epoch, term, number;
	uint8_t uuid[16]; /* of the job */
	uint32_t part;	  /* the job's first one on that node */
	struct launch_wish wish;
};

/* Of the ranks `first` to first + n_ranks - 1 of a job. The cause's rank is the job's number. */
struct launched {
	uint64_t job_id, epoch, incarnation;
	uint64_t number;      /* of this incarnation, from 1 */
	uint64_t term, order; /* of the newest order that was taken */
	uint32_t part, first, n_ranks;
	bool over; /* nothing is left to do */
	int64_t launcher_pid;
	struct launch_summary summary;
	const struct launch_rank *rank; /* due_ns is not told */
	const char *tail;
	uint32_t n_tail;
	char failure[LAUNCHED_FAILURE]; /* why they cannot be launched at all; "": they can */
};

/* For free(); NULL: no memory. */
void *launch_wanted_pack(const struct launch_wanted *, size_t *out_n);
/* Of a job with so many ranks. ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is
 * written only with ST_OK. */
enum status launch_wanted_unpack(const void *bytes, size_t n, uint32_t ranks, struct launch_wanted *out, char *why,
				 size_t n_why);

/* For free(); NULL: no memory. */
void *launched_pack(const struct launched *, size_t *out_n);
/* The same, of a job that allows so many restarts in all; with ST_OK `rank`, which has the tail behind it, is for
 * free(). */
enum status launched_unpack(const void *bytes, size_t n, uint32_t ranks, uint32_t max_restarts, struct launched *out,
			    char *why, size_t n_why);

#endif

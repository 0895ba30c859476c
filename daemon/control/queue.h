/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: which job may have memory now, and in which order the others wait. Pure; any thread.
 *
 * The caller lists all jobs that have not ended, oldest first. A job is refused for ever when it alone is over a limit;
 * a job that may not wait (its ranks are started by others) is refused when it does not fit now; the rest wait in fair
 * order: jobs that were overtaken too often, then those of the user with the least memory in use, then the order of
 * submission.
 *
 * Overtaking is bounded: a start that passes the oldest waiting job of a user is noted there, and once
 * QUEUE_MAX_OVERTAKES are, nothing starts before that job. A job that its own user's limits hold back is passed by
 * others without being overtaken.
 */
#ifndef GACC_CONTROL_QUEUE_H
#define GACC_CONTROL_QUEUE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUEUE_MAX_OVERTAKES 8
/* of gaccd: journal, sockets, threads', callers that are no ranks */
#define QUEUE_OWN_DESCRIPTORS 128
#define QUEUE_OWN_MAPPINGS 2048 /* of each process of ours: libraries, heaps, stacks of threads */
#define QUEUE_NONE UINT32_MAX
#define QUEUE_WHY 384
/* is in the words about a job that is over a limit alone */
#define QUEUE_NEVER "can never run here"

struct queue_limits {
	uint64_t host_memory;	       /* bytes, all jobs together */
	uint64_t host_memory_per_user; /* bytes; 0: no limit of its own */
	/* of all GPUs of the node, all jobs together and those of a user; 0: no limit but what the GPUs have */
	uint64_t device_memory, device_memory_per_user;
	/* bytes that the machine could give now, beside what `need` of running jobs already has */
	uint64_t available;
	uint64_t descriptors; /* that gaccd may have for jobs: RLIMIT_NOFILE less QUEUE_OWN_DESCRIPTORS */
	uint64_t stored;      /* that the service manager keeps; UINT64_MAX: nobody says how many */
	/* segments that gaccd or an engine may map: vm.max_map_count less QUEUE_OWN_MAPPINGS */
	uint64_t mapped;
	uint32_t jobs, jobs_per_user; /* that run */
	uint32_t queued_per_user;     /* that wait */
};

struct queue_job {
	uint64_t id;
	uint32_t uid;
	const char *user;      /* borrowed */
	uint64_t bytes;	       /* waiting: needed; else in use or reserved */
	uint64_t device_bytes; /* the same on a GPU; a job that waits has none, as its tensors are not known */
	uint64_t descriptors;  /* of gaccd: its segments', its ranks' connections */
	uint64_t stored;       /* of these, its segments': with the service manager, and mapped */
	bool waiting;
	bool ended;   /* its memory is not given back yet: that counts, the job does not */
	bool leaving; /* over, but ranks that gaccd has launched live on: it counts as one that runs */
	uint32_t overtaken;
	/* by queue_judge */
	uint64_t user_bytes; /* that its user has in use */
	bool held;	     /* its user's own limits do not let it run now */
};

struct queue_verdict {
	enum status status; /* ST_OK, or RESOURCE_EXHAUSTED */
	bool wait;	    /* it is to be queued */
	char why[QUEUE_WHY];
};

/* Fills in what the functions below look at: first, and after each change. */
void queue_judge(const struct queue_limits *, struct queue_job *job, size_t n);
/* May this new job come in? `may_wait`: it can be queued; else it starts at once, and whom it overtakes is noted. */
void queue_submit(const struct queue_limits *, struct queue_job *job, size_t n, const struct queue_job *candidate,
		  bool may_wait, struct queue_verdict *out);
/* May a job that runs have this much, now that its tensors are known? `job`: the others. Memory alone is asked for, of
 * the host and of GPUs: the rest was known when it came in. */
void queue_fits(const struct queue_limits *, const struct queue_job *job, size_t n, const struct queue_job *candidate,
		struct queue_verdict *out);
/* The index of the waiting job that is to start now, or QUEUE_NONE; notes whom it overtakes. The caller marks it as no
 * longer waiting, judges and asks again. */
uint32_t queue_next(const struct queue_limits *, struct queue_job *job, size_t n);
/* Place of a waiting job in the fair order, from 1, and why it waits: "needs 3.0 GiB, 1.2 GiB free; 2 jobs before
 * it". */
uint32_t queue_explain(const struct queue_limits *, const struct queue_job *job, size_t n, size_t index, char *why,
		       size_t n_why);
/* "3.0 GiB". */
void queue_bytes(uint64_t bytes, char out[24]);

#endif

/* gacc for those who run jobs: submit, look, cancel, and the state of the node. gaccctl uses this and nothing else.
 *
 * All calls may be made from any thread; each lasts at most the client's timeout (gacc_set_timeout) and fails at once when the
 * daemon is not there. gacc_failure tells a failure's parts.
 *
 * What a call returns is one block that is freed as a whole; strings in it live as long, and are never NULL. Each message also
 * comes as JSON with the field names of proto/gacc/v1: enum values without their prefix, times (fields that end in
 * _unix_nanos) as RFC 3339 strings with the ending replaced by _time, digests and other bytes in hexadecimal, all other
 * integers as numbers, fields at their default included.
 */
#ifndef GACC_GACC_ADMIN_H
#define GACC_GACC_ADMIN_H

#include "gacc/gacc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gacc_failure_info {
	gacc_status status;
	const char *reason;   /* stable name, "JOB_NOT_FOUND" */
	const char *message;
	const char *hint;     /* what to do next, or "" */
} gacc_failure_info;

/* Parts of the last failure on this client; valid until the next call on it. */
GACC_API gacc_failure_info gacc_failure(const gacc_client *);
/* Of every call in this header; 10 s unless set. */
GACC_API void gacc_set_timeout(gacc_client *, int timeout_ms);

/* --- job specifications */

typedef struct gacc_spec gacc_spec;

/* From YAML (or JSON) text; `name` is what errors call it. GACC_EINVAL: why[n] has FILE:LINE:COLUMN, what, and the nearest valid
 * key. text NULL: all defaults. */
GACC_API gacc_status gacc_spec_parse(const char *text, const char *name, gacc_spec **out, char *why, size_t n);
/* Overrides one key, "optimizer.lr", as the command line does. */
GACC_API gacc_status gacc_spec_set(gacc_spec *, const char *key, const char *value, char *why, size_t n);
/* The whole specification as JSON; valid until the next call on the spec, NULL without memory. */
GACC_API const char *gacc_spec_json(gacc_spec *);
GACC_API void gacc_spec_free(gacc_spec *);

/* --- jobs */

typedef enum gacc_job_state {
	GACC_JOB_PENDING = 1,
	GACC_JOB_STARTING = 2,
	GACC_JOB_RUNNING = 3,
	GACC_JOB_STALLED = 4,
	GACC_JOB_PAUSED = 5,
	GACC_JOB_COMPLETING = 6,
	GACC_JOB_COMPLETED = 7,
	GACC_JOB_FAILED = 8,
	GACC_JOB_CANCELLED = 9,
	GACC_JOB_NODE_FAIL = 10
} gacc_job_state;

typedef struct gacc_rank_info {
	uint32_t rank;
	const char *node;
	int64_t pid;                  /* 0: not attached */
	const char *state;            /* "COMPUTING", "LATE", ... */
	uint32_t micro_count, void_count;
	int flushed;
	double weight;
	int64_t last_push_unix_nanos; /* 0: none yet */
	int64_t late_ns;
	const char *detail;
} gacc_rank_info;

typedef struct gacc_job_event {
	int64_t unix_nanos;
	int warning;
	const char *reason;           /* CamelCase, stable */
	const char *object;           /* "job", "rank 3", "engine" */
	const char *message;
	uint64_t window;
} gacc_job_event;

typedef struct gacc_job_info {
	uint64_t id;
	const char *uuid, *name;
	gacc_job_state state;
	const char *state_name;       /* "RUNNING" */
	int ended;
	const char *reason;           /* why it is in this state */
	uint64_t window, applied_step, steps; /* steps 0: until all ranks detach */
	uint32_t ranks, micro_size;
	uint64_t batch;               /* samples in a micro-batch, 0: unknown */
	const char *log_dir;          /* %j and %x replaced; "": none */
	const char *optimizer, *reduction; /* "ADAMW", "WEIGHTED_MEAN" */
	const gacc_rank_info *rank;   /* n_rank of them, by rank */
	size_t n_rank;
	const uint32_t *missing;      /* the open window waits for these */
	size_t n_missing;
	const gacc_job_event *event;  /* newest last; gacc_job_get only */
	size_t n_event;
	int64_t created_unix_nanos, state_since_unix_nanos, window_opened_unix_nanos, ended_unix_nanos;
	const char *user;
	int has_last;                 /* a window has closed: last_* hold */
	const char *last_outcome;
	double last_loss, last_grad_norm, last_lr, last_weight;
	uint32_t last_rank;
	int64_t last_lag_ns;
	uint64_t tensors, parameters, host_bytes;
	double steps_per_second, wait_fraction;
	uint64_t stall_abort_ms;
	int64_t engine_pid;
	uint32_t engine_restarts;
	const char *json;
} gacc_job_info;

typedef struct gacc_jobs {
	size_t n;
	const gacc_job_info *job;
} gacc_jobs;

GACC_API void gacc_jobs_free(gacc_jobs *);

/* On success *out is one job (gacc_job_list: any number). `job` is an id or a name. */
GACC_API gacc_status gacc_job_submit(gacc_client *, const gacc_spec *, gacc_jobs **out);
GACC_API gacc_status gacc_job_get(gacc_client *, const char *job, gacc_jobs **out);
GACC_API gacc_status gacc_job_list(gacc_client *, int ended_too, gacc_jobs **out);
GACC_API gacc_status gacc_job_cancel(gacc_client *, const char *job, const char *reason, gacc_jobs **out);
/* Closes the open window with what is counted in it. */
GACC_API gacc_status gacc_job_flush(gacc_client *, const char *job, uint64_t *out_window);

/* A job as it changes. A thread of the library reads it, over restarts of the daemon; states in between may be skipped, the
 * last one is not. */
typedef struct gacc_watch gacc_watch;
GACC_API gacc_status gacc_job_watch(gacc_client *, const char *job, gacc_watch **out);
/* For poll(): readable when gacc_watch_next has something. */
GACC_API int gacc_watch_fd(const gacc_watch *);
/* The newest state. GACC_EAGAIN: nothing new; GACC_EDONE: the job has ended and all was told; else why it cannot go on. */
GACC_API gacc_status gacc_watch_next(gacc_watch *, gacc_jobs **out);
GACC_API void gacc_watch_close(gacc_watch *);

/* --- the node */

typedef struct gacc_node_info {
	const char *name, *version, *kernels;
	int64_t pid, started_unix_nanos;
	uint64_t incarnation, term;
	uint32_t protocol, jobs, cpus;
	uint64_t host_bytes_used, host_bytes_limit;
	int draining;
	int64_t round_trip_ns;        /* of this call */
	const char *json;
} gacc_node_info;

GACC_API gacc_status gacc_node_get(gacc_client *, gacc_node_info **out);
GACC_API void gacc_node_free(gacc_node_info *);

#ifdef __cplusplus
}
#endif
#endif

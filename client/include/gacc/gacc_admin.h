/* SPDX-License-Identifier: Apache-2.0 */
/* gacc for operators of jobs: submit, look, cancel, and the state of the node. gaccctl uses this and nothing else.
 *
 * All calls may be made from any thread; each lasts at most the client's timeout (gacc_set_timeout) and fails at once
 * when the daemon is not there, but for gacc_job_wait, which has its own timeout and waits for the daemon, too.
 * gacc_failure tells a failure's parts; threads that call at the same time have a client each, or do not ask it.
 * GACC_ENOSYS: this gaccd is older and has no such call.
 *
 * What a call returns is one block that is freed as a whole; strings in it live as long, and are never NULL. Each
 * message also comes as JSON with the field names of proto/gacc/v1: enum values without their prefix, times (fields
 * that end in _unix_nanos) as RFC 3339 strings with the ending replaced by _time, digests, data keys and other bytes in
 * hexadecimal, all other integers as numbers (from 2^63 on, which many readers cannot hold, as decimal strings), fields
 * at their default included.
 */
#ifndef GACC_GACC_ADMIN_H
#define GACC_GACC_ADMIN_H

#include "gacc/gacc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gacc_failure_info {
	gacc_status status;
	const char *reason; /* stable name, "JOB_NOT_FOUND" */
	const char *message;
	const char *hint; /* what to do next, or "" */
} gacc_failure_info;

/* Parts of the last failure on this client; valid until the next call on it. */
GACC_API gacc_failure_info gacc_failure(const gacc_client *);
/* Of every call in this header that has none of its own; 10 s unless set. */
GACC_API void gacc_set_timeout(gacc_client *, int timeout_ms);

/* ---- job specifications ---- */

typedef struct gacc_spec gacc_spec;

/* From YAML (or JSON) text; `name` is what errors call it. GACC_EINVAL: why[n] has FILE:LINE:COLUMN, what, and the
 * nearest valid key. text NULL: all defaults. */
GACC_API gacc_status gacc_spec_parse(const char *text, const char *name, gacc_spec **out, char *why, size_t n);
/* Overrides one key, "optimizer.lr", as the command line does. */
GACC_API gacc_status gacc_spec_set(gacc_spec *, const char *key, const char *value, char *why, size_t n);
/* From the text of a checkpoint's manifest.json: of the job that was saved, without its tensors, which are the
 * checkpoint's. GACC_EINVAL as above. */
GACC_API gacc_status gacc_spec_of_manifest(const char *text, const char *name, gacc_spec **out, char *why, size_t n);
/* The whole specification as JSON; valid until the next call on the spec, NULL without memory. */
GACC_API const char *gacc_spec_json(gacc_spec *);
GACC_API void gacc_spec_free(gacc_spec *);
/* A JSON Schema (draft 2020-12) of job files, malloc'ed; NULL without memory. */
GACC_API char *gacc_spec_schema(void);

/* ---- jobs ---- */

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
	int64_t pid;	   /* 0: not attached */
	const char *state; /* "COMPUTING", "LATE", ... */
	uint32_t micro_count, void_count;
	int flushed;
	double weight;
	int64_t last_push_unix_nanos; /* 0: none yet */
	int64_t late_ns;
	const char *detail;
	int exit_status;   /* of its last process that gaccd started: exit code, or 128 + signal; -1: none */
	uint32_t restarts; /* how often gaccd started it again */
} gacc_rank_info;

typedef struct gacc_job_event {
	int64_t unix_nanos;
	int warning;
	const char *reason; /* CamelCase, stable */
	const char *object; /* "job", "rank 3", "engine" */
	const char *message;
	uint64_t window;
	uint64_t id;  /* ascending on a node, over restarts; 0: not numbered */
	uint64_t job; /* 0: the node's, or the job that was asked for */
	const char *json;
} gacc_job_event;

/* The first rank that failed on its own; later ones are often its consequences. */
typedef struct gacc_root_cause {
	uint32_t rank;
	int64_t pid;
	int exit_status; /* exit code, or 128 + signal */
	int64_t unix_nanos;
	const char *message;	     /* one sentence */
	const char *const *log_line; /* n_log_line of them: the last of its log */
	size_t n_log_line;
} gacc_root_cause;

/* What has happened in a job since its start. */
typedef struct gacc_counters {
	uint64_t applied, skipped_nonfinite, skipped_outlier, dropped, empty;
	uint64_t rejected_micros; /* void micro-batches */
	uint64_t partial;	  /* steps with fewer than ranks * micro_size micro-batches */
} gacc_counters;

/* Values that may change while a job runs. NULL and 0: stays as it is. */
typedef struct gacc_job_values {
	size_t struct_size;
	uint32_t micro_size;
	const double *lr;		      /* the optimizer's base rate; the schedule goes on */
	const double *clip_norm, *clip_value; /* to 0: off */
} gacc_job_values;

/* An update that was accepted and is not yet in force. */
typedef struct gacc_pending_update {
	uint64_t window; /* the first window it holds for */
	gacc_job_values values;
} gacc_pending_update;

/* A part of a job: an engine with a block of the ranks. */
typedef struct gacc_part_info {
	uint32_t number, first_rank, ranks;
	const char *node;   /* where it is; "": gaccd is older than this */
	int64_t engine_pid; /* 0: none runs */
	uint32_t engine_restarts;
	uint64_t host_bytes;
	uint64_t communicator; /* that the engine has joined; 0: none */
} gacc_part_info;

/* What a rank has logged under a name. */
typedef struct gacc_scalar {
	const char *name;
	double value;
	uint32_t rank;
	uint64_t window;
} gacc_scalar;

typedef struct gacc_job_info {
	uint64_t id;
	const char *uuid, *name;
	gacc_job_state state;
	const char *state_name; /* "RUNNING" */
	int ended;
	const char *reason;		      /* why it is in this state */
	uint64_t window, applied_step, steps; /* steps 0: until all ranks detach */
	uint32_t ranks, micro_size;
	uint64_t batch;			   /* samples in a micro-batch, 0: unknown */
	const char *log_dir;		   /* %j and %x replaced; "": none */
	const char *optimizer, *reduction; /* "ADAMW", "WEIGHTED_MEAN" */
	const char *launch;		   /* who starts the ranks: "EXTERNAL", "CLIENT", "DAEMON" */
	const gacc_rank_info *rank;	   /* n_rank of them, by rank */
	size_t n_rank;
	const uint32_t *missing; /* the open window waits for these */
	size_t n_missing;
	const gacc_job_event *event; /* newest last; gacc_job_get only */
	size_t n_event;
	int64_t created_unix_nanos, state_since_unix_nanos, window_opened_unix_nanos, ended_unix_nanos;
	const char *user;
	int has_last; /* a window has closed: last_* hold */
	const char *last_outcome;
	double last_loss, last_grad_norm, last_lr, last_weight;
	uint32_t last_rank;
	int64_t last_lag_ns;
	uint64_t tensors, parameters, host_bytes;
	double steps_per_second, wait_fraction;
	uint64_t stall_abort_ms;
	int64_t engine_pid;
	uint32_t engine_restarts;
	gacc_counters counters;
	double loss_scale;		   /* of the open window; 0 or 1: none */
	uint32_t queue_position;	   /* 1: next; 0: not queued */
	int64_t launcher_pid;		   /* 0: none */
	const gacc_root_cause *root_cause; /* NULL: no rank that gaccd started has failed */
	const gacc_pending_update *update; /* n_update of them */
	size_t n_update;
	const char *json;
	const gacc_part_info *part; /* n_part of them; 0: one part, on the node that has answered */
	size_t n_part;
	const char *const *node; /* n_node of them: where its parts are; 0: not known, or gaccd is older than this */
	size_t n_node;
	const char *gpu;	   /* that has its memory, "GPU-" and its UUID; "": none, or it is not there yet */
	uint64_t gpu_bytes;	   /* of that GPU's memory */
	const gacc_scalar *scalar; /* n_scalar: the newest of each name that its ranks have logged */
	size_t n_scalar;
} gacc_job_info;

typedef struct gacc_jobs {
	size_t n;
	const gacc_job_info *job;
} gacc_jobs;

GACC_API void gacc_jobs_free(gacc_jobs *);

/* On success *out is one job (gacc_job_list: any number). `job` is an id or a name. */
GACC_API gacc_status gacc_job_submit(gacc_client *, const gacc_spec *, gacc_jobs **out);
GACC_API gacc_status gacc_job_get(gacc_client *, const char *job, gacc_jobs **out);
/* Its specification, to be changed and submitted again. */
GACC_API gacc_status gacc_spec_of_job(gacc_client *, const char *job, gacc_spec **out);
/* The specifications in `json` are without tensors, param_groups, init, labels and launch_command; jobs that would
 * bring the ranks of all above 20000 have n_rank 0. */
GACC_API gacc_status gacc_job_list(gacc_client *, int ended_too, gacc_jobs **out);
/* grace_ms: what ranks that gaccd has started get between SIGTERM and SIGKILL; 0: what the job says. A second cancel
 * can only make it shorter. */
GACC_API gacc_status gacc_job_cancel(gacc_client *, const char *job, const char *reason, uint32_t grace_ms,
				     gacc_jobs **out);
/* For the program that started the ranks: one of them has failed, so the job ends as FAILED, and `reason` names the
 * rank. */
GACC_API gacc_status gacc_job_fail(gacc_client *, const char *job, const char *reason, gacc_jobs **out);
/* Closes the open window with what is counted in it. */
GACC_API gacc_status gacc_job_flush(gacc_client *, const char *job, uint64_t *out_window);
/* Holds the job at the next window boundary, until it is resumed. */
GACC_API gacc_status gacc_job_pause(gacc_client *, const char *job, const char *reason, gacc_jobs **out);
GACC_API gacc_status gacc_job_resume(gacc_client *, const char *job, gacc_jobs **out);
/* From that window on (0: as soon as possible). *out_window is the first that it holds for, whatever dies. */
GACC_API gacc_status gacc_job_update(gacc_client *, const char *job, const gacc_job_values *, uint64_t window,
				     uint64_t *out_window);
/* Until the job is in that state (0: has ended) or has applied so many steps (0: not asked), for at most timeout_ms
 * (-1: for ever); a daemon that is away is waited for. GACC_ETIMEOUT; GACC_ECANCELLED: it can never reach the goal,
 * *out is the job all the same. */
GACC_API gacc_status gacc_job_wait(gacc_client *, const char *job, gacc_job_state state, uint64_t applied_step,
				   int timeout_ms, gacc_jobs **out);
/* "completed" or "COMPLETED"; 0: there is no such state. */
GACC_API gacc_job_state gacc_job_state_named(const char *name);

/* A job as it changes. A thread of the library reads it, over restarts of the daemon; states in between may be skipped,
 * the last one is not. A daemon that has not answered this client yet is not waited for, nor one that the caller may
 * not reach. The first state is as gacc_job_get has it, later ones are as gacc_job_list does: n_rank is 0 when the
 * ranks times those who watch the job are more than 20000. */
typedef struct gacc_watch gacc_watch;
GACC_API gacc_status gacc_job_watch(gacc_client *, const char *job, gacc_watch **out);
/* For poll(): readable when gacc_watch_next has something. */
GACC_API int gacc_watch_fd(const gacc_watch *);
/* The newest state. GACC_EAGAIN: nothing new; GACC_EDONE: the job has ended and all was told; else why it cannot go on.
 */
GACC_API gacc_status gacc_watch_next(gacc_watch *, gacc_jobs **out);
GACC_API void gacc_watch_close(gacc_watch *);

/* ---- what has happened in a job ---- */

typedef struct gacc_micro_info {
	uint32_t rank, micro;
	double weight, loss;
	int64_t pushed_unix_nanos;
	int64_t lag_ns; /* after the first push of its index by any rank */
	int rejected;	/* void: non-finite */
	uint64_t data_key;
	const char *node; /* where the rank is; "": not known, or gaccd is older than this */
} gacc_micro_info;

typedef struct gacc_window_info {
	uint64_t window, applied_step;
	/* "APPLIED", "SKIPPED", "EMPTY", "DROPPED"; "NONFINITE", "OUTLIER_NORM", "UNSPECIFIED" */
	const char *outcome, *skip_reason;
	double total_weight, divisor;
	uint64_t micro_count;
	double grad_norm, lr, mean_loss, loss_scale;
	uint32_t last_rank; /* whose contribution completed it, and by how much after the one before */
	int64_t last_lag_ns;
	int64_t closed_unix_nanos;
	const uint32_t *short_rank; /* n_short of them gave fewer than micro_size */
	size_t n_short;
	const gacc_micro_info *micro; /* n_micro of them, if asked for */
	size_t n_micro;
	const char *json;
	const char *last_node; /* where last_rank is, and each short_rank; "" as above */
	const char *const *short_node;
	const gacc_scalar *scalar; /* n_scalar, by name */
	size_t n_scalar;
} gacc_window_info;

typedef struct gacc_history {
	size_t n;
	const gacc_window_info *window;
} gacc_history;

/* Windows that have closed, newest first: at most `limit` (0: 20), only those before `before_window` (0: all). */
GACC_API gacc_status gacc_job_history(gacc_client *, const char *job, uint64_t before_window, uint32_t limit,
				      int micros, gacc_history **out);
/* Of the whole job: its first window, its newest, and at most 512 in between, evenly spaced, without micro-batches. */
GACC_API gacc_status gacc_job_history_whole(gacc_client *, const char *job, gacc_history **out);
GACC_API void gacc_history_free(gacc_history *);

typedef struct gacc_events {
	size_t n;
	const gacc_job_event *event; /* oldest first */
} gacc_events;

/* Those with a greater id than after_id, at most `limit` (0: 1000). job NULL: of the node and all jobs. */
GACC_API gacc_status gacc_job_events(gacc_client *, const char *job, uint64_t after_id, uint32_t limit,
				     gacc_events **out);
GACC_API void gacc_events_free(gacc_events *);

typedef struct gacc_tensor_norm {
	const char *name;
	double grad_norm;  /* 2-norm of the averaged, unscaled gradient, before clipping */
	double param_norm; /* of the parameter before the step */
} gacc_tensor_norm;

typedef struct gacc_norms {
	uint64_t window;
	size_t n;
	const gacc_tensor_norm *norm;
	const char *json;
} gacc_norms;

/* Of the next window that closes, which is waited for. */
GACC_API gacc_status gacc_job_norms(gacc_client *, const char *job, gacc_norms **out);
GACC_API void gacc_norms_free(gacc_norms *);

/* ---- checkpoints ---- */

typedef struct gacc_checkpoint_info {
	uint64_t id;	   /* ascending in a job */
	const char *path;  /* directory with manifest.json */
	const char *state; /* "WRITING", "COMPLETE", "FAILED" */
	uint64_t window, applied_step;
	uint64_t carried_micros; /* micro-batches of the open window that it has */
	uint64_t bytes;
	int64_t started_unix_nanos, ended_unix_nanos;
	const char *message; /* why it failed */
	const char *json;
	uint64_t state_bytes; /* of the file with the trainers' own states; 0: it has none */
} gacc_checkpoint_info;

typedef struct gacc_checkpoints {
	size_t n;
	const gacc_checkpoint_info *checkpoint; /* oldest first */
} gacc_checkpoints;

/* At the next window boundary, or now, with the open window's sum. wait: returns when it is complete, else when it has
 * begun. *out is one checkpoint. */
GACC_API gacc_status gacc_checkpoint_save(gacc_client *, const char *job, int inside_window, int wait,
					  gacc_checkpoints **out);
GACC_API gacc_status gacc_checkpoint_list(gacc_client *, const char *job, gacc_checkpoints **out);
GACC_API void gacc_checkpoints_free(gacc_checkpoints *);

/* ---- logs of ranks that gaccd has launched ---- */

/* What comes next in a rank's log, from the node where the rank is. */
typedef struct gacc_log_piece {
	const void *data;
	size_t n;      /* 0: there is no more for now */
	uint64_t file; /* what has been read so far: for the next call; 0: nothing */
	uint64_t offset;
	int missing; /* there is no log, or not yet */
	int more;    /* there is more at once */
} gacc_log_piece;

/* `after`: the piece before, or NULL: begins with the last `tail` lines (UINT64_MAX: all; of a long log as many as its
 * last 4 MiB have). node: gacc_rank_info.node. The caller must be the job's owner, or root. */
GACC_API gacc_status gacc_job_log(gacc_client *, const char *job, uint32_t rank, const char *node,
				  const gacc_log_piece *after, uint64_t tail, gacc_log_piece **out);
GACC_API void gacc_log_piece_free(gacc_log_piece *);

/* ---- the node ---- */

/* A node of NVIDIA's driver, as gaccd may use it. */
typedef struct gacc_device_node {
	const char *path;  /* "/dev/nvidia0" */
	const char *error; /* "": it may read and write it; else "EACCES", "EPERM", ... */
} gacc_device_node;

typedef struct gacc_node_info {
	const char *name, *version, *kernels;
	int64_t pid, started_unix_nanos;
	uint64_t incarnation, term;
	uint32_t protocol, jobs, cpus;
	uint64_t host_bytes_used, host_bytes_limit;
	int draining;
	/* bytes of the disk of gaccd's state_dir; total 0: gaccd is older than this */
	uint64_t disk_total, disk_free, journal_reserve, journal_reserve_limit;
	/* the caller's there, and the limit of both together; 0: none */
	uint64_t user_checkpoints, user_logs, user_limit;
	int disk_full;
	int64_t round_trip_ns; /* of this call */
	const char *json;
	/* of the event loop: since the start; in the last one to two seconds */
	int64_t longest_turn_ns, recent_turn_ns;
	/* What gaccd, and the ranks that it launches, may use of GPUs. */
	int has_device_access;	/* 0: gaccd is older than this */
	uint64_t memlock_limit; /* bytes; all ones: none */
	size_t n_device;
	const gacc_device_node *device; /* those in its /dev */
	/* of gaccd's own certificate: why others refuse it, and what should be mended soon; "": nothing */
	const char *certificate_fault, *certificate_note;
	int64_t certificate_expires_unix; /* seconds; 0: it has none, or is older than this */
} gacc_node_info;

GACC_API gacc_status gacc_node_get(gacc_client *, gacc_node_info **out);
GACC_API void gacc_node_free(gacc_node_info *);

/* A node of the cluster. Of one that its coordinator has not heard yet only the name, the state and the parts are
 * known. */
typedef struct gacc_cluster_node {
	const char *name, *state; /* "UP", "SUSPECT", "DOWN" */
	const char *version, *kernels, *data_address;
	const char *collectives;   /* "gloo/2": a job waits while its nodes have different ones, ... */
	uint32_t kernels_revision; /* ... or different revisions of what they compute */
	const char *reason;	   /* why it is not UP: a sentence; "" of one that is, or of an older coordinator */
	int coordinates, drained;
	int64_t state_since_unix_nanos, heard_unix_nanos; /* its last word; 0: none yet */
	int64_t silent_ns;				  /* since then */
	uint64_t incarnation, host_bytes_used, host_bytes_limit;
	uint32_t cpus, parts; /* parts of jobs that have not ended */
	const char *json;
} gacc_cluster_node;

typedef struct gacc_nodes {
	size_t n;
	const gacc_cluster_node *node; /* the first one coordinates */
} gacc_nodes;

GACC_API gacc_status gacc_node_list(gacc_client *, gacc_nodes **out);
/* New jobs get no parts there, until it is undone (drained 0) or the coordinator restarts. *out is that node. */
GACC_API gacc_status gacc_node_drain(gacc_client *, const char *name, int drained, gacc_nodes **out);
GACC_API void gacc_nodes_free(gacc_nodes *);

typedef struct gacc_buffer_info {
	uint64_t job;		    /* 0: of a job that is being restored */
	const char *kind;	    /* "accumulator", "slots", ... */
	uint32_t segments, clients; /* trainers that map it */
	uint64_t tensors, bytes;
	const char *node; /* "": all parts of the job together, or gaccd is older than this */
	uint32_t part;	  /* of the job, which has it */
} gacc_buffer_info;

/* Shared memory on a node. */
typedef struct gacc_node_memory {
	const char *name;
	int heard; /* 0: not since its coordinator's start, and nothing else is known */
	uint64_t host_bytes_used, host_bytes_limit;
	uint64_t user_bytes_used, user_bytes_limit; /* the caller's; limit 0: not known */
} gacc_node_memory;

typedef struct gacc_buffers {
	size_t n;
	const gacc_buffer_info *buffer;
	uint64_t host_bytes_used, host_bytes_limit; /* on the node that coordinates */
	uint64_t user_bytes_used, user_bytes_limit; /* the caller's there */
	const char *json;
	const gacc_node_memory *node; /* n_node of them; 0: gaccd is older than this */
	size_t n_node;
} gacc_buffers;

/* Shared memory by owner, and on the nodes where it is. job NULL: all jobs, and all nodes. */
GACC_API gacc_status gacc_node_buffers(gacc_client *, const char *job, gacc_buffers **out);
GACC_API void gacc_buffers_free(gacc_buffers *);

typedef struct gacc_config_value {
	const char *key, *value; /* "limits.jobs" */
	const char *source;	 /* "default", "file:line", "environment", "command line" */
} gacc_config_value;

typedef struct gacc_config {
	size_t n;
	const gacc_config_value *value;
	const char *json;
} gacc_config;

/* What the node's gaccd runs with. */
GACC_API gacc_status gacc_node_config(gacc_client *, gacc_config **out);
GACC_API void gacc_config_free(gacc_config *);

#ifdef __cplusplus
}
#endif
#endif

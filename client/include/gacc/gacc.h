/* SPDX-License-Identifier: Apache-2.0 */
/* gacc for trainers: push micro-batch gradients to the node's gaccd, and step together.
 *
 * A loop:
 *
 *     gacc_open(NULL, &client);                      endpoint from GACC_ENDPOINT, or the default socket
 *     gacc_attach(client, NULL, &job);               job and rank from the environment
 *     gacc_register(job, tensors, n);                names, dtypes, shapes: equal on all ranks
 *     if (gacc_params_needed(job)) gacc_put_params(job, values);
 *     gacc_ready(job, -1, &at);                      the job runs; where to resume
 *     for (;;) {
 *             st = gacc_next(job, &at);              which micro-batch to compute now
 *             if (st == GACC_EAGAIN) {               none is left in this window
 *                     gacc_wait(job, -1, &step);     new parameters are readable
 *                     continue;
 *             }
 *             if (st != GACC_OK) break;              GACC_EDONE: the job has completed
 *             gacc_grad_buffer(job, &slot, NULL);    write the gradients there ...
 *             gacc_push(job, &(gacc_push_opts){ sizeof(gacc_push_opts), .weight = n_samples }, NULL);
 *     }
 *     gacc_detach(job, 1);
 *
 * This loop is also right after a restart: a rank whose micro-batches were all counted before it died starts at
 * gacc_wait.
 *
 * Contract. A push that returned GACC_OK is counted exactly once, whatever dies afterwards. After a restart,
 * gacc_next hands out only what is missing. Calls retry by themselves over lost replies and daemon restarts, until
 * their time is up; a call without a time of its own gives up with GACC_EUNAVAIL when the daemon has been out of reach
 * for outage_ms. The daemon owns all memory that is mapped here; pointers stay valid until gacc_detach, over restarts
 * of the daemon too.
 *
 * The library keeps no globals, prints nothing, never exits. A gacc_client may be shared between threads; a gacc_job
 * belongs to one thread at a time, except gacc_event_fd, gacc_event and gacc_ring. After fork only the parent may use
 * them: in the child every call fails, and gacc_detach and gacc_close do nothing. Structs that callers fill start with
 * their size, so that they can grow. Timeouts are in milliseconds, -1 = no limit. Every call that can fail leaves a
 * sentence in gacc_last_error: what, where, what to do next.
 */
#ifndef GACC_GACC_H
#define GACC_GACC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef GACC_API
#define GACC_API __attribute__((visibility("default")))
#endif

typedef struct gacc_client gacc_client;
typedef struct gacc_job gacc_job;

typedef enum gacc_status {
	GACC_OK = 0,
	GACC_EAGAIN = -1,   /* not now: gacc_next when nothing is left in the window, a read crossed by an update */
	GACC_ETIMEOUT = -2, /* gacc_last_error names whom it waited for */
	GACC_EUNAVAIL = -3, /* the daemon cannot be reached */
	GACC_EINVAL = -4,
	GACC_ENOTFOUND = -5,
	GACC_EPERM = -6,
	GACC_ENOMEM = -7, /* a limit or memory */
	/* from a push: the window closed without this micro-batch, go on with gacc_next; from gacc_next: a newer
	   process has taken this rank, for good */
	GACC_ESTALE = -8,
	GACC_ECANCELLED = -9,  /* the job was cancelled or failed */
	GACC_ELAYOUT = -10,    /* the tensor set differs from the declared one */
	GACC_EDONE = -11,      /* the job has completed: no further window */
	GACC_ENONFINITE = -12, /* refused: non-finite gradient */
	GACC_EINTERNAL = -13,
	GACC_ENOSYS = -14 /* this gaccd is older and has no such call */
} gacc_status;

typedef enum gacc_dtype { GACC_F32 = 1, GACC_F64 = 2, GACC_F16 = 3, GACC_BF16 = 4 } gacc_dtype;

typedef struct gacc_tensor {
	const char *name;
	gacc_dtype dtype; /* of the parameter: F32, F16 or BF16 */
	int ndim;	  /* 0..8 */
	int64_t shape[8];
	const char *alias_of; /* NULL: own storage */
} gacc_tensor;

/* What is NULL, 0 or -1 is taken from the environment: job from GACC_JOB_ID (or TORCHELASTIC_RUN_ID); rank and world
 * from the first pair that is set of GACC_RANK/GACC_WORLD_SIZE, RANK/WORLD_SIZE, SLURM_PROCID/SLURM_NTASKS,
 * OMPI_COMM_WORLD_RANK/_SIZE, PMI_RANK/PMI_SIZE; half a pair is an error. gacc_rank_source says which won. */
typedef struct gacc_attach_opts {
	size_t struct_size;
	const char *job;      /* id or name; NULL with spec_yaml: the name in the specification */
	int rank, world_size; /* -1: environment; world_size 0: both from the environment */
	/* create the job from this text if no job of its name exists; NULL: never. Without ranks in it, the job has
	 * world_size of them */
	const char *spec_yaml;
	int no_shared_memory; /* 1: everything travels inline */
	int timeout_ms;	      /* of gacc_attach, gacc_register and gacc_put_params; 0: 60 s */
	int outage_ms;	      /* give up after the daemon was out of reach this long; 0: 10 min */
} gacc_attach_opts;

/* A micro-batch to compute. */
typedef struct gacc_position {
	uint64_t window; /* windows closed before: key of a resumable sampler, with micro and rank */
	uint64_t applied_step;
	uint32_t micro; /* 0..micro_size-1 */
	uint32_t micro_size;
	int last_in_window; /* of this rank: gacc_wait comes after it */
	double loss_scale;  /* multiply the loss by this before backward (1 = none) */
} gacc_position;

typedef struct gacc_push_opts {
	size_t struct_size;
	double weight;		      /* samples or tokens; 0 means 1 */
	double loss;		      /* for display and mean_loss */
	uint64_t data_key;	      /* hash of the sample ids; 0 = none */
	const unsigned char *present; /* bit t (LSB first) = tensor t was touched; NULL = all */
	int zero_after;		      /* the daemon zeroes the slot as it adds it */
	/* return once it is queued; the acknowledgement is awaited by the next gacc_grad_buffer that needs the slot,
	 * gacc_flush or gacc_wait, which then report its error and do nothing else: go on with gacc_next. After an
	 * asynchronous push the next gacc_grad_buffer is another slot if there is one */
	int async;
	/* learning rate of this window, instead of the schedule's; 0 = the schedule's. All pushes of a window give the
	 * same one, on all ranks: another is refused (LR_MISMATCH) */
	double lr;
	/* ready word (1..GACC_READY_WORDS) and the value at which this gradient is complete; 0 and 0: it is complete.
	 * ready_rings 1: whoever stores the value calls gacc_ring; 0: the word is looked at every millisecond.
	 * ready_timeout_ms: how long after gacc_push the word may come to its value; 0: 60 s; -1: for ever. See
	 * gacc_ready_word */
	uint32_t ready_at;
	int ready_rings;
	uint64_t ready_value;
	int ready_timeout_ms;
} gacc_push_opts;

typedef struct gacc_push_info {
	uint64_t window;
	uint32_t micro;
	uint32_t count, micro_size; /* counted of this rank, of */
	int duplicate;		    /* it had been counted before */
	int64_t parked_ns;	    /* waited for its turn behind other ranks */
} gacc_push_info;

typedef enum gacc_outcome {
	GACC_STEP_APPLIED = 1,
	GACC_STEP_SKIPPED = 2,
	GACC_STEP_EMPTY = 3,
	GACC_STEP_DROPPED = 4
} gacc_outcome;

typedef struct gacc_step {
	uint64_t window, applied_step;
	gacc_outcome outcome;
	double total_weight, divisor;
	uint64_t micro_count;
	double grad_norm, lr, mean_loss;
	uint32_t last_rank; /* the rank that completed the window, and how long after the one before */
	int64_t last_lag_ns;
	uint64_t params_digest;
	const void *reduced; /* optimizer client: the reduced gradients (gacc_reduced_offset); else NULL */
	int job_done;	     /* no further window */
} gacc_step;

GACC_API const char *gacc_version(void);
GACC_API const char *gacc_strerror(gacc_status);

/* endpoint: "/path", "unix:/path", "unix:///path", "host:port"; NULL: GACC_ENDPOINT, else unix:/run/gaccd/gaccd.sock.
 * Over TCP the token comes from the file GACC_TOKEN_FILE, certificates from GACC_TLS_CERT, GACC_TLS_KEY and
 * GACC_TLS_CA. Does not connect yet. */
GACC_API gacc_status gacc_open(const char *endpoint, gacc_client **out);
/* All its jobs must be detached. NULL is fine. */
GACC_API void gacc_close(gacc_client *);
/* Text of the last failure on this client (before a job exists). Valid until the next call on it. */
GACC_API const char *gacc_client_error(const gacc_client *);
GACC_API const char *gacc_endpoint(const gacc_client *);

GACC_API gacc_status gacc_attach(gacc_client *, const gacc_attach_opts *, gacc_job **out);
/* done = 1: this rank contributes no more, neither now nor after a restart. Waits up to 5 s for asynchronous pushes and
 * their ready words; where these go by RPC and one is on its way, parked behind another rank, up to 60 s more for that
 * call. Unmaps everything; NULL is fine. */
GACC_API void gacc_detach(gacc_job *, int done);

GACC_API uint64_t gacc_job_id(const gacc_job *);
GACC_API int gacc_rank(const gacc_job *);
GACC_API int gacc_size(const gacc_job *);
GACC_API const char *gacc_rank_source(const gacc_job *); /* "RANK", "SLURM_PROCID", "argument", ... */

/* Up to 1,000,000 tensors. Returns when the job's memory is there and mapped. */
GACC_API gacc_status gacc_register(gacc_job *, const gacc_tensor *, size_t n);
/* Of tensor 0..n-1; an index outside gives 0. An alias has the offsets of the tensor whose storage it shares. */
GACC_API size_t gacc_offset(const gacc_job *, size_t tensor);	      /* bytes, in a slot */
GACC_API size_t gacc_param_offset(const gacc_job *, size_t tensor);   /* bytes, in the parameters */
GACC_API size_t gacc_reduced_offset(const gacc_job *, size_t tensor); /* bytes, in the reduced gradients */
GACC_API gacc_dtype gacc_grad_dtype(const gacc_job *, size_t tensor);
GACC_API gacc_dtype gacc_reduced_dtype(const gacc_job *); /* the job's accumulate_dtype */

GACC_API int gacc_params_needed(const gacc_job *);
/* values[t]: tensor t in its dtype, C order; those of aliases are ignored. Any rank may call it; the first complete
 * upload counts. Before gacc_ready. */
GACC_API gacc_status gacc_put_params(gacc_job *, const void *const *values);
/* Returns when the job runs: memory and parameters are there; other ranks may still come. *out (may be NULL): window,
 * applied_step, micro_size and loss_scale hold; micro is the first one missing. With optimizer client and a step that
 * waits to be applied, gacc_next answers GACC_EAGAIN and gacc_wait returns that step once more. */
GACC_API gacc_status gacc_ready(gacc_job *, int timeout_ms, gacc_position *out);
/* Base of the parameters, read-only. Stable from gacc_wait (gacc_ready) until this rank's last push of the window.
 * GACC_EAGAIN: they are being updated right now. */
GACC_API gacc_status gacc_params(gacc_job *, const void **base, size_t *bytes);

/* Next micro-batch that this rank owes; the same one until it is pushed. GACC_EAGAIN: none is left in this window, call
 * gacc_wait; GACC_EDONE: the job is done. Sends nothing. */
GACC_API gacc_status gacc_next(gacc_job *, gacc_position *out);
/* A free slot to fill, 64-byte aligned; blocks while asynchronous pushes use all, or ready words of their slots have
 * not come (GACC_ETIMEOUT: not in time). Holds old bytes. The same one until it is pushed. With `accumulate: none` a
 * push without an answer (GACC_EUNAVAIL, GACC_ETIMEOUT) may have been counted, and its slot is the sum then: repeat
 * gacc_push, or ask for another slot here, which GACC_EINVAL refuses where there is none. */
GACC_API gacc_status gacc_grad_buffer(gacc_job *, void **base, size_t *bytes);
/* Pushes the slot of the last gacc_grad_buffer as the micro-batch of gacc_next. Returns when it is counted (async:
 * queued). GACC_ENONFINITE: the micro-batch is void and the window goes on without it. */
GACC_API gacc_status gacc_push(gacc_job *, const gacc_push_opts *, gacc_push_info *out);
#define GACC_READY_WORDS 8
/* Ready words: for gradients that another thread, or a GPU's stream, completes while the job's thread goes on.
 *
 *     gacc_ready_word(job, 1, &word, NULL);                  once, after gacc_register
 *     gacc_grad_buffer(job, &slot, NULL);                    hand the slot to the thread that fills it
 *     gacc_push(job, &(gacc_push_opts){ sizeof(gacc_push_opts), .async = 1, .ready_at = 1, .ready_value = ++n,
 *                                       .ready_rings = 1 }, NULL);
 *     when the slot is full, the other thread:
 *         __atomic_store_n(word, n, __ATOMIC_RELEASE);
 *         gacc_ring(job);
 *
 * A word is 0 at first and may only go up; a push waits until (int64_t)(word - ready_value) >= 0. Nothing of the slot
 * is read before; until then it belongs to the push. weight, loss and present are those of the call. Pushes keep their
 * order: those behind one that waits, wait too. Without async, gacc_push itself waits for word and count.
 *
 * Each word fills 64 bytes, word 1 begins a page of 4096, and the address holds until gacc_detach. Values outlive
 * restarts of engine and daemon: after a new session they are in the new page, too, also those that a thread stores
 * meanwhile. A trainer that is started again begins at 0.
 *
 * Where there is no mailbox (an older gaccd, GACC_MAILBOX=0, no shared memory), or when it does not accept the push,
 * the library waits for the word itself, and sends the push by RPC then. If the word has not come in time, the call
 * that waits for the push (gacc_push, or what reports an asynchronous one) returns GACC_ETIMEOUT and nothing is
 * forgotten: call it again, and leave the slot alone until the word has its value or the job is detached. So does any
 * call that has to replace the session, where gaccd has other memory for the slot. gacc_grad_buffer gives a slot out
 * when its word has come, also if its push was refused or its window is over.
 *
 * GPUs: let the stream run a host function behind the gradient's kernels (cuLaunchHostFunc) that does what the other
 * thread does above; this needs nothing else. A stream may also store the word itself, for which the page is registered
 * with the device. Then *page says which page lies at the address: where it differs from the one that was registered,
 * after gacc_grad_buffer, a new session has come: unregister and register again before the next store is enqueued. What
 * was enqueued before is not lost, but seen only when the library looks itself: pushes that are made before
 * gacc_ready_word has told of the new page go by RPC.
 *
 * `at`: 1..GACC_READY_WORDS; `page` may be NULL. GACC_EINVAL, GACC_ENOMEM. The job's thread. */
GACC_API gacc_status gacc_ready_word(gacc_job *, uint32_t at, uint64_t **out, uint64_t *page);
/* After a word was stored. Any thread, also in a signal handler or a CUDA host function: one write(2) that never
 * blocks, and errno stays. Does nothing before gacc_ready_word; not after gacc_detach. Too many do no harm. */
GACC_API void gacc_ring(const gacc_job *);
/* Copies grads[t] (C order, gradient dtype; NULL = absent; those of aliases are ignored) into a slot and pushes it.
 * With `accumulate: none`, after a push without an answer: pushes that slot again as it is, and neither copies nor
 * looks at what is NULL; another data_key is refused (DATA_KEY_MISMATCH). To push other gradients, call
 * gacc_grad_buffer before. */
GACC_API gacc_status gacc_push_copy(gacc_job *, const void *const *grads, const gacc_push_opts *, gacc_push_info *out);
/* No more micro-batches of this rank for the open window. */
GACC_API gacc_status gacc_flush(gacc_job *);
/* Outcome of this window, once this rank has given or flushed all that it owes. Opens the next one. The time is also
 * that of its asynchronous pushes, which wait for other ranks; after GACC_ETIMEOUT call it again. */
GACC_API gacc_status gacc_wait(gacc_job *, int timeout_ms, gacc_step *out);
typedef struct gacc_value {
	const char *name; /* 1 to 63 bytes of printable UTF-8 */
	double value;	  /* may be NaN or infinite */
} gacc_value;
/* Keeps values under names in the job's history, which `gaccctl history` and `top` show: n of them, 64 at most, which
 * is also how many names a job may have. They belong to a window: the open one, or one of the 8 before it. Of one name
 * and window the value of the lowest rank counts, and of that rank the last. One request to gaccd, which answers before
 * it writes: log once for a window. GACC_ETIMEOUT after 5 s without gaccd: go on, the values are lost. GACC_EINVAL: a
 * name or the window; there are 64 other names. */
GACC_API gacc_status gacc_log(gacc_job *, uint64_t window, const gacc_value *, size_t n);
/* What this trainer has besides the parameters (random numbers, data position, statistics), as it is before its first
 * push of the open window: a checkpoint of that window holds it, and gacc_get_state gives it to this rank when it is
 * started again, here or in a job that begins with the checkpoint. At most 4 MiB, and 64 MiB of all ranks together,
 * in equal parts if the job has several (GACC_ENOMEM: the state before it stays). 0 bytes: there is none any more.
 * GACC_EINVAL: something of the window has been pushed, or the job has optimizer client. After the last window, too. */
GACC_API gacc_status gacc_put_state(gacc_job *, const void *data, size_t bytes);
/* The newest state that this rank has put, or else that of the checkpoint that the job began with: *bytes of it, put
 * for *window (may be NULL), which may be an older one than the open window. *bytes 0: there is none. Written to `to`
 * only where there is room for all of it; ask for the size with room 0. GACC_EINVAL: the checkpoint has the states of
 * another number of ranks. */
GACC_API gacc_status gacc_get_state(gacc_job *, void *to, size_t room, size_t *bytes, uint64_t *window);
/* Optimizer client: the reduced gradients of this window are no longer read. */
GACC_API gacc_status gacc_done(gacc_job *, uint64_t window);

typedef enum gacc_event_kind {
	GACC_EVENT_STEP = 1,	  /* a window closed */
	GACC_EVENT_STALL = 2,	  /* the text names whom the window waits for */
	GACC_EVENT_STATE = 3,	  /* the job's state changed */
	GACC_EVENT_CONNECTION = 4 /* the daemon went away, came back, or ended the session */
} gacc_event_kind;

/* For poll(): readable while events wait. Both from any thread. gacc_event takes the oldest (GACC_EAGAIN: none); of
 * more than 64 the oldest are dropped. -1: no descriptor could be made. */
GACC_API int gacc_event_fd(gacc_job *);
GACC_API gacc_status gacc_event(gacc_job *, gacc_event_kind *kind, char *text, size_t n);

/* Text of the last failure on this job. Valid until the next call on it. */
GACC_API const char *gacc_last_error(const gacc_job *);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own structs. A gacc_client is a channel and an endpoint; a gacc_job is one session of one rank.
 *
 * Layers, the upper using the lower only: gacc.h's calls (attach.c, register.c, params.c, push.c, ready.c, step.c);
 * async.c, queued pushes; push_rpc.c and session.c, calls that outlive the daemon; recover.c, another session;
 * sender.c, the thread of queued pushes; single attempts (session_call.c, push_send.c, inline.c).
 *
 * Threads. The job's thread owns everything in struct gacc_job. Two helpers beside it touch only what is theirs: the
 * sender (sender.c) sends queued pushes, the watcher (watch.c) reads the event stream. The session may be replaced
 * (recover.c: session_recover) only while the sender is held; the watcher has its own copy of the session, under its
 * lock.
 */
#ifndef GACC_CLIENT_INTERNAL_H
#define GACC_CLIENT_INTERNAL_H

#include "lib/cells.h"
#include "lib/clock.h"
#include "lib/cuda_memory.h"
#include "lib/failure.h"
#include "gacc/gacc.h"
#include "proto/status.h"
#include "lib/window.h"
#include "lib/words.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ProtobufCMessage;
struct Gacc__V1__Session;
struct Gacc__V1__JobSpec;
struct Gacc__V1__WaitReadyResponse;
struct Gacc__V1__PushRequest;
struct rpc_channel;
struct rpc_failure;
struct rpc_stream;
struct sender;
struct watcher;

#define SLOTS_MAX 2
#define NONCE_BYTES 16
#define TOKEN_BYTES 64 /* room; the protocol says 16 */

/* ---- client.c ---- */

struct gacc_client {
	char *endpoint; /* as a gRPC target */
	struct rpc_channel *channel;
	pid_t pid;		   /* of the process that opened it: a forked child must keep off */
	const unsigned char *ours; /* a page that reads 1, and 0 in a forked child; NULL: ask getpid */
	int admin_timeout_ms;
	pthread_mutex_t lock; /* of the rest */
	struct failure failure;
	bool answered; /* gaccd has, once: when it is out of reach now, it will be back */
};

/* Copies `f` to where gacc_client_error reads it. Returns its code. */
gacc_status client_fail(struct gacc_client *client, const struct failure *f);
/* A thread that takes no signals: those are the program's. */
enum status thread_start(pthread_t *out, void *(*run)(void *), void *arg);
/* Says better why no answer came: a deadline that gaccd did not name (then DEADLINE), a CANCELLED that nobody asked for
 * (then UNAVAILABLE), and UNAVAILABLE on a unix socket, for which the kernel is asked: no socket, nobody listens,
 * nobody answers, no permission (then PERMISSION_DENIED). */
void explain_unreachable(const char *endpoint, struct rpc_failure *rpc);

/* ---- map.c: memory of the daemon in this process ---- */

struct mapping {
	unsigned char *base; /* NULL: none */
	size_t bytes;
	size_t data_offset;
	bool writable;
	dev_t dev; /* which memory it is: a daemon may offer the same again or other */
	ino_t ino;
	struct cuda_imported device; /* of memory on a device, of which `base` is an address there; else zeros */
};

struct memory {
	int socket; /* attach socket, -1: none; its closing tells the daemon that we are gone */
	struct mapping slot[SLOTS_MAX];
	struct mapping params, status, reduced[2];
	struct cells cells; /* of this socket's session, if it has a mailbox */
	struct words words; /* once they are asked for */
	/* by slot: somebody else writes to it until this word has this value */
	struct late {
		uint32_t at; /* 0: nobody does */
		uint64_t value;
		int64_t until; /* of now_ms(): how long that is awaited */
		uint64_t window;
		uint32_t micro; /* what it was pushed as */
	} late[SLOTS_MAX];
	struct cuda *cuda;	  /* a GPU's driver that has these mappings pinned; NULL: none */
	bool device;		  /* the daemon is told that a device writes to the slots */
	char gpu[CUDA_UUID_TEXT]; /* of slots on a device: which one this process uses; "": not known yet */
	bool cells_told;	  /* why there is none, once */
	bool inlined;		  /* no shared memory: the mappings are private */
};

/* Bytes of an element. */
static inline size_t dtype_bytes(gacc_dtype t)
{
	return t == GACC_F64 ? 8 : t == GACC_F32 ? 4 : 2;
}

struct tensor {
	size_t slot_offset, param_offset, reduced_offset;
	size_t count;
	gacc_dtype grad_dtype, param_dtype;
	bool alias;
};

struct layout {
	struct tensor *tensors;
	size_t n;
	size_t slot_bytes, param_bytes, accum_bytes;
	uint32_t slots;
	uint64_t fingerprint;
	bool params_needed;
	bool keeps_slot; /* what was pushed is read until its window is over */
	gacc_dtype accum_dtype;
};

/* One micro-batch on its way. */
struct push {
	uint64_t window;
	uint32_t micro;
	uint32_t slot;
	double weight, loss, loss_scale, lr;
	uint64_t data_key;
	uint8_t *present; /* owned; NULL = all */
	size_t n_present;
	bool zero_after;
	bool was_kept; /* an earlier attempt from this slot has no answer: the slot may be the sum */
	/* until this ready word has this value, nothing may be added from the slot; 0: it may be now */
	uint32_t ready_at;
	uint64_t ready_value;
	bool ready_rings;
	int64_t ready_until; /* of now_ms(): how long the word is awaited; INT64_MAX: for ever */
	/* the answer */
	bool is_void, duplicate;
	uint32_t count, micro_size;
	int64_t parked_ns;
};

/* Requests in the mailbox that were not answered yet, by their number in that of a session; seq 0: not published. */
struct posted {
	struct posted_push {
		struct push push;
		uint64_t seq, sgen;
	} entry[SLOTS_MAX]; /* asynchronous pushes, the oldest first */
	size_t n;
	struct {
		uint64_t seq, sgen, window;
	} wait;
};

struct gacc_job {
	struct gacc_client *client;
	/* this process: job and rank */
	char *name; /* as given; for a new attach */
	int rank, world;
	const char *rank_source;
	uint64_t id;
	struct Gacc__V1__JobSpec *create; /* NULL: never create */
	bool wants_memory;
	bool client_optimizer;
	bool on_device; /* slots and parameters are in a GPU's memory: mapped by gacc_cuda_register */
	int timeout_ms, outage_ms;
	int64_t ready_by;  /* of now_ms(): no word is awaited for longer. Set once, by gacc_detach; 0: not yet */
	int64_t settle_by; /* of now_ms(): no queued push is awaited for longer by this call; 0: there is no limit */
	/* the session */
	struct Gacc__V1__Session *session; /* every request borrows it */
	uint64_t generation;		   /* of the session, so that a newer process is not fenced by us */
	char *attach_socket;		   /* "" : none */
	uint8_t nonce[NONCE_BYTES];	   /* of the Attach that recovers the session, if `recovers` */
	bool recovers;			   /* it may have been taken: only its repetition is known as such */
	bool lost;			   /* attach again before the next call */
	bool fenced;			   /* for good */
	bool registered, running;
	/* what it has */
	struct layout layout;
	struct memory memory;
	struct window window;
	/* optimizer client: the result of pending_window is to be fetched and applied */
	bool pending_apply;
	uint64_t pending_window;
	int held_slot; /* handed out by gacc_grad_buffer, -1: none */
	/* layout.keeps_slot: bit s: slot s was pushed by this process, and is the sum of this window, or may be it */
	uint32_t kept_slots;
	uint64_t kept_window;
	/* of the held slot, if it is kept: what its first push said of the gradient in it */
	struct kept_as {
		unsigned char *present; /* NULL: all */
		uint64_t data_key;
	} kept_as;
	/* asynchronous pushes: one of the two is empty */
	struct posted posted;
	struct sender *sender; /* NULL until the first one that goes by RPC */
	struct watcher *watcher;
	struct failure failure;
};

/* ---- late.c: slots that somebody else still writes to ---- */

/* For how many ms something is still awaited that is allowed `until`, and no longer than gacc_detach waits; may be
 * below 0. Also runs on the sender's thread. */
int64_t late_left(const struct gacc_job *job, int64_t until);
/* Waits until nobody else writes to the slot, for `ms` at most and not longer than its push allows. */
bool late_await(const struct gacc_job *job, uint32_t slot, int64_t ms);
/* "slot 1, with micro-batch 3 of window 12, is still written to: ready word 5 has not come to 78 in time" */
void late_name(const struct gacc_job *job, uint32_t slot, char *out, size_t n);
#define LATE_HINT "see why its gradient is not complete, then call again"

/* For how many ms this call may wait for queued pushes; may be below 0. */
static inline int64_t settle_left(const struct gacc_job *job)
{
	return job->settle_by ? job->settle_by - now_ms() : INT64_MAX;
}

/* Connects, asks for the session's memory and maps it. What was mapped before keeps its addresses, and slots their
 * content: those whose memory is another one now are awaited before, if somebody still writes to them; a word that does
 * not come in time is STALLED, for good. What a GPU's driver has pinned is unpinned, moved and pinned again; if that
 * fails, the job is of no more use (memory->cuda->lost). The old socket and mailbox are closed. A mailbox that is not
 * in order is no failure: it is closed, and stderr says why. *failure is filled on failure. */
enum status memory_map(struct memory *memory, const struct gacc_job *job, struct rpc_failure *failure);
/* memory_map, as an attempt_fn, unless that has happened. */
enum status memory_map_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);
/* Has memory->cuda pin slots and parameters. As cuda_pin. */
enum status memory_pin(struct memory *memory, char *why, size_t size);
/* Waits for the device, which writes to no slot from then on, and unpins. False: the driver failed. */
bool memory_unpin(struct memory *memory);
/* Before anything is pinned: the daemon then gives these slots to no other session as long as the device may write to
 * them. *failure is filled on failure. */
enum status memory_tell_device(struct memory *memory, const struct gacc_job *job, struct rpc_failure *failure);
/* Private memory in place of the daemon's. */
enum status memory_inline(struct memory *memory, const struct layout *layout, bool reduced);
/* The daemon has closed the attach socket. */
bool memory_hung_up(const struct memory *memory);
void memory_unmap(struct memory *memory);
/* Where the layout's offset 0 lies. */
static inline unsigned char *mapping_data(const struct mapping *m)
{
	return m->base ? m->base + m->data_offset : NULL;
}

/* ---- layout.c ---- */

/* Bytes [offset, offset + n) of the parameter layout, gathered from the tensors; gaps are zero. */
void layout_gather(const struct layout *layout, const void *const *values, size_t offset, unsigned char *dst, size_t n);

/* ---- session_call.c: one attempt of a call, and what public calls begin and fail with ---- */

/* One attempt of something; `timeout_ms` > 0. Idempotent. */
typedef enum status (*attempt_fn)(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

/* A unary call. wire_timeout_ms (may be NULL) is the request's own timeout field, set for each attempt. */
struct unary {
	const char *method;
	const struct ProtobufCMessage *request;
	uint64_t *wire_timeout_ms;
	struct ProtobufCMessage *reply; /* out: bytes_free */
};
enum status session_unary(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

/* What one message of a stream carries: enough to amortise it, and it stays in the cache until it is added. */
#define CHUNK_BYTES ((size_t)1 << 20)
/* A stream; `bulk` as of rpc_stream_open. */
enum status session_stream(const struct gacc_job *job, const char *method, int64_t timeout_ms, uint32_t bulk,
			   struct rpc_stream **out);
/* Why a stream ended without what was expected of it; *failure says so. Never ST_OK. */
enum status session_stream_failed(struct rpc_stream *stream, struct rpc_failure *failure);

/* Guards of the public functions: not in a forked child, not fenced. */
gacc_status job_enter(struct gacc_job *job);
/* Are slots and parameters there? They may be a device's, which gacc_cuda_register has not been told of yet. */
gacc_status job_has_memory(struct gacc_job *job);
gacc_status job_fail(struct gacc_job *job, enum status st, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- push_send.c: one attempt of a push, and its end ---- */

/* "push of micro-batch 3 of window 12" */
void push_name(const struct push *push, char *out, size_t n);
/* What goes over the wire, borrowed from both. */
void push_to_wire(const struct gacc_job *job, const struct push *push, struct Gacc__V1__PushRequest *out);
/* Waits until the gradient is complete, for `ms` at most and not longer than the push allows. Without a ready word it
 * is. Also runs on the sender's thread. */
bool push_await_ready(const struct gacc_job *job, const struct push *push, int64_t ms);
/* For how many ms its word, which it has, is still awaited at most; may be below 0. */
int64_t push_ready_left(const struct gacc_job *job, const struct push *push);
/* An attempt_fn; arg is a struct push, whose gradient is complete, and which gets the answer. Also runs on the sender's
 * thread. */
enum status push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);
/* What a finished push means for the window. `st` is session_run's word. The job's thread. */
gacc_status push_conclude(struct gacc_job *job, const struct push *push, gacc_status st);

/* ---- posted.c: pushes and waits through the session's mailbox ----
 *
 * What is not accepted there, for whatever reason, is repeated by RPC: a push counts once in any case. */

/* Is there a mailbox that takes a push now? */
bool posted_is_possible(struct gacc_job *job);
/* Pushes and waits for the answer. False: by RPC. */
bool posted_push_now(struct gacc_job *job, struct push *push);
/* Adds *push as the last and takes its `present`; there must be room. It is published if that is possible. */
void posted_add(struct gacc_job *job, const struct push *push);
/* The first, of which there must be one; waits for its answer. *out_accepted false: by RPC, unless the call's time is
 * over and it is owed. */
struct push *posted_first(struct gacc_job *job, bool *out_accepted);
/* Is the first still to be answered here, by an engine that may be waiting for other ranks? */
bool posted_is_owed(struct gacc_job *job);
/* Removes the first. */
void posted_drop(struct posted *posted);
/* Micro-batches that are posted, to out[SLOTS_MAX]. */
size_t posted_queued(const struct posted *posted, uint32_t *out);
/* Is one of them from this slot? */
bool posted_uses(const struct posted *posted, uint32_t slot);
/* Waits until the window is over, for timeout_ms (-1: none) and no longer than an answer is awaited, and takes its
 * result. False: by RPC. The same wait may be called again. */
bool posted_wait(struct gacc_job *job, uint64_t window, int timeout_ms, struct gacc_box_step *out);

/* ---- inline.c: parameters without shared memory; attempts ---- */

/* arg: a const void *const **, the tensors' values. */
enum status inline_put_params(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);
/* Into the private memory. arg: a bool *, whether the reduced gradients are meant, not the parameters. */
enum status inline_fetch(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

/* ---- sender.c: a queue of at most SLOTS_MAX pushes and the thread that sends them ----
 *
 * All functions are the job's thread's. When a push fails, the sender halts: the queue then belongs to the job's
 * thread, until it has dropped all of it. */

/* Starts the thread. NO_MEMORY, RESOURCE_EXHAUSTED. */
enum status sender_new(struct gacc_job *job, struct sender **out);
/* Ends the thread, when the call that it is in has ended (60 s at most). Takes NULL. */
void sender_free(struct sender *sender);
/* Waits until nothing is being sent, and nothing will be: the session may be replaced. Then lets the sender go on. Both
 * take NULL. */
void sender_hold(struct sender *sender);
void sender_let_go(struct sender *sender);
/* Queues *push and takes its `present`. There must be room: a slot is free. */
void sender_add(struct sender *sender, const struct push *push);
/* Micro-batches that are queued, to out[SLOTS_MAX]. Takes NULL. */
size_t sender_queued(struct sender *sender, uint32_t *out);
/* Is one of them from this slot? Takes NULL. */
bool sender_uses(struct sender *sender, uint32_t slot);
/* Waits until at most `limit` pushes are queued: *out_failed is NULL; or until the sender has halted: the push that
 * failed, the first of the queue. False: neither within `ms` (INT64_MAX: for ever), and *out_first has window and
 * micro-batch of the first. */
bool sender_wait(struct sender *sender, size_t limit, int64_t ms, struct push **out_failed, struct push *out_first);
/* Removes the first n pushes, or all if there are fewer. It must have halted. The next one, which was not sent; NULL:
 * none is left, and the sender goes on. */
struct push *sender_drop(struct sender *sender, size_t n);
/* A push that was refused as non-finite, without its `present`; each is told once. False: there is none. */
bool sender_take_void(struct sender *sender, struct push *out);

/* ---- recover.c ---- */

/* Draws one. INTERNAL: no random numbers. */
enum status session_nonce(uint8_t nonce[NONCE_BYTES]);
/* An attempt_fn: one Attach; arg is the nonce, which makes its repetition the same session. */
enum status session_attach(struct gacc_job *job, void *nonce, int64_t timeout_ms, struct rpc_failure *failure);
/* Takes over where the daemon says this rank stands. */
enum status position_adopt(struct gacc_job *job, const struct Gacc__V1__WaitReadyResponse *ready);
/* A new session for this rank with all that the old one had: memory at the same addresses, position, events. */
enum status session_recover(struct gacc_job *job, int64_t timeout_ms, struct rpc_failure *failure);

/* ---- session.c: calls that outlive the daemon ---- */

/* Attempts until it succeeds, fails for good, or timeout_ms (-1: none) are over: over lost replies, daemon restarts and
 * lost sessions. On failure job->failure says so, beginning with `what`. */
gacc_status session_run(struct gacc_job *job, const char *what, int timeout_ms, attempt_fn attempt, void *arg);

/* ---- push_rpc.c ---- */

/* Waits until the gradient is complete, then pushes. STALLED: it was not in time, or the call's time is over. */
gacc_status push_by_rpc(struct gacc_job *job, struct push *push);
/* Says that a call's time is over, and the push not counted. */
gacc_status push_not_in_time(struct gacc_job *job, const struct push *push);

/* ---- async.c: asynchronous pushes, in cells or queued at the sender ---- */

/* Queues *push and takes its `present`, also when it fails. There is room: a slot is free. */
gacc_status async_push(struct gacc_job *job, const struct push *push);
/* Waits until nothing is queued, for no longer than this call may (STALLED). The first failure of a queued push. */
gacc_status async_settle(struct gacc_job *job);
/* A push from this slot goes out: until its window is over the slot is kept, unless it turns out that nobody reads it.
 * Before it goes: it may be counted although no answer comes. Sets was_kept. */
void async_keep(struct gacc_job *job, struct push *push);
/* What has become of it, when its call is over: counted, refused, or not known. */
void async_kept(struct gacc_job *job, const struct push *push, gacc_status st, bool queued);
bool async_is_kept(const struct gacc_job *job, uint32_t slot);
/* The slot that the caller holds may be written. NOT_READY, WINDOW_FULL: it is kept. */
gacc_status async_check_held(struct gacc_job *job);
/* A slot that no queued push uses, and that nobody else writes to; waits for one, and of two takes the one that is
 * complete first. STALLED: its word has not come in time. */
gacc_status async_free_slot(struct gacc_job *job, int *out_slot);
/* The same for the slot that the caller holds: a push that was not in time may have left it to somebody. */
gacc_status async_held_slot(struct gacc_job *job);

/* ---- watch.c ---- */

/* Starts the thread that reads events. NO_MEMORY. */
enum status watcher_new(struct gacc_job *job, struct watcher **out);
/* The job has another session now. */
void watcher_rebind(struct watcher *watcher, const struct Gacc__V1__Session *session);
/* Ends the stream and the thread. Takes NULL. */
void watcher_free(struct watcher *watcher);

#endif

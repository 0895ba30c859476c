/* SPDX-License-Identifier: Apache-2.0 */
/* The one status table: what can go wrong, how much it breaks, and what it is called on the wire.
 *
 * `enum status` is the error type of every room. A name of this table is the stable `reason` of gacc.v1.ErrorDetail.
 * Its sections tell the blast radius: an error of a request leaves everything as it was, one of a step costs an
 * attempt, one of a session a trainer's session, one of a job the job's engine, one of the node the daemon. Codes are
 * those of gRPC (grpc_status_code), kept as numbers so that this header needs no gRPC.
 */
#ifndef GACC_PROTO_STATUS_H
#define GACC_PROTO_STATUS_H

#include <stdbool.h>

/* X(name, grpc code, retry the same request?, default text, default hint: what to do next) */
#define STATUS_TABLE(X)                                                                                                \
	X(OK, 0, false, "ok", "")                                                                                      \
	/* request: the caller's words are wrong or come at the wrong time */                                          \
	X(INVALID_ARGUMENT, 3, false, "invalid argument", "correct what the message names, then repeat the call")      \
	X(INVALID_SPEC, 3, false, "invalid job specification",                                                         \
	  "correct what the message names; all keys of a job file: gaccctl config schema")                             \
	X(INVALID_CONFIG, 3, false, "invalid configuration",                                                           \
	  "correct it, then check with: gaccd --check-config --config FILE")                                           \
	X(MALFORMED, 3, false, "malformed message",                                                                    \
	  "send the message that proto/gacc/v1 describes; update the older side if versions differ")                   \
	X(LAYOUT_MISMATCH, 3, false, "tensor set differs from the declared one",                                       \
	  "declare the same tensors in the same order on all ranks")                                                   \
	X(BAD_WEIGHT, 3, false, "weight must be 2.3e-308..1.7e308",                                                    \
	  "send the number of samples or tokens of the micro-batch")                                                   \
	X(BAD_SLOT, 3, false, "not a slot of this session",                                                            \
	  "slots are numbered from 0 to below `slots` of RegisterTensors' answer")                                     \
	X(OUT_OF_ORDER, 3, false, "micro-batches of a rank come in ascending order",                                   \
	  "push the micro-batches of a window in ascending order")                                                     \
	X(DATA_KEY_MISMATCH, 3, false, "this micro-batch was counted with another data_key",                           \
	  "a micro-batch index names one set of samples")                                                              \
	X(RANK_OUT_OF_RANGE, 3, false, "no such rank", "check RANK, or the job's ranks")                               \
	X(JOB_NOT_FOUND, 5, false, "no such job", "list jobs with: gaccctl jobs -a")                                   \
	X(ALREADY_EXISTS, 6, false, "exists already with another specification",                                       \
	  "use another name, or the same specification")                                                               \
	X(WINDOW_CLOSED, 9, false, "the window closed without this micro-batch: not counted",                          \
	  "go on with the next window")                                                                                \
	X(WINDOW_FORGOTTEN, 9, false, "a window too long ago to tell whether this micro-batch is in it",               \
	  "go on with the open window")                                                                                \
	X(WINDOW_FULL, 9, false, "this rank has given all its micro-batches of the window",                            \
	  "call WaitStep, then push into the next window")                                                             \
	X(NOT_CURRENT_WINDOW, 9, false, "the window is not open yet", "call WaitStep for the window before first")     \
	X(FLUSHED, 9, false, "this rank has flushed the window",                                                       \
	  "wait for the window's outcome, then push into the next one")                                                \
	X(WINDOW_BEGUN, 9, false, "the window has begun", "name a later window, or 0 for the earliest")                \
	X(PAUSED, 9, false, "the job is paused", "let it go on first: gaccctl resume JOB")                             \
	X(LOSS_SCALE_MISMATCH, 9, false, "gradients carry another loss scale than the window's",                       \
	  "use the loss_scale that WaitReady or WaitStep gave")                                                        \
	X(LR_MISMATCH, 9, false, "another push has given the window another learning rate",                            \
	  "give all pushes of a window the same lr, on all ranks")                                                     \
	X(NONFINITE, 9, false, "non-finite gradient", "look at this rank's data and loss")                             \
	X(NOT_READY, 9, false, "the job is not running yet", "call RegisterTensors and WaitReady first")               \
	X(JOB_ENDED, 9, false, "the job has ended", "submit a new job")                                                \
	X(DEVICE_MISMATCH, 9, false, "the job's slots are in the memory of a GPU that this trainer does not use",      \
	  "run the trainer on the GPU that the message names, or submit the job with that of the trainer (gpu), or "   \
	  "with slots_on: host")                                                                                       \
	X(NOT_SUPPORTED, 9, false, "not supported here", "do without it")                                              \
	X(VERSION_SKEW, 9, false, "no common protocol version", "update the older side")                               \
	X(RESOURCE_EXHAUSTED, 8, false, "a limit is reached", "wait until earlier work is over, or raise the limit")   \
	X(NO_SLOT, 8, true, "all slots are still mapped by earlier processes",                                         \
	  "end the earlier processes of this rank, then attach again")                                                 \
	X(SLOT_BUSY, 9, false, "the slot is in use by another push",                                                   \
	  "wait for that push to be acknowledged, or use the other slot")                                              \
	X(DEADLINE, 4, true, "the call's deadline has passed", "give the call more time")                              \
	X(STALLED, 4, false, "timed out waiting for other ranks", "see who is late with: gaccctl status JOB")          \
	X(PARAMS_CHANGED, 10, true, "parameters changed during the read", "read them again")                           \
	X(PARAMS_ALTERED, 15, false, "something else than the job has written to its parameters",                      \
	  "find out which trainer writes to them, then submit the job again from its last checkpoint")                 \
	X(CHECKSUM, 15, true, "checksum does not match", "send it again")                                              \
	X(UNAUTHENTICATED, 16, false, "no identity",                                                                   \
	  "use the unix socket, a client certificate, or a token (GACC_TOKEN_FILE; header authorization: Bearer "      \
	  "TOKEN)")                                                                                                    \
	X(PERMISSION_DENIED, 7, false, "permission denied",                                                            \
	  "call as the owner, or have the administrator allow what the message names")                                 \
	X(CANCELLED, 1, false, "cancelled", "nothing was done; call again if that was not meant")                      \
	X(UNIMPLEMENTED, 12, false, "no such method",                                                                  \
	  "server reflection lists the methods; update the older side if versions differ")                             \
	/* step: an attempt failed; the accumulators are intact */                                                     \
	X(ATTEMPT_FAILED, 10, true, "the attempt failed", "repeat the call")                                           \
	X(STALE_ATTEMPT, 10, false, "an older attempt", "repeat the call")                                             \
	X(STALE_TERM, 10, false, "an older coordinator", "repeat the call")                                            \
	X(STALE_EPOCH, 10, false, "an older epoch", "attach again")                                                    \
	/* session */                                                                                                  \
	X(SESSION_FENCED, 10, false, "a newer session of this rank exists", "end this process")                        \
	X(SESSION_UNKNOWN, 10, false, "no such session: attach again", "attach again, then repeat the call")           \
	/* job: its engine or its memory */                                                                            \
	X(WRONG_NODE, 9, false, "the rank belongs to another node", "attach on the node that the message names")       \
	X(ENGINE_DOWN, 14, true, "the job's engine is restarting", "repeat the call")                                  \
	X(SEGMENT_CORRUPT, 15, false, "a shared segment does not hold what it should",                                 \
	  "submit the job again, from its last checkpoint if it has one")                                              \
	X(ENGINE_FAILED, 10, false, "the job's engine cannot be started",                                              \
	  "mend what the message names, then submit the job again, from its last checkpoint if it has one")            \
	X(NO_MEMORY, 8, false, "out of memory", "end other jobs or programs, or ask for less")                         \
	X(RANK_FAILED, 10, false, "a rank's process has failed", "look at its log: gaccctl logs JOB RANK")             \
	/* node */                                                                                                     \
	X(DRAINING, 14, true, "the daemon is stopping", "try again when the daemon has restarted")                     \
	X(UNAVAILABLE, 14, true, "unavailable", "repeat the call")                                                     \
	X(STORE_FAILED, 13, false, "the journal cannot be written", "make room in state_dir; gaccd's log says more")   \
	X(IO_ERROR, 13, false, "input/output error", "gaccd's log says more")                                          \
	X(INTERNAL, 13, false, "internal error", "gaccd's log says more; please report it")

enum status {
#define X(name, code, retry, text, hint) ST_##name,
	STATUS_TABLE(X)
#undef X
		ST_COUNT
};

struct status_info {
	const char *name; /* "WINDOW_CLOSED" */
	const char *text;
	const char *hint; /* what to do next; "" for OK */
	int grpc_code;
	bool retryable; /* the same request may succeed later */
};

/* Row of `st`; of INTERNAL for a value outside the table. Static storage. */
const struct status_info *status_info(enum status st);
/* Status with this name, or -1. */
int status_by_name(const char *name);

#endif

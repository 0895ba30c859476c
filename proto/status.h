/* The one status table: what can go wrong, how much it breaks, and what it is called on the wire.
 *
 * `enum status` is the error type of every room. A name of this table is the stable `reason` of
 * gacc.v1.ErrorDetail. The ranges tell the blast radius: a REQUEST error leaves everything as it was, a STEP error
 * costs an attempt, a SESSION error costs one trainer's session, a JOB error the job's engine, a NODE error
 * the daemon. Codes are those of gRPC (grpc_status_code), kept as numbers so that this header needs no gRPC.
 */
#ifndef GACC_PROTO_STATUS_H
#define GACC_PROTO_STATUS_H

#include <stdbool.h>

enum status_scope { SCOPE_NONE, SCOPE_REQUEST, SCOPE_STEP, SCOPE_SESSION, SCOPE_JOB, SCOPE_NODE };

/* X(name, scope, grpc code, retry the same request?, default text, default hint: what to do next) */
#define STATUS_TABLE(X)                                                                                                \
	X(OK, NONE, 0, false, "ok", "")                                                                                \
	/* request: the caller's words are wrong or come at the wrong time */                                          \
	X(INVALID_ARGUMENT, REQUEST, 3, false, "invalid argument",                                                     \
	  "correct what the message names, then repeat the call")                                                      \
	X(INVALID_SPEC, REQUEST, 3, false, "invalid job specification",                                                \
	  "correct the specification; check a job file with: gaccctl config validate FILE")                            \
	X(INVALID_CONFIG, REQUEST, 3, false, "invalid configuration",                                                  \
	  "correct it, then check with: gaccd --check-config --config FILE")                                           \
	X(MALFORMED, REQUEST, 3, false, "malformed message",                                                           \
	  "send the message that proto/gacc/v1 describes; update the older side if versions differ")                   \
	X(LAYOUT_MISMATCH, REQUEST, 3, false, "tensor set differs from the declared one",                              \
	  "declare the same tensors in the same order on all ranks")                                                   \
	X(BAD_WEIGHT, REQUEST, 3, false, "weight must be finite and > 0",                                              \
	  "send the number of samples or tokens of the micro-batch")                                                   \
	X(BAD_SLOT, REQUEST, 3, false, "not a slot of this session",                                                   \
	  "slots are numbered from 0 to below `slots` of RegisterTensors' answer")                                     \
	X(OUT_OF_ORDER, REQUEST, 3, false, "micro-batches of a rank come in ascending order",                          \
	  "push the micro-batches of a window in ascending order")                                                     \
	X(DATA_KEY_MISMATCH, REQUEST, 3, false, "this micro-batch was counted with another data_key",                  \
	  "a micro-batch index names one set of samples")                                                              \
	X(RANK_OUT_OF_RANGE, REQUEST, 3, false, "no such rank",                                                        \
	  "check RANK, or the job's ranks")                                                                            \
	X(JOB_NOT_FOUND, REQUEST, 5, false, "no such job",                                                             \
	  "list jobs with: gaccctl jobs -a")                                                                           \
	X(ALREADY_EXISTS, REQUEST, 6, false, "exists already with another specification",                              \
	  "use another name, or the same specification")                                                               \
	X(WINDOW_CLOSED, REQUEST, 9, false, "the window closed without this micro-batch: not counted",                 \
	  "go on with the next window")                                                                                \
	X(WINDOW_FORGOTTEN, REQUEST, 9, false, "a window too long ago to tell whether this micro-batch is in it",      \
	  "go on with the open window")                                                                                \
	X(WINDOW_FULL, REQUEST, 9, false, "this rank has given all its micro-batches of the window",                   \
	  "call WaitStep, then push into the next window")                                                             \
	X(NOT_CURRENT_WINDOW, REQUEST, 9, false, "the window is not open yet",                                         \
	  "call WaitStep for the window before first")                                                                 \
	X(FLUSHED, REQUEST, 9, false, "this rank has flushed the window",                                              \
	  "wait for the window's outcome, then push into the next one")                                                \
	X(WINDOW_BEGUN, REQUEST, 9, false, "the window has begun",                                                     \
	  "name a later window, or 0 for the earliest")                                                                \
	X(PAUSED, REQUEST, 9, false, "the job is paused",                                                              \
	  "let it go on first: gaccctl resume JOB")                                                                    \
	X(LOSS_SCALE_MISMATCH, REQUEST, 9, false, "gradients carry another loss scale than the window's",              \
	  "use the loss_scale that WaitReady or WaitStep gave")                                                        \
	X(NONFINITE, REQUEST, 9, false, "non-finite gradient",                                                         \
	  "look at this rank's data and loss")                                                                         \
	X(NOT_READY, REQUEST, 9, false, "the job is not running yet",                                                  \
	  "call RegisterTensors and WaitReady first")                                                                  \
	X(JOB_ENDED, REQUEST, 9, false, "the job has ended",                                                           \
	  "submit a new job")                                                                                          \
	X(NOT_SUPPORTED, REQUEST, 9, false, "not supported here",                                                      \
	  "do without it")                                                                                             \
	X(VERSION_SKEW, REQUEST, 9, false, "no common protocol version",                                               \
	  "update the older side")                                                                                     \
	X(RESOURCE_EXHAUSTED, REQUEST, 8, false, "a limit is reached",                                                 \
	  "wait until earlier work is over, or raise the limit")                                                       \
	X(NO_SLOT, REQUEST, 8, true, "all slots are still mapped by earlier processes",                                \
	  "end the earlier processes of this rank, then attach again")                                                 \
	X(SLOT_BUSY, REQUEST, 9, false, "the slot is in use by another push",                                          \
	  "wait for that push to be acknowledged, or use the other slot")                                              \
	X(DEADLINE, REQUEST, 4, true, "the call's deadline has passed",                                                \
	  "give the call more time")                                                                                   \
	X(STALLED, REQUEST, 4, false, "timed out waiting for other ranks",                                             \
	  "see who is late with: gaccctl status JOB")                                                                  \
	X(PARAMS_CHANGED, REQUEST, 10, true, "parameters changed during the read",                                     \
	  "read them again")                                                                                           \
	X(CHECKSUM, REQUEST, 15, true, "checksum does not match",                                                      \
	  "send it again")                                                                                             \
	X(UNAUTHENTICATED, REQUEST, 16, false, "no identity",                                                          \
	  "use the unix socket, a client certificate, or send authorization: Bearer <token>")                          \
	X(PERMISSION_DENIED, REQUEST, 7, false, "permission denied",                                                   \
	  "call as the owner, or have the administrator allow what the message names")                                 \
	X(CANCELLED, REQUEST, 1, false, "cancelled",                                                                   \
	  "nothing was done; call again if that was not meant")                                                        \
	X(UNIMPLEMENTED, REQUEST, 12, false, "no such method",                                                         \
	  "server reflection lists the methods; update the older side if versions differ")                             \
	/* step: an attempt failed; the accumulators are intact */                                                     \
	X(ATTEMPT_FAILED, STEP, 10, true, "the attempt failed",                                                        \
	  "repeat the call")                                                                                           \
	X(STALE_ATTEMPT, STEP, 10, false, "an older attempt",                                                          \
	  "repeat the call")                                                                                           \
	X(STALE_TERM, STEP, 10, false, "an older coordinator",                                                         \
	  "repeat the call")                                                                                           \
	X(STALE_EPOCH, STEP, 10, false, "an older epoch",                                                              \
	  "attach again")                                                                                              \
	/* session */                                                                                                  \
	X(SESSION_FENCED, SESSION, 10, false, "a newer session of this rank exists",                                   \
	  "end this process")                                                                                          \
	X(SESSION_UNKNOWN, SESSION, 10, false, "no such session: attach again",                                        \
	  "attach again, then repeat the call")                                                                        \
	/* job: its engine or its memory */                                                                            \
	X(ENGINE_DOWN, JOB, 14, true, "the job's engine is restarting",                                                \
	  "repeat the call")                                                                                           \
	X(SEGMENT_CORRUPT, JOB, 15, false, "a shared segment does not hold what it should",                            \
	  "submit the job again, from its last checkpoint if it has one")                                              \
	X(ENGINE_FAILED, JOB, 10, false, "the job's engine cannot be started",                                         \
	  "mend what the message names, then submit the job again, from its last checkpoint if it has one")            \
	X(NO_MEMORY, JOB, 8, false, "out of memory",                                                                   \
	  "end other jobs or programs, or ask for less")                                                               \
	X(RANK_FAILED, JOB, 10, false, "a rank's process has failed",                                                  \
	  "look at its log: gaccctl logs JOB RANK")                                                                    \
	/* node */                                                                                                     \
	X(DRAINING, NODE, 14, true, "the daemon is stopping",                                                          \
	  "try again when the daemon has restarted")                                                                   \
	X(UNAVAILABLE, NODE, 14, true, "unavailable",                                                                  \
	  "repeat the call")                                                                                           \
	X(STORE_FAILED, NODE, 13, false, "the journal cannot be written",                                              \
	  "make room in state_dir; gaccd's log says more")                                                             \
	X(IO_ERROR, NODE, 13, false, "input/output error",                                                             \
	  "gaccd's log says more")                                                                                     \
	X(INTERNAL, NODE, 13, false, "internal error",                                                                 \
	  "gaccd's log says more; please report it")

enum status {
#define X(name, scope, code, retry, text, hint) ST_##name,
	STATUS_TABLE(X)
#undef X
	ST_COUNT
};

struct status_info {
	const char *name; /* "WINDOW_CLOSED" */
	const char *text;
	const char *hint; /* what to do next; "" for OK */
	enum status_scope scope;
	int grpc_code;
	bool retryable; /* the same request may succeed later */
};

/* Row of `st`; of INTERNAL for a value outside the table. Static storage. */
const struct status_info *status_info(enum status st);
/* Status with this name, or -1. */
int status_by_name(const char *name);

#endif

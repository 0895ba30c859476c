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

/* X(name, scope, grpc code, retry the same request?, default text) */
#define STATUS_TABLE(X)                                                                                        \
	X(OK, NONE, 0, false, "ok")                                                                            \
	/* request: the caller's words are wrong or come at the wrong time */                                  \
	X(INVALID_ARGUMENT, REQUEST, 3, false, "invalid argument")                                             \
	X(INVALID_SPEC, REQUEST, 3, false, "invalid job specification")                                        \
	X(INVALID_CONFIG, REQUEST, 3, false, "invalid configuration")                                          \
	X(MALFORMED, REQUEST, 3, false, "malformed message")                                                   \
	X(LAYOUT_MISMATCH, REQUEST, 3, false, "tensor set differs from the declared one")                      \
	X(BAD_WEIGHT, REQUEST, 3, false, "weight must be finite and > 0")                                      \
	X(BAD_SLOT, REQUEST, 3, false, "not a slot of this session")                                           \
	X(OUT_OF_ORDER, REQUEST, 3, false, "micro-batches of a rank come in ascending order")                  \
	X(DATA_KEY_MISMATCH, REQUEST, 3, false, "this micro-batch was counted with another data_key")          \
	X(RANK_OUT_OF_RANGE, REQUEST, 3, false, "no such rank")                                                \
	X(JOB_NOT_FOUND, REQUEST, 5, false, "no such job")                                                     \
	X(ALREADY_EXISTS, REQUEST, 6, false, "exists already with another specification")                      \
	X(WINDOW_CLOSED, REQUEST, 9, false, "the window closed without this micro-batch: not counted")         \
	X(WINDOW_FORGOTTEN, REQUEST, 9, false, "a window too long ago to tell whether this micro-batch is in it") \
	X(WINDOW_FULL, REQUEST, 9, false, "this rank has given all its micro-batches of the window")           \
	X(NOT_CURRENT_WINDOW, REQUEST, 9, false, "the window is not open yet")                                 \
	X(FLUSHED, REQUEST, 9, false, "this rank has flushed the window")                                      \
	X(LOSS_SCALE_MISMATCH, REQUEST, 9, false, "gradients carry another loss scale than the window's")      \
	X(NONFINITE, REQUEST, 9, false, "non-finite gradient")                                                 \
	X(NOT_READY, REQUEST, 9, false, "the job is not running yet")                                          \
	X(JOB_ENDED, REQUEST, 9, false, "the job has ended")                                                   \
	X(NOT_SUPPORTED, REQUEST, 9, false, "not supported here")                                              \
	X(VERSION_SKEW, REQUEST, 9, false, "no common protocol version")                                       \
	X(RESOURCE_EXHAUSTED, REQUEST, 8, false, "a limit is reached")                                         \
	X(NO_SLOT, REQUEST, 8, true, "all slots are still mapped by earlier processes")                        \
	X(SLOT_BUSY, REQUEST, 9, false, "the slot is in use by another push")                                  \
	X(DEADLINE, REQUEST, 4, true, "the call's deadline has passed")                                        \
	X(STALLED, REQUEST, 4, false, "timed out waiting for other ranks")                                     \
	X(PARAMS_CHANGED, REQUEST, 10, true, "parameters changed during the read")                             \
	X(CHECKSUM, REQUEST, 15, true, "checksum does not match")                                              \
	X(UNAUTHENTICATED, REQUEST, 16, false, "no identity")                                                  \
	X(PERMISSION_DENIED, REQUEST, 7, false, "permission denied")                                           \
	X(CANCELLED, REQUEST, 1, false, "cancelled")                                                           \
	X(UNIMPLEMENTED, REQUEST, 12, false, "no such method")                                                 \
	/* step: an attempt failed; the accumulators are intact */                                             \
	X(ATTEMPT_FAILED, STEP, 10, true, "the attempt failed")                                                \
	X(STALE_ATTEMPT, STEP, 10, false, "an older attempt")                                                  \
	X(STALE_TERM, STEP, 10, false, "an older coordinator")                                                 \
	X(STALE_EPOCH, STEP, 10, false, "an older epoch")                                                      \
	/* session */                                                                                          \
	X(SESSION_FENCED, SESSION, 10, false, "a newer session of this rank exists")                           \
	X(SESSION_UNKNOWN, SESSION, 10, false, "no such session: attach again")                                \
	/* job: its engine or its memory */                                                                    \
	X(ENGINE_DOWN, JOB, 14, true, "the job's engine is restarting")                                        \
	X(SEGMENT_CORRUPT, JOB, 15, false, "a shared segment does not hold what it should")                    \
	X(NO_MEMORY, JOB, 8, false, "out of memory")                                                           \
	/* node */                                                                                             \
	X(DRAINING, NODE, 14, true, "the daemon is stopping")                                                  \
	X(UNAVAILABLE, NODE, 14, true, "unavailable")                                                          \
	X(STORE_FAILED, NODE, 13, false, "the journal cannot be written")                                      \
	X(IO_ERROR, NODE, 13, false, "input/output error")                                                     \
	X(INTERNAL, NODE, 13, false, "internal error")

enum status {
#define X(name, scope, code, retry, text) ST_##name,
	STATUS_TABLE(X)
#undef X
	ST_COUNT
};

struct status_info {
	const char *name; /* "WINDOW_CLOSED" */
	const char *text;
	enum status_scope scope;
	int grpc_code;
	bool retryable; /* the same request may succeed later */
};

/* Row of `st`; of INTERNAL for a value outside the table. Static storage. */
const struct status_info *status_info(enum status st);
/* Status with this name, or -1. */
int status_by_name(const char *name);

#endif

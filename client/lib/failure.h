/* SPDX-License-Identifier: Apache-2.0 */
/* The last thing that went wrong, as a caller reads it: a code, a sentence that says what, where and what to do next,
 * and the parts a program may want. Also the one place where enum status becomes gacc_status.
 *
 * Not locked: a job's belongs to its thread, a client's is guarded by the client.
 */
#ifndef GACC_CLIENT_FAILURE_H
#define GACC_CLIENT_FAILURE_H

#include "gacc/gacc.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_failure;

struct failure {
	gacc_status code;
	enum status st;
	char reason[64]; /* name of the status table */
	/* all of them with what would act on a terminal escaped (proto/utf8.h) */
	char text[1024];   /* the sentence, hint included */
	char message[512]; /* what went wrong, alone */
	char hint[256];	   /* what to do next; "" */
};

gacc_status gacc_status_of(enum status st);
/* The window went on without this micro-batch, or too long ago to tell: the loop goes on with the open one. */
static inline int failure_is_late(const struct failure *f)
{
	return f->st == ST_WINDOW_CLOSED || f->st == ST_WINDOW_FORGOTTEN;
}

/* Sets all from a status and a sentence; returns its code. ST_OK is no failure. */
gacc_status failure_set(struct failure *f, enum status st, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* From what a call reported. `what` is the thing that was tried: "push of micro-batch 3 of window 12 (job 7, rank 2)".
 */
gacc_status failure_of_rpc(struct failure *f, const char *what, const struct rpc_failure *rpc);
/* A copy without looking into it. */
gacc_status failure_copy(struct failure *to, const struct failure *from);

/* gaccd is out of reach and is expected back: the caller should repeat what failed. */
bool is_outage(const struct rpc_failure *failure);

#endif

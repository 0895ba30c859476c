/* SPDX-License-Identifier: Apache-2.0 */
/* Which job and rank this process is, from its caller or its environment, and what the environment switches off.
 *
 * Each launcher sets a pair of variables, rank and world size. The first pair of the table in env.c that is set wins,
 * as a pair: half a pair is an error, never mixed with another launcher's half. What the caller gives wins over all.
 */
#ifndef GACC_CLIENT_ENV_H
#define GACC_CLIENT_ENV_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Value of a variable or NULL, as getenv(); `ctx` for tests. An empty value counts as unset. */
typedef const char *(*env_get)(void *ctx, const char *name);

struct identity {
	const char *job; /* borrowed from the caller or the environment; NULL: none given */
	int rank, world;
	const char *source; /* "argument" or the name of the variable that gave the rank; static storage */
};

/* Fills `out_id` from the arguments (job NULL, rank and world -1: not given). ST_INVALID_ARGUMENT with a sentence
 * in `err` when something is missing or no number. The job may stay NULL: the caller decides. */
enum status identity_find(const char *job, int rank, int world, env_get get, void *ctx, struct identity *out_id,
			  char *err, size_t err_size);

/* env_get on the process environment. */
const char *env_process(void *ctx, const char *name);

/* May the library print? GACC_QUIET=1: no. */
bool env_may_say(void);
/* GACC_MAILBOX=0: no. */
bool env_wants_mailbox(void);

#endif

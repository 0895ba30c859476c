/* SPDX-License-Identifier: Apache-2.0 */
/* Values that trainers log under a name ("accuracy"), on their way into the history: those that are not written yet,
 * and the newest of each name.
 *
 * Of one name and window the value of the lowest rank counts, and of that rank the last. All sizes are fixed, so a job
 * that logs costs no more than this struct. Loop thread.
 */
#ifndef GACC_RUNTIME_SCALARS_H
#define GACC_RUNTIME_SCALARS_H

#include "store/history.h"

#define SCALARS_NAMES 64  /* of a job */
#define SCALARS_WINDOWS 9 /* the open one, and those before it that may still get values */
#define SCALARS_WAITING (SCALARS_NAMES * SCALARS_WINDOWS)

struct scalars {
	uint32_t n_names, n_waiting;
	uint64_t refused; /* values that were not kept for want of room, and not told yet */
	int64_t told_ns;
	struct history_scalar newest[SCALARS_NAMES]; /* of each name */
	struct {
		uint64_t window;
		double value;
		uint32_t name, rank;
	} waiting[SCALARS_WAITING];
};

/* Whether the name may be used: 1 to HISTORY_SCALAR_NAME - 1 bytes of UTF-8 that can be shown, and one of at most
 * SCALARS_NAMES. INVALID_ARGUMENT: `why` says what is wrong. */
enum status scalars_check(const struct scalars *, const char *name, char *why, size_t n_why);
/* Would a value of this name and window take a place, or that of one that waits already? */
bool scalars_takes_place(const struct scalars *, uint64_t window, const char *name);
/* A name that scalars_check has passed. false: there is no room, scalars_take makes some. Any value. */
bool scalars_put(struct scalars *, uint64_t window, uint32_t rank, const char *name, double value);
/* Calls `fn` for the values that have waited longest, `most` of them; they wait no more. */
void scalars_take(struct scalars *, size_t most, void (*fn)(void *arg, const struct history_scalar *), void *arg);

#endif

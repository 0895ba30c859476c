/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states on a node: the newest one of each rank, those that are coming in portions, and those that a
 * checkpoint under way is to have.
 *
 * A state belongs to a window: it is what its trainer was before its first push of that window. A checkpoint of a
 * window has the states of that window and no others. Which ranks it waits for: those that have put a state before, and
 * can still put that of the window.
 *
 * Pure; one thread. The bytes are of no meaning here, and nothing is believed of a portion.
 */
#ifndef GACC_CONTROL_RANK_STATES_H
#define GACC_CONTROL_RANK_STATES_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rank_states;

struct rank_states_limits {
	size_t rank;	   /* bytes of one state */
	size_t all;	   /* of the newest ones of all ranks, or of what comes in their place */
	const char *whose; /* whose `all` is, for people: "all ranks"; kept by the caller */
};

/* NULL: no memory. */
struct rank_states *rank_states_new(uint32_t ranks, struct rank_states_limits);
void rank_states_free(struct rank_states *); /* takes NULL */
/* Bytes of all states that are kept, also of those that only a checkpoint still has. */
size_t rank_states_bytes(const struct rank_states *);

struct state_portion {
	uint32_t rank;
	uint32_t called; /* the rank's number in its job, for people */
	uint64_t window;
	uint64_t total; /* bytes of the whole state; 0: the rank has none any more, and none is waited for */
	uint64_t offset;
	const void *data;
	size_t n;
};
/* What it would add to rank_states_bytes: the first portion of a state brings all of it. */
size_t rank_states_need(const struct rank_states *, const struct state_portion *);
/* *out_received: bytes of this state so far; with `total` it is the rank's newest. One that came before is answered
 * alike. RESOURCE_EXHAUSTED: above a limit; OUT_OF_ORDER: a portion before it is missing; INVALID_ARGUMENT; NO_MEMORY;
 * `why` says what is wrong. Then the rank's newest state is what it was. */
enum status rank_states_put(struct rank_states *, const struct state_portion *, uint64_t *out_received, char *why,
			    size_t n_why);
/* A state from elsewhere, for a rank that has put none: copied. NO_MEMORY. */
enum status rank_states_restore(struct rank_states *, uint32_t rank, uint64_t window, const void *data, size_t n);

struct rank_state {
	uint64_t window;
	const void *data;
	size_t n;
};
/* The newest one; false: there is none. Good until the next put of this rank. */
bool rank_states_get(const struct rank_states *, uint32_t rank, struct rank_state *out);

/* A checkpoint of this window has begun: the states of it, those that are here and those that come, are kept until
 * rank_states_release. One before it is released. */
void rank_states_capture(struct rank_states *, uint64_t window);
/* How many ranks have put states before and may still put that of the captured window; the first of them in
 * *out_first. */
uint32_t rank_states_awaited(const struct rank_states *, bool (*can_come)(const void *ctx, uint32_t rank),
			     const void *ctx, uint32_t *out_first);
/* The captured state of a rank; false: there is none. Good until rank_states_release, whatever is put meanwhile. */
bool rank_states_captured(const struct rank_states *, uint32_t rank, struct rank_state *out);
void rank_states_release(struct rank_states *);

#endif

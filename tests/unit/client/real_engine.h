/* SPDX-License-Identifier: Apache-2.0 */
/* A real engine with a job of two ranks and their mailboxes (../engine/boxes_rig.h), for tests of the library, whose
 * headers do not go together with the engine's. Functions fail the test on errors. */
#ifndef GACC_TEST_CLIENT_REAL_ENGINE_H
#define GACC_TEST_CLIENT_REAL_ENGINE_H

#include "lib/cells.h"

#include <stdbool.h>
#include <stdint.h>

#define REAL_JOB 7
#define REAL_RANKS 2
#define REAL_MICRO 2
#define REAL_SLOTS 2 /* of a rank */

/* The engine has the mailboxes; or they are made, and it does not know of them. */
void real_begin(bool given);
void real_end(void);
void real_give(uint32_t rank);
void real_kill(void);
/* Another engine, with the mailboxes. */
void real_start(void);
uint64_t real_tensors(void);
/* Puts a NaN into this slot of the rank: a push of it is void. */
void real_poison(uint32_t rank, uint32_t slot);
/* Puts this value into the first element of the slot. */
void real_set(uint32_t rank, uint32_t slot, double value);
/* For cells_open, which takes them. */
struct cells_fds real_fds(uint32_t rank);
void real_set_closed(uint32_t rank);

/* A push as gaccd sends it on. */
struct real_push {
	uint64_t window, data_key;
	uint32_t rank, micro, slot; /* slot: of the rank */
	double weight, loss, loss_scale, lr;
};
struct real_answer {
	enum status st;
	uint32_t result, counted;
	char text[256];
};
/* Sends it on; the answer comes later, when the push has to wait for another rank's. */
uint64_t real_send(const struct real_push *);
struct real_answer real_receive(uint64_t id);

/* The window is closed and reduced. */
struct real_outcome {
	uint64_t count, digest;
	double sum_weight, sum_loss, sumsq;
};
struct real_outcome real_close(void);
/* It is over, with this result; micro_count is those of real_close. */
void real_commit(double divisor);
/* Pushes that the record has. */
uint64_t real_count(void);

#endif

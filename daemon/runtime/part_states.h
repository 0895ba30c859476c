/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states of a part: what its ranks have put (control/rank_states.h), what the checkpoint has that the
 * job began with, and the file that a checkpoint gets of them, which the coordinator puts together with those of the
 * other parts. Ranks are the job's here. Loop thread; the pool reads and writes the files.
 */
#ifndef GACC_RUNTIME_PART_STATES_H
#define GACC_RUNTIME_PART_STATES_H

#include "control/rank_states.h"
#include "runtime/part.h"

/* A portion of a rank's state, whose session is in force. NOT_SUPPORTED, NOT_CURRENT_WINDOW, WINDOW_CLOSED,
 * WINDOW_BEGUN: the rank has given something to the window; and those of rank_states_put, with `why` and, perhaps,
 * *out_hint. */
enum status part_put_state(struct part *, const struct state_portion *, uint64_t *out_received, const char **out_hint,
			   char *why, size_t n_why);
/* The newest state of a rank; data NULL: there is none. Good until the loop turns. ENGINE_DOWN: that of the checkpoint
 * is being read, and the caller asks again; else why it cannot be had. */
enum status part_get_state(struct part *, uint32_t rank, struct rank_state *out, const char **out_hint, char *why,
			   size_t n_why);

/* ---- for part_saving.c ---- */
/* May an engine begin with a checkpoint? Not while the file of the one before is being written. */
bool part_states_ready(const struct part *);
/* It has begun with one of this window. */
void part_states_begin(struct part *, uint64_t window);
/* The engine has written its files of it. true: states are to come, or to be written: part_saving_written follows. */
bool part_states_take(struct part *, uint64_t command, const struct part_saved *, const struct save *wanted);
/* One that has nothing but states of this part begins: part_saving_written follows, from part_states_look or later.
 * false: no memory. */
bool part_states_begin_alone(struct part *, uint64_t command, const struct save *wanted);
/* The ranks may have put what is waited for, or the checkpoint is no longer wanted. */
void part_states_look(struct part *);
/* The engine has died: what it has written does not count. */
void part_states_on_engine_lost(struct part *);
void part_states_free(struct part *);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A job right before an update: its memory is mapped here, and no engine runs. */
#ifndef GACC_TEST_ENGINE_UPDATE_JOB_H
#define GACC_TEST_ENGINE_UPDATE_JOB_H

#include "engine/update.h"
#include "rig.h"

#define WINDOW 5
#define N_OPTIMIZERS 5
#define N_ROLES 4

extern struct rig rig;
extern struct memory mem;
extern struct workers *workers;
extern struct update *update;
extern struct control_record record;
extern struct sum_view sum;	      /* accumulator 0 */
extern const uint32_t roles[N_ROLES]; /* that an update writes */

/* Bytes of all segments that an update writes. */
struct image {
	void *data[N_ROLES];
};
struct image save_image(void);
void load_image(const struct image *);
bool equals_image(const struct image *);
void free_image(struct image *);

struct optim_config optimizer(int i); /* i < N_OPTIMIZERS */
/* n workers: 1 in tests that fork, since a process with threads should not. */
void open_update(struct rig_config, uint32_t n);
void close_update(void);
/* As before the update, with nothing left of an earlier one that could help. */
void begin_again(const struct image *before);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine with its job in a device's memory, beside one with the same job in shared memory: the same commands,
 * the same answers, the same bits. Two ranks, two micro-batches; one pair in a process. */
#ifndef GACC_TEST_GPU_ENGINE_PAIR_H
#define GACC_TEST_GPU_ENGINE_PAIR_H

#include "unit/engine/rig.h"

#define SLOTS 4

extern struct rig host, gpu;
extern bool on_host; /* the slots, and what trainers see of the parameters; before pair_open */

/* 0: SGD, 1: AdamW, 2: LAMB. */
struct rig_config pair_config(int optimizer);
void pair_open(struct rig_config); /* without engines */
void pair_begin(struct rig_config);
void pair_end(void);
/* All slots, of both. */
void pair_fill(uint64_t window);
/* The host's slot `from` as it is now goes to the device's slot `slot`, by the descriptor that gaccd would have handed
 * to the trainer. */
void pair_give(uint32_t from, uint32_t slot);
/* A trainer changes this byte of the parameters, in both; not with on_host. */
void pair_alter(uint64_t at);
/* The slot of the i-th push in canonical order: (rank 0, micro 0), (1, 0), (0, 1), (1, 1). */
uint32_t pair_nth(uint32_t i);
void pair_add(uint32_t i);
void pair_add_present(uint32_t i, unsigned char present); /* bit t: tensor t is touched */
void pair_init(void);
void pair_same_params(void); /* as trainers see them */
void pair_step(void);
void pair_window(void); /* fills, adds all, steps */

#endif

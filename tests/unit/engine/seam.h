/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the seam share: a small job, its recorder, and the commands of a window. Two ranks, two
 * micro-batches. */
#ifndef GACC_TEST_ENGINE_SEAM_H
#define GACC_TEST_ENGINE_SEAM_H

#include "recorder.h"

extern struct rig rig;
extern struct recorder rec;

/* rig_small with AdamW; void micro-batches are rejected. */
struct rig_config seam_config(void);
/* Memory, filled slots, an engine on the recorder, all ranks attached; and the end of all that. */
void seam_begin(struct rig_config);
void seam_end(void);
void seam_attach(void);

/* Gives a command; its answer must be the next. */
struct engine_answer seam_command(struct engine_command);
/* So many answers, all ST_OK. */
void seam_drain(int answers);
/* Queues a push; push_pass adds it. */
void seam_push(uint32_t rank, uint32_t micro);
/* All pushes of a window, in two passes; forgets what was asked for. */
void seam_fill_window(void);
struct engine_command seam_put(void); /* declares the parameters ready */
struct engine_command seam_go(uint64_t attempt, bool norms);
struct engine_command seam_commit(uint64_t attempt);

/* A process works on the rig's memory until operation `op` fails. Its exit code; it has answered and published nothing
 * since. */
int seam_run_to_failure(const char *op, void (*work)(const char *op));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the API shows of a job: messages filled in from control's structs. Any thread; a struct coord is read on the
 * loop thread alone. */
#ifndef GACC_EDGE_CONVERT_H
#define GACC_EDGE_CONVERT_H

#include "control/coordinator.h"

struct Gacc__V1__Checkpoint;
struct Gacc__V1__Counters;
struct Gacc__V1__StepResult;
struct Gacc__V1__RankStatus;
struct Gacc__V1__Event;
struct history_event;
struct saved;

/* Fill an initialised message. */
void convert_step(const struct commit *, struct Gacc__V1__StepResult *out);
void convert_counters(const struct counters *, struct Gacc__V1__Counters *out);
/* Lends the texts. */
void convert_checkpoint(const struct saved *, struct Gacc__V1__Checkpoint *out);
/* A message for free with gacc__v1__event__free_unpacked; NULL: no memory. */
struct Gacc__V1__Event *convert_event(const struct history_event *);
/* Fills an initialised message; `detail` (n bytes) is its text's storage. */
void convert_rank(const struct coord *, const struct rank_progress *, struct now, struct Gacc__V1__RankStatus *out,
		  char *detail, size_t n);

#endif

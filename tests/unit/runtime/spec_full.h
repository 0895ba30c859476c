/* SPDX-License-Identifier: Apache-2.0 */
/* A message gacc.v1.JobSpec in which all fields are set, each to a value of its own, and which is taken. */
#ifndef GACC_TESTS_SPEC_FULL_H
#define GACC_TESTS_SPEC_FULL_H

#include "gacc/v1/common.pb-c.h"
#include "runtime/spec_message.h"

extern Gacc__V1__JobSpec full;
/* of it; `group` is the first of two */
extern Gacc__V1__Optimizer optimizer;
extern Gacc__V1__Schedule schedule;
extern Gacc__V1__ParamGroup group;
extern Gacc__V1__InitRule rule;
extern Gacc__V1__Launch launch;
extern Gacc__V1__Label variable;
extern Gacc__V1__DynamicLossScale dynamic;
extern Gacc__V1__OutlierSkip outliers;
extern Gacc__V1__CheckpointPolicy checkpoint;

/* Sets all of it (anew). */
void spec_full(void);
/* It is taken; for job_spec_fini. */
struct job_spec spec_full_take(void);

#endif

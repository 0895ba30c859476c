/* SPDX-License-Identifier: Apache-2.0 */
/* What a test draws by the commit, so that each commit tries other cases. */
#ifndef GACC_TESTS_SAMPLE_H
#define GACC_TESTS_SAMPLE_H

#include <stdint.h>

/* A number below a million that GACC_SAMPLE in the environment determines (tests/stages.sh sets it). */
uint64_t sample_seed(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of a job for its tests: an engine that takes every command and answers nothing by itself, processes that live,
 * tokens by counting. */
#ifndef GACC_TESTS_JOB_FAKES_H
#define GACC_TESTS_JOB_FAKES_H

#include "control/job.h"

#define FAKE_COMMANDS 64

extern struct engine_command sent[FAKE_COMMANDS]; /* all commands of the test, which sets n_sent to 0 */
extern int n_sent;
extern uint8_t n_tokens; /* the next one consists of n_tokens + 1 */

bool fake_send(void *ctx, uint64_t job, const struct engine_command *c, const void *present);
void fake_allocate(void *ctx, uint64_t job);
void fake_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text);
bool fake_alive(void *ctx, int64_t pid, uint64_t start_time);
void fake_random(void *ctx, uint8_t out[16]);

#endif

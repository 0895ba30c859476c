/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of job_fakes.h. */
#include "job_fakes.h"

#include <check.h>
#include <string.h>

struct engine_command sent[FAKE_COMMANDS];
int n_sent;
uint8_t n_tokens;

bool fake_send(void *ctx, uint64_t job, const struct engine_command *c, const void *present)
{
	ck_assert_int_lt(n_sent, FAKE_COMMANDS);
	sent[n_sent++] = *c;
	return true;
}

void fake_allocate(void *ctx, uint64_t job)
{
}

void fake_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
}

bool fake_alive(void *ctx, int64_t pid, uint64_t start_time)
{
	return true;
}

void fake_random(void *ctx, uint8_t out[16])
{
	memset(out, ++n_tokens, 16);
}

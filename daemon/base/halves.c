/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes and reads records of two halves, for the engine's control segment and those in gaccd who read it. Any
 * thread. */
#include "base/halves.h"

#include "proto/failpoint.h"

#include <string.h>
#include <xxhash.h>

#define NUMBER sizeof(uint64_t)

static unsigned char *half_of(const struct halves *h, unsigned half)
{
	return h->base + (half & 1) * h->bytes;
}

static uint64_t compute(const struct halves *h, const unsigned char *record, uint64_t seq)
{
	return XXH3_64bits_withSeed(record + NUMBER, h->bytes - 2 * NUMBER, seq);
}

void halves_publish(const struct halves *h, unsigned char *image, uint64_t seq)
{
	unsigned char *record = half_of(h, seq & 1);
	uint64_t sum = compute(h, image, seq);
	memcpy(image, &seq, NUMBER);
	memcpy(image + h->bytes - NUMBER, &sum, NUMBER);
	memcpy(record + NUMBER, image + NUMBER, h->bytes - NUMBER);
	FAILPOINT(engine_page_filled);
	__atomic_store_n((uint64_t *)record, seq, __ATOMIC_RELEASE);
	FAILPOINT(engine_page_published);
}

uint64_t halves_number(const struct halves *h, unsigned half)
{
	return __atomic_load_n((const uint64_t *)half_of(h, half), __ATOMIC_ACQUIRE);
}

bool halves_copy(const struct halves *h, unsigned char *image, unsigned half)
{
	uint64_t seq, sum;
	memcpy(image, half_of(h, half), h->bytes);
	memcpy(&seq, image, NUMBER);
	memcpy(&sum, image + h->bytes - NUMBER, NUMBER);
	return seq && (seq & 1) == (half & 1) && sum == compute(h, image, seq);
}

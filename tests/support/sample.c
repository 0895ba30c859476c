/* SPDX-License-Identifier: Apache-2.0 */
/* The seed of what is only sampled (sample.h). */
#include "support/sample.h"

#include <stdlib.h>

uint64_t sample_seed(void)
{
	const char *text = getenv("GACC_SAMPLE");
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

	for (; text && *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3u;
	return h % 1000000;
}

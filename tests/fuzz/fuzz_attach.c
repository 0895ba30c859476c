/* SPDX-License-Identifier: Apache-2.0 */
/* A packet of the attach socket. */
#include "host/map_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct map_request q;
	char why[256] = "";
	memset(&q, 0xa5, sizeof(q));
	struct map_request before = q;
	enum status st = map_request_parse(data, n, &q, why, sizeof(why));
	if (st && (!*why || memcmp(&q, &before, sizeof(q))))
		abort(); /* an error says what is wrong and leaves everything as it was */
	return 0;
}

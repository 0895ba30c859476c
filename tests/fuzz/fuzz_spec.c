/* SPDX-License-Identifier: Apache-2.0 */
/* Job files, as gaccctl reads them. */
#include "lib/spec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct Gacc__V1__JobSpec *spec = NULL;
	char why[512] = "";
	enum status st = spec_parse((const char *)data, n, "fuzz", &spec, why, sizeof(why));
	if (st && (spec || !*why))
		abort(); /* an error says what is wrong and leaves nothing behind */
	spec_free(spec);
	return 0;
}

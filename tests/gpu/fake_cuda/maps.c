/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/self/maps. */
#include "maps.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

unsigned maps_find(char *at, size_t n, struct maps_range *out, unsigned max)
{
	const uintptr_t end = (uintptr_t)at + n;
	uintptr_t next = (uintptr_t)at, from, to;
	char line[4096], mode[8];
	unsigned found = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	if (!f)
		return 0;
	while (next < end && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &from, &to, mode) != 3 || to <= next)
			continue;
		if (from > next)
			break; /* a hole */
		if (to > end)
			to = end;
		if (found < max)
			out[found] = (struct maps_range){ (char *)next, to - next, mode[0] == 'r', mode[1] == 'w',
							  mode[3] == 's' };
		found++;
		next = to;
	}
	fclose(f);
	return next >= end ? found : 0;
}

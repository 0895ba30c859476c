/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which ended job is deleted when there are more than are kept, so that no user's jobs push out those of a
 * user with fewer. For edge/hosted_retire.c. Pure, no state; any thread. */
#include "control/forget.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* Index of the first that is not below uid. */
static size_t lower_bound(const uint32_t *sorted, size_t n, uint64_t uid)
{
	size_t lo = 0;
	while (n) {
		size_t half = n / 2;
		if (sorted[lo + half] < uid) {
			lo += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return lo;
}

size_t forget_choose(const uint32_t *uid, size_t n, uint32_t *scratch, size_t *out_lead)
{
	size_t most = 0, second = 0;
	memcpy(scratch, uid, n * sizeof(*uid));
	qsort(scratch, n, sizeof(*scratch), compare);
	for (size_t i = 0, from = 0; i < n; i++) {
		if (scratch[i] != scratch[from])
			from = i;
		if (i + 1 < n && scratch[i + 1] == scratch[from])
			continue;
		size_t count = i + 1 - from;
		second = count > most ? most : count > second ? count : second;
		most = count > most ? count : most;
	}
	*out_lead = most > second ? most - second : 1;
	size_t i = 0;
	while (lower_bound(scratch, n, (uint64_t)uid[i] + 1) - lower_bound(scratch, n, uid[i]) < most)
		i++;
	return i;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers which refused certificates have been told, those of strangers apart from those of known authorities. For
 * credentials.c. */
#include "rpc/refusals.h"

#include <stdio.h>
#include <string.h>

bool refusals_add(struct refusals *r, const char *why, bool known, time_t now, bool *out_last)
{
	struct refusal *all = known ? r->known : r->strangers, *free_one = NULL;
	const int n = known ? REFUSALS_KNOWN : REFUSALS_STRANGERS;
	int n_free = 0;
	for (int i = 0; i < n; i++) {
		if (all[i].at && now - all[i].at >= REFUSALS_AGAIN_S)
			all[i].at = 0;
		if (all[i].at && !strcmp(all[i].why, why))
			return false;
		if (!all[i].at)
			free_one = &all[i], n_free++;
	}
	if (!free_one)
		return false;
	free_one->at = now + !now;
	snprintf(free_one->why, sizeof(free_one->why), "%s", why);
	*out_last = n_free == 1;
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/status.h"

#include <string.h>

static const struct status_info table[ST_COUNT] = {
#define X(name, code, retry, text, hint) [ST_##name] = { #name, text, hint, code, retry },
	STATUS_TABLE(X)
#undef X
};

const struct status_info *status_info(enum status st)
{
	if ((unsigned)st >= ST_COUNT)
		st = ST_INTERNAL;
	return &table[st];
}

int status_by_name(const char *name)
{
	for (int i = 0; i < ST_COUNT; i++)
		if (!strcmp(table[i].name, name))
			return i;
	return -1;
}

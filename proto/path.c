/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void put_name(FILE *f, const char *name)
{
	for (const char *p = name; *p; p++)
		fputc(*p == '/' || (*p == '.' && p == name) ? '_' : *p, f);
}

void uuid_text(const uint8_t u[16], char out[UUID_TEXT])
{
	snprintf(out, UUID_TEXT, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		 u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

char *path_expand(const char *pattern, uint64_t id, const char *name, const char *uuid)
{
	char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);
	if (!f)
		return NULL;
	for (const char *p = pattern; *p; p++) {
		if (p[0] == '%' && p[1] == 'j')
			fprintf(f, "%" PRIu64, id);
		else if (p[0] == '%' && p[1] == 'x')
			put_name(f, name);
		else if (p[0] == '%' && p[1] == 'u')
			fputs(uuid, f);
		else if (p[0] == '%' && p[1] == '%')
			fputc('%', f);
		else {
			fputc(*p, f);
			continue;
		}
		p++;
	}
	if (!fclose(f))
		return out;
	free(out);
	return NULL;
}

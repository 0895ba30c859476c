#include "proto/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void put_name(FILE *f, const char *name)
{
	for (const char *p = name; *p; p++)
		fputc(*p == '/' || (*p == '.' && p == name) ? '_' : *p, f);
}

char *path_expand(const char *pattern, uint64_t id, const char *name)
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

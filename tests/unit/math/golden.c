/* SPDX-License-Identifier: Apache-2.0 */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RECORDS 512

static struct record {
	char name[64];
	uint32_t element_bytes;
	uint64_t count;
	void *data;
} records[MAX_RECORDS];
static size_t n_records;

static void die(const char *path, const char *what)
{
	fprintf(stderr, "%s: %s\n", path, what);
	abort();
}

static void must_read(FILE *f, void *to, size_t bytes, const char *path)
{
	if (fread(to, 1, bytes, f) != bytes)
		die(path, "ends in a record");
}

/* False at the end of the file. */
static int read_record(FILE *f, const char *path)
{
	struct record *r = &records[n_records];
	uint32_t length;
	if (fread(&length, sizeof(length), 1, f) != 1)
		return 0;
	if (n_records == MAX_RECORDS || length >= sizeof(r->name))
		die(path, "has too many records or too long a name");
	must_read(f, r->name, length, path);
	must_read(f, &r->element_bytes, sizeof(r->element_bytes), path);
	must_read(f, &r->count, sizeof(r->count), path);
	size_t bytes = r->count * r->element_bytes;
	r->data = aligned_alloc(64, (bytes + 127) / 64 * 64);
	if (!r->data)
		die(path, "does not fit in memory");
	must_read(f, r->data, bytes, path);
	n_records++;
	return 1;
}

void golden_load(const char *path)
{
	char magic[8];
	FILE *f = fopen(path, "rb");
	if (!f)
		die(path, "cannot be opened");
	must_read(f, magic, sizeof(magic), path);
	if (memcmp(magic, "GOLDEN01", sizeof(magic)) != 0)
		die(path, "is not a golden file");
	while (read_record(f, path))
		;
	fclose(f);
}

void golden_unload(void)
{
	while (n_records)
		free(records[--n_records].data);
	memset(records, 0, sizeof(records));
}

const void *golden_find(const char *name, size_t element_bytes, size_t *n)
{
	for (size_t i = 0; i < n_records; i++)
		if (strcmp(records[i].name, name) == 0 && records[i].element_bytes == element_bytes) {
			*n = records[i].count;
			return records[i].data;
		}
	*n = 0;
	return NULL;
}

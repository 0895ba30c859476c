/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file with any bytes in it: as it is, and as the header of a file whose data has as many bytes as the
 * first two say, because no mutation finds a length that fits. What is accepted covers its data and is written back the
 * same. */
#include "store/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void check(const struct safetensors *s, uint64_t file_bytes)
{
	size_t n, n_head;
	const struct safe_tensor *t = safetensors_all(s, &n);
	uint64_t at = 0, data = file_bytes - safetensors_data_offset(s);
	struct safe_tensor *copy = calloc(n + 1, sizeof(*copy));
	struct safetensors *again;
	void *head;
	char why[256];
	for (size_t i = 0; i < n; at = t[i++].end) {
		if (t[i].begin != at || t[i].end > data || safetensors_find(s, t[i].name) != &t[i])
			abort();
		copy[i] = t[i];
	}
	if (at != data || safetensors_header(copy, n, NULL, 0, &head, &n_head) ||
	    safetensors_parse("again", head, n_head, n_head + data, &again, why, sizeof(why)))
		abort();
	for (size_t i = 0; i < n; i++)
		if (copy[i].begin != t[i].begin || copy[i].end != t[i].end)
			abort();
	safetensors_free(again);
	free(head);
	free(copy);
}

static void parse(const void *head, size_t n, uint64_t file_bytes)
{
	struct safetensors *s;
	char why[256];
	if (safetensors_parse("fuzz", head, n, file_bytes, &s, why, sizeof(why)))
		return;
	check(s, file_bytes);
	safetensors_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	parse(data, n, n);
	if (n < 2)
		return 0;
	uint64_t length = n - 2;
	uint8_t *file = malloc(8 + length);
	memcpy(file, &length, 8);
	memcpy(file + 8, data + 2, length);
	parse(file, 8 + length, 8 + length + (data[0] | (uint64_t)data[1] << 8));
	free(file);
	return 0;
}

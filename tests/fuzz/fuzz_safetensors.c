/* A safetensors file with any bytes in it. What is accepted covers its data and is written back the same. */
#include "store/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void check(const struct safetensors *s, size_t file_bytes)
{
	size_t n, n_head;
	const struct safe_tensor *t = safetensors_all(s, &n);
	uint64_t at = 0, data = file_bytes - safetensors_data_offset(s);
	struct safe_tensor *copy = calloc(n + 1, sizeof(*copy));
	struct safetensors *again;
	void *head;
	char why[256];
	for (size_t i = 0; i < n; at = t[i++].end) {
		if (t[i].begin != at || t[i].end > data)
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct safetensors *s;
	char why[256];
	if (safetensors_parse("fuzz", data, n, n, &s, why, sizeof(why)))
		return 0;
	check(s, n);
	safetensors_free(s);
	return 0;
}

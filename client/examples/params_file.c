/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the perceptron's parameters as a safetensors file, to
 * compare trainers and references. One thread. */
#include "params_file.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

enum { HEADER_MAX = 1024 };

/* 8 bytes of length, then JSON padded with spaces to a multiple of 8; returns the size of both. */
static size_t make_header(char header[HEADER_MAX])
{
	char *json = header + 8;
	size_t n = 0, at = 0;

	for (int t = 0; t < MLP_TENSORS; t++) {
		const struct mlp_tensor *x = &mlp_tensors[t];
		size_t end = at + x->count * sizeof(float);
		n += (size_t)snprintf(json + n, HEADER_MAX - 8 - n, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld",
				      t ? ',' : '{', x->name, (long long)x->shape[0]);
		if (x->n_dims == 2)
			n += (size_t)snprintf(json + n, HEADER_MAX - 8 - n, ",%lld", (long long)x->shape[1]);
		n += (size_t)snprintf(json + n, HEADER_MAX - 8 - n, "],\"data_offsets\":[%zu,%zu]}", at, end);
		at = end;
	}
	json[n++] = '}';
	while (n % 8)
		json[n++] = ' ';
	uint64_t length = n;
	memcpy(header, &length, 8);
	return 8 + n;
}

static int complain(const char *path, const char *what, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s: %s", path, what);
	return -1;
}

int params_write(const char *path, const float *const *params, char *why, size_t n_why)
{
	char header[HEADER_MAX];
	size_t n = make_header(header);
	FILE *f = fopen(path, "wb");

	if (!f)
		return complain(path, strerror(errno), why, n_why);
	bool ok = fwrite(header, 1, n, f) == n;
	for (int t = 0; t < MLP_TENSORS && ok; t++)
		ok = fwrite(params[t], sizeof(float), mlp_tensors[t].count, f) == mlp_tensors[t].count;
	int error = errno;
	if (fclose(f) && ok) {
		error = errno;
		ok = false;
	}
	return ok ? 0 : complain(path, strerror(error), why, n_why);
}

int params_read(const char *path, float *const *to, char *why, size_t n_why)
{
	char header[HEADER_MAX], found[HEADER_MAX];
	size_t n = make_header(header);
	FILE *f = fopen(path, "rb");

	if (!f)
		return complain(path, strerror(errno), why, n_why);
	bool ours = fread(found, 1, n, f) == n && memcmp(header, found, n) == 0;
	for (int t = 0; t < MLP_TENSORS && ours; t++)
		ours = fread(to[t], sizeof(float), mlp_tensors[t].count, f) == mlp_tensors[t].count;
	ours = ours && fgetc(f) == EOF;
	fclose(f);
	return ours ? 0 : complain(path, "not a parameter file of this model", why, n_why);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the headers of safetensors files. For the engine's checkpoints: snapshot_writer.c (its thread) and
 * snapshot_restore.c (main thread). No shared state; any thread. */
#include "store/safetensors.h"

#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define METADATA "__metadata__"

static const struct {
	const char *name;
	size_t bytes;
} dtypes[SAFE_DTYPES] = {
#define X(name, bytes) { #name, bytes },
	SAFETENSORS_DTYPES(X)
#undef X
};

struct safetensors {
	json_t *root;		    /* owns the names */
	struct safe_tensor *tensor; /* ascending begin */
	const struct safe_tensor **by_name;
	size_t n;
	uint64_t data_offset;
};

/* Where a sentence about a file goes. */
struct report {
	const char *file;
	char *why;
	size_t n;
};

const char *safe_dtype_name(enum safe_dtype t)
{
	return dtypes[t].name;
}

__attribute__((format(printf, 2, 3))) static enum status wrong(const struct report *r, const char *fmt, ...)
{
	int at = snprintf(r->why, r->n, "%s: ", r->file);
	va_list ap;
	va_start(ap, fmt);
	if (at >= 0 && (size_t)at < r->n)
		vsnprintf(r->why + at, r->n - (size_t)at, fmt, ap);
	va_end(ap);
	return ST_MALFORMED;
}

/* ---- reading ---- */

static enum status read_dtype(const struct report *r, struct safe_tensor *t, const json_t *v)
{
	const char *name = json_string_value(v);
	for (int i = 0; name && i < SAFE_DTYPES; i++)
		if (!strcmp(dtypes[i].name, name)) {
			t->dtype = (enum safe_dtype)i;
			return ST_OK;
		}
	return wrong(r, "tensor \"%.80s\": dtype \"%.40s\" is not known", t->name, name ? name : "(no string)");
}

static bool read_u64(const json_t *v, uint64_t *out)
{
	json_int_t i = json_integer_value(v);
	*out = (uint64_t)i;
	return json_is_integer(v) && i >= 0;
}

static enum status read_shape(const struct report *r, struct safe_tensor *t, const json_t *v)
{
	size_t n = json_array_size(v);
	if (!json_is_array(v) || n > SAFETENSORS_MAX_DIMS)
		return wrong(r, "tensor \"%.80s\": shape is no list of at most %d sizes", t->name,
			     SAFETENSORS_MAX_DIMS);
	for (size_t i = 0; i < n; i++)
		if (!read_u64(json_array_get(v, i), &t->shape[i]))
			return wrong(r, "tensor \"%.80s\": shape[%zu] is no size", t->name, i);
	t->n_dims = (int)n;
	return ST_OK;
}

static bool tensor_bytes(const struct safe_tensor *t, uint64_t *out)
{
	uint64_t bytes = dtypes[t->dtype].bytes;
	for (int i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
			return false;
	*out = bytes;
	return true;
}

static enum status read_offsets(const struct report *r, struct safe_tensor *t, const json_t *v)
{
	uint64_t bytes;
	if (!json_is_array(v) || json_array_size(v) != 2 || !read_u64(json_array_get(v, 0), &t->begin) ||
	    !read_u64(json_array_get(v, 1), &t->end))
		return wrong(r, "tensor \"%.80s\": data_offsets is no pair of offsets", t->name);
	if (!tensor_bytes(t, &bytes))
		return wrong(r, "tensor \"%.80s\": the product of its shape overflows", t->name);
	if (t->begin > t->end || t->end - t->begin != bytes)
		return wrong(r,
			     "tensor \"%.80s\": data_offsets [%" PRIu64 ", %" PRIu64 "], its shape needs %" PRIu64
			     " bytes",
			     t->name, t->begin, t->end, bytes);
	return ST_OK;
}

static enum status read_tensor(const struct report *r, struct safe_tensor *t, const json_t *v)
{
	static const char *const keys[] = { "dtype", "shape", "data_offsets" };
	static enum status (*const read[])(const struct report *, struct safe_tensor *,
					   const json_t *) = { read_dtype, read_shape, read_offsets };
	if (!json_is_object(v) || json_object_size(v) != 3)
		return wrong(r, "tensor \"%.80s\": must have dtype, shape and data_offsets, and nothing else", t->name);
	enum status st = ST_OK;
	for (int i = 0; i < 3 && !st; i++) {
		const json_t *field = json_object_get(v, keys[i]);
		st = field ? read[i](r, t, field) : wrong(r, "tensor \"%.80s\": %s is missing", t->name, keys[i]);
	}
	return st;
}

static enum status check_metadata(const struct report *r, json_t *v)
{
	const char *key;
	json_t *value;
	if (!json_is_object(v))
		return wrong(r, METADATA " is no map");
	json_object_foreach(v, key, value) if (!json_is_string(value)) return wrong(
		r, METADATA ": the value of \"%.80s\" is no string", key);
	return ST_OK;
}

static int by_begin(const void *a, const void *b)
{
	const struct safe_tensor *x = a, *y = b;
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
	const struct safe_tensor *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static enum status check_cover(const struct report *r, const struct safetensors *s, uint64_t data_bytes)
{
	uint64_t at = 0;
	for (size_t i = 0; i < s->n; at = s->tensor[i++].end)
		if (s->tensor[i].begin != at)
			return wrong(r, "tensor \"%.80s\" begins at %" PRIu64 ", the one before it ends at %" PRIu64,
				     s->tensor[i].name, s->tensor[i].begin, at);
	if (at != data_bytes)
		return wrong(r, "its tensors end at %" PRIu64 ", the data has %" PRIu64 " bytes", at, data_bytes);
	return ST_OK;
}

static enum status read_all(const struct report *r, struct safetensors *s, uint64_t data_bytes)
{
	const char *name;
	json_t *value;
	enum status st = ST_OK;
	s->tensor = calloc(json_object_size(s->root) + 1, sizeof(*s->tensor));
	s->by_name = calloc(json_object_size(s->root) + 1, sizeof(*s->by_name));
	if (!s->tensor || !s->by_name)
		return ST_NO_MEMORY;
	json_object_foreach(s->root, name, value)
	{
		if (!strcmp(name, METADATA)) {
			st = check_metadata(r, value);
		} else {
			s->tensor[s->n].name = name;
			st = read_tensor(r, &s->tensor[s->n++], value);
		}
		if (st)
			return st;
	}
	qsort(s->tensor, s->n, sizeof(*s->tensor), by_begin);
	for (size_t i = 0; i < s->n; i++)
		s->by_name[i] = &s->tensor[i];
	qsort(s->by_name, s->n, sizeof(*s->by_name), by_name);
	return check_cover(r, s, data_bytes);
}

/* Bytes of JSON, when the length and what it says fit the file. */
static enum status header_length(const struct report *r, const void *head, size_t n_head, uint64_t file_bytes,
				 uint64_t *out)
{
	uint64_t n;
	if (n_head < 8 || file_bytes < 8)
		return wrong(r, "%" PRIu64 " bytes are no safetensors file", file_bytes);
	memcpy(&n, head, 8);
	n = le64toh(n);
	if (n > SAFETENSORS_MAX_HEADER || n > file_bytes - 8)
		return wrong(r, "a header of %" PRIu64 " bytes in a file of %" PRIu64, n, file_bytes);
	*out = n;
	return ST_OK;
}

enum status safetensors_parse(const char *file, const void *head, size_t n_head, uint64_t file_bytes,
			      struct safetensors **out, char *why, size_t n_why)
{
	const struct report r = { file, why, n_why };
	const char *text = (const char *)head + 8;
	uint64_t n = 0;
	json_error_t error;
	enum status st = header_length(&r, head, n_head, file_bytes, &n);
	if (st)
		return st;
	if (n > n_head - 8 || n == 0 || text[0] != '{')
		return wrong(&r, n > n_head - 8 ? "the header is cut off" : "the header does not begin with '{'");
	struct safetensors *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->data_offset = 8 + n;
	s->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	st = s->root ? read_all(&r, s, file_bytes - s->data_offset)
		     : wrong(&r, "the header is no JSON: %s (byte %d)", error.text, error.position);
	if (st)
		safetensors_free(s);
	else
		*out = s;
	return st;
}

static enum status read_failed(const char *file, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s: %s", file, errno ? strerror(errno) : "the file is cut off");
	log_error("reading %s", why);
	return ST_IO_ERROR;
}

enum status safetensors_read(const char *file, int fd, struct safetensors **out, char *why, size_t n_why)
{
	struct stat info;
	uint64_t length = 0, n = 0;
	errno = 0;
	if (fstat(fd, &info) < 0 || pread(fd, &length, sizeof(length), 0) < 0)
		return read_failed(file, why, n_why);
	enum status st = header_length(&(struct report){ file, why, n_why }, &length, sizeof(length),
				       (uint64_t)info.st_size, &n);
	if (st)
		return st;
	char *head = malloc(8 + n);
	if (!head)
		return ST_NO_MEMORY;
	size_t got = 0;
	for (ssize_t r = 1; got < 8 + n && r > 0; got += r > 0 ? (size_t)r : 0)
		r = pread(fd, head + got, 8 + n - got, (off_t)got);
	st = got < 8 + n ? read_failed(file, why, n_why)
			 : safetensors_parse(file, head, 8 + n, (uint64_t)info.st_size, out, why, n_why);
	free(head);
	return st;
}

void safetensors_free(struct safetensors *s)
{
	if (!s)
		return;
	json_decref(s->root);
	free(s->tensor);
	free(s->by_name);
	free(s);
}

const struct safe_tensor *safetensors_all(const struct safetensors *s, size_t *n)
{
	*n = s->n;
	return s->tensor;
}

const struct safe_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
	const struct safe_tensor wanted = { .name = name }, *key = &wanted;
	const struct safe_tensor **found = bsearch(&key, s->by_name, s->n, sizeof(*s->by_name), by_name);
	return found ? *found : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
	return json_string_value(json_object_get(json_object_get(s->root, METADATA), key));
}

uint64_t safetensors_data_offset(const struct safetensors *s)
{
	return s->data_offset;
}

/* ---- writing ---- */

static json_t *describe(const struct safe_tensor *t)
{
	json_t *shape = json_array();
	bool ok = shape != NULL;
	for (int i = 0; ok && i < t->n_dims; i++)
		ok = json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) == 0;
	if (!ok) {
		json_decref(shape);
		return NULL;
	}
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[t->dtype].name, "shape", shape, "data_offsets",
			 (json_int_t)t->begin, (json_int_t)t->end);
}

static enum status place(struct safe_tensor *t, size_t n)
{
	uint64_t at = 0, bytes;
	for (size_t i = 0; i < n; i++) {
		t[i].begin = at;
		if (!strcmp(t[i].name, METADATA))
			return ST_INVALID_ARGUMENT;
		if (!tensor_bytes(&t[i], &bytes) || __builtin_add_overflow(at, bytes, &at) || at > INT64_MAX)
			return ST_INVALID_ARGUMENT;
		t[i].end = at;
	}
	return ST_OK;
}

/* The JSON, spaces up to a multiple of 8, and the length before it. */
static enum status frame(const json_t *root, void **out, size_t *out_n)
{
	size_t n = json_dumpb(root, NULL, 0, JSON_COMPACT), padded = (n + 7) / 8 * 8;
	if (n == 0 || padded > SAFETENSORS_MAX_HEADER)
		return n ? ST_RESOURCE_EXHAUSTED : ST_NO_MEMORY;
	char *bytes = malloc(8 + padded);
	if (!bytes)
		return ST_NO_MEMORY;
	uint64_t length = htole64(padded);
	memcpy(bytes, &length, 8);
	memset(bytes + 8, ' ', padded);
	if (json_dumpb(root, bytes + 8, n, JSON_COMPACT) != n) {
		free(bytes);
		return ST_NO_MEMORY;
	}
	*out = bytes;
	*out_n = 8 + padded;
	return ST_OK;
}

enum status safetensors_header(struct safe_tensor *t, size_t n, const struct safe_pair *pair, size_t n_pairs,
			       void **out, size_t *out_n)
{
	enum status st = place(t, n);
	if (st)
		return st;
	json_t *root = json_object(), *meta = json_object();
	bool ok = root && meta;
	for (size_t i = 0; ok && i < n_pairs; i++)
		ok = json_object_set_new(meta, pair[i].key, json_string(pair[i].value)) == 0;
	if (ok && n_pairs)
		ok = json_object_set(root, METADATA, meta) == 0;
	for (size_t i = 0; ok && i < n; i++)
		ok = json_object_set_new(root, t[i].name, describe(&t[i])) == 0;
	if (ok && json_object_size(root) != n + (n_pairs > 0)) /* a name came twice */
		ok = false;
	st = ok ? frame(root, out, out_n) : root && meta ? ST_INVALID_ARGUMENT : ST_NO_MEMORY;
	json_decref(meta);
	json_decref(root);
	return st;
}

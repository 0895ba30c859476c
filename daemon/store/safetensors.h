/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files: named arrays behind a JSON header, exactly as Hugging Face's reference reads and writes them.
 *
 * Layout: u64 little-endian N (at most SAFETENSORS_MAX_HEADER), N bytes of JSON that begin with '{' and may end with
 * spaces, data. The JSON maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the
 * data's start; "__metadata__" maps strings to strings. The tensors cover the data from its first to its last byte
 * without gaps or overlaps. Nothing of a file is trusted. Any thread; no I/O but safetensors_read.
 */
#ifndef GACC_STORE_SAFETENSORS_H
#define GACC_STORE_SAFETENSORS_H

#include "proto/status.h"

#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_HEADER UINT64_C(100000000)
#define SAFETENSORS_MAX_DIMS 32

/* X(name, bytes of an element) */
#define SAFETENSORS_DTYPES(X)                                                                                          \
	X(BOOL, 1)                                                                                                     \
	X(U8, 1)                                                                                                       \
	X(I8, 1)                                                                                                       \
	X(F8_E5M2, 1)                                                                                                  \
	X(F8_E4M3, 1)                                                                                                  \
	X(I16, 2)                                                                                                      \
	X(U16, 2)                                                                                                      \
	X(F16, 2)                                                                                                      \
	X(BF16, 2)                                                                                                     \
	X(I32, 4)                                                                                                      \
	X(U32, 4)                                                                                                      \
	X(F32, 4)                                                                                                      \
	X(F64, 8)                                                                                                      \
	X(I64, 8)                                                                                                      \
	X(U64, 8)

enum safe_dtype {
#define X(name, bytes) SAFE_##name,
	SAFETENSORS_DTYPES(X)
#undef X
		SAFE_DTYPES
};

struct safe_tensor {
	const char *name; /* UTF-8 */
	enum safe_dtype dtype;
	int n_dims;
	uint64_t shape[SAFETENSORS_MAX_DIMS];
	uint64_t begin, end; /* bytes, from the start of the data; a writer leaves them to safetensors_header */
};

struct safe_pair {
	const char *key, *value;
};

struct safetensors;

/* Judges the header of a file of file_bytes; `head` is its first n_head bytes, which must hold the whole header. `file`
 * (a name) begins every sentence in `why`, which names the tensor and the value. ST_MALFORMED, ST_NO_MEMORY. */
enum status safetensors_parse(const char *file, const void *head, size_t n_head, uint64_t file_bytes,
			      struct safetensors **out, char *why, size_t n_why);
/* The same from a descriptor that can be read at any offset. ST_IO_ERROR. */
enum status safetensors_read(const char *file, int fd, struct safetensors **out, char *why, size_t n_why);
void safetensors_free(struct safetensors *); /* NULL is fine */

/* In the order of their data. */
const struct safe_tensor *safetensors_all(const struct safetensors *, size_t *n);
const struct safe_tensor *safetensors_find(const struct safetensors *, const char *name); /* NULL: none */
const char *safetensors_metadata(const struct safetensors *, const char *key);		  /* NULL: none */
uint64_t safetensors_data_offset(const struct safetensors *);				  /* bytes, in the file */

const char *safe_dtype_name(enum safe_dtype);

/* The header of a file whose data holds these tensors in this order, as the first *out_n bytes of the file (free it);
 * sets their begin and end. The data begins at a multiple of 8 bytes; give tensors in descending size of their
 * elements, so that each is aligned to its own. ST_NO_MEMORY; ST_RESOURCE_EXHAUSTED: more than SAFETENSORS_MAX_HEADER;
 * ST_INVALID_ARGUMENT: a name that is no UTF-8, is __metadata__ or comes twice, or sizes that overflow. */
enum status safetensors_header(struct safe_tensor *, size_t n, const struct safe_pair *, size_t n_pairs, void **out,
			       size_t *out_n);

#endif

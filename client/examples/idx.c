/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MNIST's image and label files, gzipped or plain, into memory and checks everything that they claim. For the
 * example trainer mlp; one thread. */
#include "idx.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { IDX_UBYTE = 0x08, MAX_DIMS = 3 };

struct idx_file {
	gzFile gz; /* reads plain files as they are */
	char path[PATH_MAX];
	int n_dims;
	uint32_t dim[MAX_DIMS];
	char *why;
	size_t n_why;
};

static int complain(const struct idx_file *f, const char *what)
{
	snprintf(f->why, f->n_why, "%s: %s", f->path, what);
	return -1;
}

/* Exactly n bytes, or a failure that tells a short file from a damaged one. */
static int read_all(struct idx_file *f, void *to, size_t n)
{
	unsigned char *at = to;
	int code = Z_OK;

	while (n > 0) {
		int got = gzread(f->gz, at, n < (1u << 30) ? (unsigned)n : 1u << 30);
		if (got < 0)
			return complain(f, gzerror(f->gz, &code));
		if (got == 0)
			return complain(f, "ends too early");
		at += got;
		n -= (size_t)got;
	}
	return 0;
}

static uint32_t big_endian(const unsigned char *b)
{
	return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Header: two zero bytes, the element type, the number of dimensions, then each dimension as 32 bits, big-endian. */
static int read_header(struct idx_file *f, int n_dims)
{
	unsigned char magic[4], dims[4 * MAX_DIMS];

	if (read_all(f, magic, sizeof(magic)))
		return -1;
	if (magic[0] || magic[1] || magic[2] != IDX_UBYTE || magic[3] != n_dims)
		return complain(f, n_dims == 1 ? "not an IDX file of labels" : "not an IDX file of images");
	if (read_all(f, dims, 4 * (size_t)n_dims))
		return -1;
	for (int d = 0; d < n_dims; d++) {
		f->dim[d] = big_endian(dims + 4 * d);
		if (f->dim[d] == 0)
			return complain(f, "has no samples");
	}
	return 0;
}

static bool find_file(struct idx_file *f, const char *dir, const char *prefix, const char *what, int n_dims)
{
	static const char dots[] = { '-', '.' };
	static const char *const ends[] = { ".gz", "" };

	for (size_t d = 0; d < sizeof(dots); d++) {
		for (size_t e = 0; e < sizeof(ends) / sizeof(*ends); e++) {
			int n = snprintf(f->path, sizeof(f->path), "%s/%s-%s%cidx%d-ubyte%s", dir, prefix, what,
					 dots[d], n_dims, ends[e]);
			if (n < (int)sizeof(f->path) && access(f->path, F_OK) == 0)
				return true;
		}
	}
	return false;
}

static int open_file(struct idx_file *f, const char *dir, const char *prefix, const char *what, int n_dims)
{
	if (!find_file(f, dir, prefix, what, n_dims)) {
		snprintf(f->why, f->n_why,
			 "no %s/%s-%s-idx%d-ubyte.gz: install Debian's package dataset-fashion-mnist, or give the "
			 "folder of MNIST's four files with --data",
			 dir, prefix, what, n_dims);
		return -1;
	}
	errno = 0;
	f->gz = gzopen(f->path, "rb");
	if (!f->gz)
		return complain(f, errno ? strerror(errno) : "out of memory");
	gzbuffer(f->gz, 1u << 18);
	return read_header(f, n_dims);
}

/* n elements of `size` bytes, on the heap; NULL after a complaint. */
static uint8_t *read_array(struct idx_file *f, uint32_t n, uint32_t size)
{
	uint8_t *bytes = malloc((size_t)n * size);

	if (!bytes) {
		complain(f, "too large for this machine's memory");
		return NULL;
	}
	if (read_all(f, bytes, (size_t)n * size)) {
		free(bytes);
		return NULL;
	}
	return bytes;
}

static int check_images(const struct idx_file *images, const struct idx_file *labels, uint32_t pixels)
{
	if ((uint64_t)images->dim[1] * images->dim[2] != pixels) {
		snprintf(images->why, images->n_why, "%s: images of %u x %u, not of %u pixels", images->path,
			 images->dim[1], images->dim[2], pixels);
		return -1;
	}
	if (images->dim[0] != labels->dim[0]) {
		snprintf(images->why, images->n_why, "%s: %u images for %u labels", images->path, images->dim[0],
			 labels->dim[0]);
		return -1;
	}
	return 0;
}

static int check_labels(const struct idx_file *labels, const struct idx_set *set, uint32_t n_classes)
{
	for (uint32_t i = 0; i < set->n; i++) {
		if (set->labels[i] >= n_classes)
			return complain(labels, "a label is out of range");
	}
	return 0;
}

int idx_open(const char *dir, const char *prefix, uint32_t max, uint32_t pixels, uint32_t n_classes,
	     struct idx_set *out, char *why, size_t n_why)
{
	struct idx_file images = { .why = why, .n_why = n_why }, labels = images;
	struct idx_set set = { .pixels = pixels };
	int rc = -1;

	if (open_file(&images, dir, prefix, "images", 3) || open_file(&labels, dir, prefix, "labels", 1) ||
	    check_images(&images, &labels, pixels))
		goto out;
	set.n = max && max < images.dim[0] ? max : images.dim[0];
	set.images = read_array(&images, set.n, pixels);
	set.labels = set.images ? read_array(&labels, set.n, 1) : NULL;
	if (!set.labels || check_labels(&labels, &set, n_classes))
		goto out;
	*out = set;
	rc = 0;
out:
	if (rc)
		idx_close(&set);
	if (images.gz)
		gzclose(images.gz);
	if (labels.gz)
		gzclose(labels.gz);
	return rc;
}

void idx_close(struct idx_set *set)
{
	free(set->images);
	free(set->labels);
	*set = (struct idx_set){ 0 };
}

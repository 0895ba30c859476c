/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of IDX files, on files made here: whole, damaged in every way that its checks name, cut at every byte. */
#include "idx.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { N = 3, PIXELS = 4, CLASSES = 10 };

static char dir[64];
static unsigned char images[16 + N * PIXELS] = { 0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, 2,  0,  0,
						 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255 };
static unsigned char labels[8 + N] = { 0, 0, 8, 1, 0, 0, 0, N, 7, 0, 9 };

static const char *path_of(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void put(const char *name, const void *bytes, size_t n, const char *mode)
{
	gzFile f = gzopen(path_of(name), mode);

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(gzwrite(f, bytes, (unsigned)n), (int)n);
	ck_assert_int_eq(gzclose(f), Z_OK);
}

static void put_images(const void *bytes, size_t n)
{
	put("train-images-idx3-ubyte.gz", bytes, n, "wb");
}

static void put_labels(const void *bytes, size_t n)
{
	put("train-labels-idx1-ubyte.gz", bytes, n, "wb");
}

static void set_up(void)
{
	strcpy(dir, "/tmp/gacc-test-idx-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	put_images(images, sizeof(images));
	put_labels(labels, sizeof(labels));
}

static void tear_down(void)
{
	static const char *const names[] = { "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
					     "t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		unlink(path_of(names[i]));
	ck_assert_int_eq(rmdir(dir), 0);
}

static int read_set(const char *prefix, uint32_t max, struct idx_set *set, char why[256])
{
	memset(set, 0xee, sizeof(*set));
	why[0] = 0;
	return idx_open(dir, prefix, max, PIXELS, CLASSES, set, why, 256);
}

/* Refused, with this in the text, and the output untouched. */
static void refuse(const char *expected)
{
	struct idx_set set, before;
	char why[256];

	memset(&before, 0xee, sizeof(before));
	ck_assert_int_eq(read_set("train", 0, &set, why), -1);
	ck_assert_mem_eq(&set, &before, sizeof(set));
	ck_assert_msg(strstr(why, expected), "'%s' lacks '%s'", why, expected);
}

START_TEST(reads_gzip)
{
	struct idx_set set;
	char why[256];

	ck_assert_int_eq(read_set("train", 0, &set, why), 0);
	ck_assert_uint_eq(set.n, N);
	ck_assert_mem_eq(set.images, images + 16, N * PIXELS);
	ck_assert_mem_eq(set.labels, labels + 8, N);
	idx_close(&set);
}
END_TEST

START_TEST(reads_classic_plain_names)
{
	struct idx_set set;
	char why[256];

	put("t10k-images.idx3-ubyte", images, sizeof(images), "wbT");
	put("t10k-labels.idx1-ubyte", labels, sizeof(labels), "wbT");
	ck_assert_int_eq(read_set("t10k", 0, &set, why), 0);
	ck_assert_mem_eq(set.images, images + 16, N * PIXELS);
	idx_close(&set);
}
END_TEST

START_TEST(reads_the_first_samples)
{
	struct idx_set set;
	char why[256];

	ck_assert_int_eq(read_set("train", 2, &set, why), 0);
	ck_assert_uint_eq(set.n, 2);
	ck_assert_mem_eq(set.labels, labels + 8, 2);
	idx_close(&set);
	ck_assert_int_eq(read_set("train", 99, &set, why), 0);
	ck_assert_uint_eq(set.n, N);
	idx_close(&set);
}
END_TEST

START_TEST(names_the_package_when_nothing_is_there)
{
	unlink(path_of("train-labels-idx1-ubyte.gz"));
	refuse("install Debian's package dataset-fashion-mnist");
}
END_TEST

START_TEST(refuses_damage)
{
	unsigned char bad[sizeof(images)];

	for (int at = 0; at < 4; at++) {
		memcpy(bad, images, sizeof(bad));
		bad[at] ^= 1;
		put_images(bad, sizeof(bad));
		refuse("not an IDX file of images");
	}
	memcpy(bad, images, sizeof(bad));
	bad[7] = 0;
	put_images(bad, sizeof(bad));
	refuse("has no samples");
	bad[7] = N + 1;
	put_images(bad, sizeof(bad));
	refuse("4 images for 3 labels");
	bad[7] = N;
	bad[11] = 4;
	put_images(bad, sizeof(bad));
	refuse("images of 4 x 2, not of 4 pixels");
	memset(bad + 4, 0xff, 4); /* a size that no file has */
	bad[11] = 2;
	put_images(bad, sizeof(bad));
	refuse("images for 3 labels");
}
END_TEST

START_TEST(refuses_a_label_out_of_range)
{
	unsigned char bad[sizeof(labels)];

	memcpy(bad, labels, sizeof(bad));
	bad[9] = CLASSES;
	put_labels(bad, sizeof(bad));
	refuse("a label is out of range");
}
END_TEST

START_TEST(refuses_every_cut)
{
	for (size_t n = 1; n < sizeof(images); n++) {
		put_images(images, n);
		refuse("ends too early");
	}
	put_images(images, sizeof(images));
	for (size_t n = 1; n < sizeof(labels); n++) {
		put_labels(labels, n);
		refuse("ends too early");
	}
}
END_TEST

START_TEST(refuses_a_damaged_gzip_stream)
{
	unsigned char big[16 + N * PIXELS];
	FILE *f;

	memcpy(big, images, sizeof(big));
	put_images(big, sizeof(big));
	f = fopen(path_of("train-images-idx3-ubyte.gz"), "r+b");
	ck_assert_ptr_nonnull(f);
	fseek(f, -6, SEEK_END); /* in the CRC */
	fputc(0x5a, f);
	fclose(f);
	refuse("train-images-idx3-ubyte.gz: ");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("idx");
	TCase *c = tcase_create("idx");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, reads_gzip);
	tcase_add_test(c, reads_classic_plain_names);
	tcase_add_test(c, reads_the_first_samples);
	tcase_add_test(c, names_the_package_when_nothing_is_there);
	tcase_add_test(c, refuses_damage);
	tcase_add_test(c, refuses_a_label_out_of_range);
	tcase_add_test(c, refuses_every_cut);
	tcase_add_test(c, refuses_a_damaged_gzip_stream);
	suite_add_tcase(s, c);
	return suite_run(s);
}

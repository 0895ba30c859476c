/* SPDX-License-Identifier: Apache-2.0 */
/* A labelled image set in the IDX files of MNIST, gzipped or plain, held in memory as bytes.
 *
 * Reads what Debian's dataset-fashion-mnist installs, and MNIST under the same or its classic names
 * ("train-images-idx3-ubyte" or "train-images.idx3-ubyte", each with or without ".gz"). Trusts nothing in the files:
 * magic, sizes, label range and length are checked. */
#ifndef GACC_EXAMPLES_IDX_H
#define GACC_EXAMPLES_IDX_H

#include <stddef.h>
#include <stdint.h>

struct idx_set {
	uint32_t n;	 /* samples */
	uint32_t pixels; /* of one sample */
	uint8_t *images; /* [n][pixels] */
	uint8_t *labels; /* [n], each < the n_classes asked for */
};

/* Reads the set `prefix` ("train", "t10k") of folder `dir`: at most max samples of them (0 = all), whose images must
 * have `pixels` pixels. Returns 0, or -1 with a sentence in why; *out is set on success only and ends with idx_close.
 */
int idx_open(const char *dir, const char *prefix, uint32_t max, uint32_t pixels, uint32_t n_classes,
	     struct idx_set *out, char *why, size_t n_why);
void idx_close(struct idx_set *);

#endif

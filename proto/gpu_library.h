/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a library of NVIDIA's while the program runs and fills a table of its functions. Any thread; no state. */
#ifndef GACC_PROTO_GPU_LIBRARY_H
#define GACC_PROTO_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A member of the table, by where it lies: all are pointers to functions, of which C knows no common type. */
struct gpu_symbol {
	const char *name;
	size_t offset;
};

/* Finds `library` where the dynamic linker looks for it; it then stays loaded until the process ends. False: it is not
 * there, and *out_missing is NULL, or it lacks a symbol, which *out_missing names; the table is as it was. */
bool gpu_library_load(const char *library, const struct gpu_symbol *, size_t n, void *table, const char **out_missing);

#endif

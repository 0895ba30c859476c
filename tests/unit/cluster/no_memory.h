/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of messages that test_no_memory.c packs and reads without memory. */
#ifndef GACC_TEST_CLUSTER_NO_MEMORY_H
#define GACC_TEST_CLUSTER_NO_MEMORY_H

#include "proto/status.h"

#include <stddef.h>

struct no_memory_kind {
	const char *name;
	void *(*pack)(size_t *n);				     /* one of this kind, for free(); NULL: no memory */
	enum status (*read)(const void *bytes, size_t n, char *why); /* and frees what it has read; why: [200] */
};

/* Those of communicators, launches, logs and norms, and what is a link's own. */
extern const struct no_memory_kind no_memory_links[];
extern const size_t no_memory_n_links;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a cluster's nodes: the one rule for the configuration, specifications and links. */
#ifndef GACC_BASE_NODE_NAME_H
#define GACC_BASE_NODE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NODE_NAME_MAX 64 /* bytes, without an end */

/* Are these n bytes 1 to 64 letters of ASCII, digits and ".-_"? */
static inline bool node_name_ok(const char *name, size_t n)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
	size_t i = 0;
	while (i < n && name[i] && strchr(allowed, name[i]))
		i++;
	return n >= 1 && n <= NODE_NAME_MAX && i == n;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the addresses that a member over Gloo has given. For the members (gloo_join.c), and for a coordinator, which
 * passes on only those of the node that they come from. Pure; any thread. */
#include "coll/gloo_blob.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <string.h>

size_t gloo_blob_size(uint32_t n_parts)
{
	return offsetof(struct gloo_blob, address) + n_parts * sizeof(struct sockaddr_storage);
}

static bool is_at(const struct sockaddr_storage *a, const char *ip)
{
	struct in_addr v4;
	struct in6_addr v6;
	if (a->ss_family == AF_INET)
		return inet_pton(AF_INET, ip, &v4) == 1 &&
		       !memcmp(&((const struct sockaddr_in *)a)->sin_addr, &v4, sizeof(v4));
	return a->ss_family == AF_INET6 && inet_pton(AF_INET6, ip, &v6) == 1 &&
	       !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &v6, sizeof(v6));
}

bool gloo_blob_is_at(const void *bytes, size_t n, const char *ip)
{
	struct gloo_blob b;
	if (n < gloo_blob_size(0) || n > sizeof(b))
		return true;
	memcpy(&b, bytes, n);
	if (b.magic != GLOO_MAGIC || b.n_parts > COLL_MAX_PARTS || n != gloo_blob_size((uint32_t)b.n_parts))
		return true;
	for (uint32_t s = 0; s < b.n_parts; s++)
		if (s != b.part && !is_at(&b.address[s], ip))
			return false;
	return true;
}

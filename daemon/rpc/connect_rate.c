/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the connections of each address: by the time at which it will have earned all of them back, so that an address
 * that is not heard of again needs no care. For guard.c. */
#include "rpc/connect_rate.h"

#include "base/clock.h"

#include <string.h>

#define COST_NS (CLOCK_NS_PER_S / CONNECT_PER_S)

/* IPv4 in either form is ::ffff:a.b.c.d. */
static struct in6_addr key_of(const struct sockaddr *from)
{
	struct in6_addr key = { 0 };
	if (from->sa_family == AF_INET) {
		struct sockaddr_in v4;
		memcpy(&v4, from, sizeof(v4));
		memset(key.s6_addr + 10, 0xff, 2);
		memcpy(key.s6_addr + 12, &v4.sin_addr, 4);
	} else if (from->sa_family == AF_INET6) {
		struct sockaddr_in6 v6;
		memcpy(&v6, from, sizeof(v6));
		const bool whole = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
		memcpy(&key, &v6.sin6_addr, whole ? 16 : 8);
	}
	return key;
}

bool connect_rate_take(struct connect_rate *r, const struct sockaddr *from, int64_t now_ns)
{
	const struct in6_addr key = key_of(from);
	int at = 0;
	for (int i = 0; i < CONNECT_ADDRESSES; i++) {
		if (!memcmp(&r->known[i].address, &key, sizeof(key)) && r->known[i].full_ns > now_ns) {
			at = i;
			break;
		}
		if (r->known[i].full_ns < r->known[at].full_ns)
			at = i;
	}
	if (memcmp(&r->known[at].address, &key, sizeof(key)) != 0 || r->known[at].full_ns < now_ns)
		r->known[at].full_ns = now_ns;
	r->known[at].address = key;
	if (r->known[at].full_ns - now_ns > (CONNECT_AT_ONCE - 1) * COST_NS)
		return false;
	r->known[at].full_ns += COST_NS;
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses stay on this machine, so that a token is enough there: the one rule for configuration and links. */
#ifndef GACC_BASE_LOOPBACK_H
#define GACC_BASE_LOOPBACK_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* "127.0.0.1", "::1" */
static inline bool is_loopback_ip(const char *ip)
{
	struct in_addr v4;
	return !strcmp(ip, "::1") || (inet_pton(AF_INET, ip, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

/* That of loopback in any spelling, and 0.0.0.0 and ::, which are each machine's own: no other machine reaches this one
 * there. */
static inline bool is_hidden_ip(const char *ip)
{
	struct in_addr v4;
	struct in6_addr v6;
	if (inet_pton(AF_INET6, ip, &v6) == 1 && !IN6_IS_ADDR_V4MAPPED(&v6))
		return IN6_IS_ADDR_LOOPBACK(&v6) || IN6_IS_ADDR_UNSPECIFIED(&v6);
	if (inet_pton(AF_INET6, ip, &v6) == 1)
		memcpy(&v4, v6.s6_addr + 12, sizeof(v4));
	else if (inet_pton(AF_INET, ip, &v4) != 1)
		return false;
	return ntohl(v4.s_addr) >> 24 == 127 || v4.s_addr == INADDR_ANY;
}

/* HOST:PORT with a host of 127.0.0.0/8 or [::1]. Names are not looked up: they are none, "localhost" neither, which the
 * DNS may have elsewhere. */
static inline bool is_loopback(const char *address)
{
	char host[64];
	const char *colon = strrchr(address, ':');
	if (!colon || (size_t)(colon - address) >= sizeof(host))
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
	return !strcmp(host, "[::1]") || (*host != ':' && is_loopback_ip(host));
}

#endif

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

/* HOST:PORT with a host of 127.0.0.0/8 or [::1]. Names are not looked up: they are none. */
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

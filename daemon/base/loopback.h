/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses stay on this machine, so that a token is enough there: the one rule for configuration and links. */
#ifndef GACC_BASE_LOOPBACK_H
#define GACC_BASE_LOOPBACK_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* HOST:PORT with a host of 127.0.0.0/8 or [::1]. Names are not looked up: they are none. */
static inline bool is_loopback(const char *address)
{
	char host[64];
	struct in_addr v4;
	const char *colon = strrchr(address, ':');
	if (!colon || (size_t)(colon - address) >= sizeof(host))
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
	if (strcmp(host, "[::1]") == 0)
		return true;
	return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

#endif

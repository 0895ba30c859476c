/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture's server as a program: rpc_test_server TOKEN. Prints the unix target and a loopback target that takes the
 * token, and ends when its standard input does. */
#include "support/rpc_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool token_ok(void *context, const char *token, size_t len)
{
	return len == strlen(context) && memcmp(token, context, len) == 0;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: rpc_test_server TOKEN\n");
		return 2;
	}
	struct rpc_tcp_identity identity = { .token_ok = token_ok, .context = argv[1] };
	struct fixture *fixture =
		fixture_start(&(struct fixture_options){ .tcp = &identity, .drain_ms = 20, .grace_ms = 200 });
	printf("%s\nipv4:127.0.0.1:%d\n", fixture->target, fixture->tcp_port);
	fflush(stdout);
	while (getchar() != EOF)
		;
	fixture_stop(fixture);
	return 0;
}

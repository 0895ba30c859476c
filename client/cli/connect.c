/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the connection to gaccd for a command, by --endpoint, the environment or the default socket, and explains a
 * failure with what to try. gaccctl's main thread. */
#include "command.h"
#include "output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 10000

bool open_client(struct invocation *inv, int *exit_status)
{
	return open_client_for(inv, TIMEOUT_MS, exit_status);
}

/* gacc_open does not say whether it is the endpoint, or a file that goes with it. */
static int fail_endpoint(struct invocation *inv, gacc_status st)
{
	static const char *const files[] = { "GACC_TOKEN_FILE", "GACC_TLS_CERT", "GACC_TLS_KEY", "GACC_TLS_CA" };
	int tls = 0;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		const char *path = getenv(files[i]);

		if (path && *path && access(path, R_OK))
			return fail_with(inv, exit_status_of(st), "ENDPOINT", NULL, "%s: %s: %s", files[i], path,
					 strerror(errno));
		tls += i && path && *path;
	}
	if (tls && tls < 3)
		return fail_with(inv, exit_status_of(st), "ENDPOINT", NULL,
				 "GACC_TLS_CERT, GACC_TLS_KEY and GACC_TLS_CA go together, but %d "
				 "of them %s set",
				 tls, tls == 1 ? "is" : "are");
	return fail_with(inv, exit_status_of(st), "ENDPOINT", "unix:/path, /path or host:port", "endpoint: %s",
			 gacc_strerror(st));
}

bool open_client_for(struct invocation *inv, int default_ms, int *exit_status)
{
	int64_t timeout_ms;
	gacc_status st;

	if (!opt_duration(inv, "timeout", default_ms, &timeout_ms, exit_status))
		return false;
	st = gacc_open(opt(inv, "endpoint"), &inv->client);
	if (st) {
		*exit_status = fail_endpoint(inv, st);
		return false;
	}
	gacc_set_timeout(inv->client, (int)timeout_ms);
	return true;
}

int contact_failed(struct invocation *inv, struct contact *c)
{
	gacc_failure_info f = gacc_failure(inv->client);

	if (!c->made || f.status != GACC_EUNAVAIL)
		return fail_client(inv);
	if (!c->lost)
		tell(inv->err, "%s; trying again\n", f.message);
	c->lost = true;
	return EXIT_OK;
}

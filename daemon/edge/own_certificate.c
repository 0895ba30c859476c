/* SPDX-License-Identifier: Apache-2.0 */
/* Watches gaccd's own certificate, which nobody else says anything about: who is refused sees only that a connection
 * has ended. For the tick, node_dial.c, GetNode, and main.c. Loop thread. */
#include "edge/own_certificate.h"

#include "host/conf.h"
#include "rpc/credentials.h"

#include <string.h>

#define LOOK_NS (INT64_C(60) * 1000000000)

bool own_certificate_look(const struct conf *c, struct rpc_own_certificate *out)
{
	const struct rpc_tls_files files = { c->tls.cert, c->tls.key, c->tls.ca };
	const bool is_tls = *c->tls.cert != '\0';
	*out = (struct rpc_own_certificate){ 0 };
	if (is_tls)
		rpc_own_certificate(&files, c->node.name, c->node.data_address, *c->cluster.coordinator != '\0', out);
	return is_tls;
}

/* An event for each text that is new. */
static void tell(struct daemon *d, const char *before, const char *now, const char *what)
{
	char text[RPC_CERTIFICATE_WHY + 100];
	if (!strcmp(before, now))
		return;
	if (*now)
		snprintf(text, sizeof(text), "%s%s", what, now);
	else
		snprintf(text, sizeof(text), "this gaccd's certificate is in order again");
	daemon_event(d, *now != '\0', "Certificate", text);
}

void own_certificate_tick(struct daemon *d, struct now now)
{
	struct rpc_own_certificate is;
	if (now.mono_ns < d->certificate_due_ns)
		return;
	d->certificate_due_ns = now.mono_ns + LOOK_NS;
	if (!own_certificate_look(d->node.conf, &is))
		return;
	tell(d, d->certificate.fault, is.fault, "others refuse this gaccd: ");
	if (!*is.fault)
		tell(d, d->certificate.note, is.note, "");
	d->certificate = is;
}

bool own_certificate_check(const struct conf *c, FILE *to)
{
	struct rpc_own_certificate is;
	own_certificate_look(c, &is);
	if (*is.fault)
		fprintf(to, "gaccd: tls: %s\n", is.fault);
	else if (*is.note)
		fprintf(to, "gaccd: warning: tls: %s\n", is.note);
	return !*is.fault;
}

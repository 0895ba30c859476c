/* SPDX-License-Identifier: Apache-2.0 */
#include "certificates.h"

#include "two_servers.h"

#include <stdio.h>

static struct rpc_tcp_identity by_certificate;

void set_up_with(const char *hubs_certificate)
{
	by_certificate = (struct rpc_tcp_identity){ .cert_path = path_of(0, hubs_certificate, "pem"),
						    .key_path = path_of(1, hubs_certificate, "key"),
						    .ca_path = path_of(2, "ca", "pem") };
	hub_identity = &by_certificate;
	set_up();
}

void dial_as(const char *who, const char *server_name)
{
	char address[32];
	snprintf(address, sizeof(address), "127.0.0.1:%d", hub_port);
	struct rpc_upstream_config config = { .address = address,
					      .cert_path = path_of(0, who, "pem"),
					      .key_path = path_of(1, who, "key"),
					      .ca_path = path_of(2, "ca", "pem"),
					      .server_name = server_name };
	rpc_upstream_free(upstream);
	ck_assert_int_eq(rpc_upstream_new(node, &config, &upstream), ST_OK);
}

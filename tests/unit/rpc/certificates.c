/* SPDX-License-Identifier: Apache-2.0 */
#include "certificates.h"

#include "support/scratch.h"
#include "two_servers.h"

#include <stdio.h>
#include <stdlib.h>

static char dir[SCRATCH_PATH], paths[3][SCRATCH_PATH + 32];
static struct rpc_tcp_identity by_certificate;

static void shell(const char *format, const char *a, const char *b)
{
	char command[1024], whole[1200];
	snprintf(command, sizeof(command), format, a, a, b, a, a, a);
	snprintf(whole, sizeof(whole), "cd %s && { %s; } >/dev/null 2>&1", dir, command);
	ck_assert_msg(system(whole) == 0, "%s", command);
}

#define NEW_KEY "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "

void certify(const char *name, const char *san)
{
	shell(NEW_KEY "-subj /CN=%s -keyout %s.key -addext subjectAltName=%s -out %s.csr && openssl x509 -req -in "
		      "%s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out %s.pem",
	      name, san);
}

void new_authority(void)
{
	shell(NEW_KEY "-x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem", "", "");
}

void certify_all(void)
{
	ck_assert(scratch_make(dir));
	new_authority();
	certify("hub", "URI:spiffe://lab/coordinator/hub" LOCAL);
	certify("a", "URI:spiffe://lab/node/a" LOCAL);
	certify("boss", "URI:spiffe://lab/admin/jane" LOCAL);
	certify("plain", "DNS:plain" LOCAL);
	certify("far", "URI:spiffe://elsewhere/node/a" LOCAL);
	certify("farhub", "URI:spiffe://elsewhere/coordinator/hub" LOCAL);
	certify("both", "URI:spiffe://lab/node/a,URI:spiffe://lab/admin/jane" LOCAL);
	shell(NEW_KEY "-x509 -days 2 -subj /CN=mallory -addext "
		      "subjectAltName=URI:spiffe://lab/node/a -keyout mallory.key -out mallory.pem",
	      "", "");
}

const char *path_of(int i, const char *name, const char *kind)
{
	snprintf(paths[i], sizeof(paths[i]), "%s/%s.%s", dir, name, kind);
	return paths[i];
}

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

/* SPDX-License-Identifier: Apache-2.0 */
/* Who may call what between gaccds: roles of certificates, on both sides, and users of the unix socket. */
#include "certificates.h"
#include "gacc/v1/job.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "lib/channel.h"
#include "rpc/revoked.h"
#include "rpc/role.h"
#include "support/suite.h"
#include "two_servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <openssl/ssl.h>

/* ---- names ---- */

START_TEST(roles_of_uris)
{
	static const struct {
		const char *uri;
		enum rpc_role role;
		const char *name;
		bool is_bad;
	} rows[] = {
		{ "spiffe://lab/node/a", RPC_ROLE_NODE, "a", false },
		{ "spiffe://lab/coordinator/c-0.lab", RPC_ROLE_COORDINATOR, "c-0.lab", false },
		{ "spiffe://lab/admin/jane_doe", RPC_ROLE_ADMIN, "jane_doe", false },
		{ "spiffe://lab/nodes/a", RPC_ROLE_NONE, "", false },
		{ "spiffe://lab/node", RPC_ROLE_NONE, "", false },
		{ "spiffe://lab", RPC_ROLE_NONE, "", false },
		{ "https://lab/node/a", RPC_ROLE_NONE, "", false },
		{ "", RPC_ROLE_NONE, "", false },
		{ "spiffe://lab/node/", RPC_ROLE_NONE, "", true },
		{ "spiffe:///node/a", RPC_ROLE_NONE, "", true },
		{ "spiffe://lab/node/a/b", RPC_ROLE_NONE, "", true },
		{ "spiffe://lab/node/a b", RPC_ROLE_NONE, "", true },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct rpc_identity identity = { 0 };
		rpc_identity_add(&identity, rows[i].uri, strlen(rows[i].uri));
		ck_assert_str_eq(identity.cluster, identity.role ? "lab" : "");
		ck_assert_msg(identity.role == rows[i].role && identity.is_bad == rows[i].is_bad &&
				      strcmp(identity.name, rows[i].name) == 0,
			      "%s", rows[i].uri);
	}
	struct rpc_identity identity = { 0 };
	char uri[] = "spiffe://lab/node/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; /* 65 */
	rpc_identity_add(&identity, uri, strlen(uri) - 1);
	ck_assert_int_eq(identity.role, RPC_ROLE_NODE);
	ck_assert_uint_eq(strlen(identity.name), RPC_ROLE_NAME_MAX);
	identity = (struct rpc_identity){ 0 };
	rpc_identity_add(&identity, uri, strlen(uri));
	ck_assert(identity.is_bad);
	identity = (struct rpc_identity){ 0 };
	char domain[] = "spiffe://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/node/b"; /* 65 */
	rpc_identity_add(&identity, domain, strlen(domain));
	ck_assert(identity.is_bad);
	ck_assert(!rpc_identity_is_foreign(&(struct rpc_identity){ 0 }, "lab"));
	identity = (struct rpc_identity){ 0 };
	rpc_identity_add(&identity, "spiffe://lab/node/a\0b", 21); /* a NUL is no character of a name */
	ck_assert(identity.is_bad);
}
END_TEST

/* ---- certificates ---- */

static void set_up_tls(void)
{
	certify_all();
	set_up_with("hub");
}

static void refused_as(const char *who, enum status st, const char *text)
{
	dial_as(who, NULL);
	open_stream(true);
	node_send(1, 1);
	run_until(node_ended);
	ck_assert_msg(at_node.status == st && strstr(at_node.text, text), "%s: %s, %s", who,
		      status_info(at_node.status)->name, at_node.text);
	ck_assert_uint_eq(at_hub.messages, 0);
}

/* ---- who may link ---- */

START_TEST(a_node_links)
{
	dial_as("a", NULL);
	at_hub.echo = true;
	connected(true);
	ck_assert_int_eq(at_hub.peer.role, RPC_ROLE_NODE);
	ck_assert_str_eq(at_hub.peer.role_name, "a");
	ck_assert_str_eq(at_hub.peer.name, "a");
	ck_assert(!at_hub.peer.is_unix && !at_hub.peer.has_token);
}
END_TEST

START_TEST(others_do_not_link)
{
	refused_as("boss", ST_PERMISSION_DENIED,
		   "PeerService/Link: certificate \"boss\" has the role admin/jane; needed: node");
	refused_as("hub", ST_PERMISSION_DENIED, "certificate \"hub\" has the role coordinator/hub; needed: node");
	refused_as("plain", ST_PERMISSION_DENIED, "certificate \"plain\" has no role; needed: node");
	refused_as("both", ST_UNAUTHENTICATED, "certificate \"both\": its URIs name several roles");
	refused_as("mallory", ST_UNAVAILABLE, "");
}
END_TEST

START_TEST(only_a_coordinator_is_an_upstream)
{
	static const char *const hubs[][2] = {
		{ "a", "certificate \"a\" has the role node/a; needed: coordinator" },
		{ "plain", "certificate \"plain\" has no role; needed: coordinator" },
		{ "both", "certificate \"both\": its URIs name several roles" },
		{ "farhub",
		  "certificate \"farhub\" is of another cluster, \"elsewhere\", and that of this gaccd of \"lab\"" },
	};
	for (size_t i = 0; i < 4; i++) {
		set_up_with(hubs[i][0]);
		refused_as("a", ST_UNAVAILABLE, hubs[i][1]);
		tear_down();
		n_stopped = 0;
		upstream = NULL;
	}
}
END_TEST

/* More certificates than a chain has are not even read, and no signature in a handshake is looked at but the one that
 * shows that the other side has its key: the thread that does it serves all. */
START_TEST(a_long_chain)
{
	SSL_CTX *made = SSL_CTX_new(TLS_method());
	ck_assert_int_eq(SSL_CTX_get_verify_depth(made), 0);
	SSL_CTX_free(made);
	certify_between("middle");
	for (int i = 0; i < 40; i++)
		join_chain("boss", "middle");
	refused_as("boss", ST_UNAVAILABLE, ""); /* else: PERMISSION_DENIED */
	for (int i = 0; i < 8; i++)
		join_chain("a", "middle");
	dial_as("a", NULL);
	at_hub.echo = true;
	connected(true);
}
END_TEST

/* On both sides: who connects sends the certificates between its own and the authority. */
START_TEST(over_another_authority)
{
	certify_between("middle");
	certify_by("middle", "hub", "coordinator");
	certify_by("middle", "a", "node");
	tear_down();
	n_stopped = 0;
	upstream = NULL;
	set_up_with("hub");
	refused_as("a", ST_UNAVAILABLE, "is of another authority than those in"); /* the hub sends its own alone */
	tear_down();
	n_stopped = 0;
	upstream = NULL;
	join_chain("hub", "middle");
	join_chain("a", "middle");
	set_up_with("hub");
	dial_as("a", NULL);
	connected(true);
	ck_assert_str_eq(at_hub.peer.role_name, "a");
}
END_TEST

START_TEST(the_upstream_has_the_right_name)
{
	dial_as("a", "elsewhere");
	open_stream(true);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(at_node.text, "Hostname Verification Check failed"));
}
END_TEST

/* ---- calls of gacc.v1 ---- */

struct caller {
	const char *who;
	struct rpc_failure failure;
};

static void *list_jobs(void *arg)
{
	struct caller *caller = arg;
	char target[64];
	snprintf(target, sizeof(target), "ipv4:127.0.0.1:%d", hub_port);
	struct rpc_channel_options options = { .target = target,
					       .cert_path = path_of(0, caller->who, "pem"),
					       .key_path = path_of(1, caller->who, "key"),
					       .ca_path = path_of(2, "ca", "pem") };
	struct rpc_channel *channel;
	Gacc__V1__ListRequest request = GACC__V1__LIST_REQUEST__INIT;
	ProtobufCMessage *reply;
	ck_assert_int_eq(rpc_channel_open(&options, &channel), ST_OK);
	rpc_channel_call(channel, &gacc__v1__job_service__descriptor, "List", &request.base, 20000, &reply,
			 &caller->failure);
	rpc_channel_close(channel);
	thread_done = true;
	return NULL;
}

/* The fixture's handler answers NOT_SUPPORTED. */
START_TEST(calls_of_users)
{
	static struct caller caller[] = {
		{ .who = "boss" }, { .who = "plain" }, { .who = "a" }, { .who = "hub" }, { .who = "far" }
	};
	for (size_t i = 0; i < 4; i++) {
		in_thread(list_jobs, &caller[i]);
		ck_assert_msg(caller[i].failure.status == (i < 2 ? ST_NOT_SUPPORTED : ST_PERMISSION_DENIED), "%s: %s",
			      caller[i].who, caller[i].failure.message);
	}
	ck_assert_str_eq(caller[2].failure.message,
			 "/gacc.v1.JobService/List: certificate \"a\" has the role node/a; needed: admin");
	in_thread(list_jobs, &caller[4]);
	ck_assert_int_eq(caller[4].failure.status, ST_UNAUTHENTICATED);
	ck_assert_str_eq(caller[4].failure.message,
			 "/gacc.v1.JobService/List: certificate \"far\" is of another cluster, \"elsewhere\"");
}
END_TEST

/* ---- new certificates ---- */

static bool linked(void)
{
	if (!at_node.stream) {
		open_stream(true);
		node_send(1, 1);
	}
	return at_hub.messages > 0;
}

/* Both take a new authority and new certificates while they run; connections that are open stay. */
START_TEST(certificates_change)
{
	dial_as("a", NULL); /* has read its files, and does not connect yet */
	new_authority();
	certify("hub", "URI:spiffe://lab/coordinator/hub" LOCAL);
	certify("a", "URI:spiffe://lab/node/b" LOCAL);
	turn_until(never, 4500); /* they look every 2 s, and the first look may have come in between */
	run_until(linked);
	ck_assert_str_eq(at_hub.peer.role_name, "b");
}
END_TEST

/* ---- revoked certificates ---- */

static enum status revoke_lines_at(struct rpc_server *server, const char *lines)
{
	const char *path = path_of(0, "revoked", "txt");
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	fputs(lines, file);
	fclose(file);
	return rpc_server_revoke(server, path);
}

static enum status revoke_lines(const char *lines)
{
	return revoke_lines_at(hub, lines);
}

/* The serial number of NAME.pem as openssl says it: "serial=0A1B...". */
static void serial_of(const char *name, char out[64])
{
	char command[256];
	snprintf(command, sizeof(command), "openssl x509 -noout -serial -in %s", path_of(0, name, "pem"));
	FILE *said = popen(command, "re");
	ck_assert_ptr_nonnull(said);
	ck_assert_ptr_nonnull(fgets(out, 64, said));
	pclose(said);
	out[strcspn(out, "\n")] = 0;
}

START_TEST(a_revoked_node)
{
	char serial[64], text[128];
	serial_of("a", serial);
	dial_as("a", NULL);
	connected(true);
	ck_assert_int_eq(revoke_lines("# none yet\n1\n"), ST_OK);
	turn_until(never, 100);
	ck_assert_uint_eq(at_node.ended, 0);
	snprintf(text, sizeof(text), "# lost on Monday\n\n%s  # this one\naa:bb\n", serial);
	ck_assert_int_eq(revoke_lines(text), ST_OK);
	run_until(node_ended); /* also a link that is open */
	ck_assert_int_eq(at_node.status, ST_UNAUTHENTICATED);
	ck_assert_ptr_nonnull(strstr(at_node.text, "certificate \"a\" (serial "));
	at_hub.messages = 0;
	refused_as("a", ST_UNAUTHENTICATED, "is revoked");
	ck_assert_int_eq(revoke_lines("zz\n"), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_revoke(hub, "/nowhere"), ST_IO_ERROR);
	refused_as("a", ST_UNAUTHENTICATED, "is revoked"); /* the old list holds */
	ck_assert_int_eq(revoke_lines(""), ST_OK);
	dial_as("a", NULL);
	connected(true);
}
END_TEST

START_TEST(a_revoked_coordinator)
{
	char serial[64];
	serial_of("hub", serial);
	ck_assert_int_eq(revoke_lines(serial), ST_OK);
	refused_as("a", ST_UNAVAILABLE, "is revoked");
}
END_TEST

/* Also over the connection that is there, on which nothing is checked any more. */
START_TEST(a_coordinator_that_is_revoked_while_linked)
{
	char serial[64], other[64];
	serial_of("hub", serial);
	serial_of("a", other); /* which is not the other side's */
	dial_as("a", NULL);
	connected(true);
	ck_assert_int_eq(revoke_lines_at(node, other), ST_OK);
	turn_until(never, 100);
	ck_assert_uint_eq(at_node.ended, 0);
	ck_assert_int_eq(revoke_lines_at(node, serial), ST_OK);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_UNAUTHENTICATED);
	ck_assert_ptr_nonnull(strstr(at_node.text, "its certificate (serial "));
	ck_assert_ptr_nonnull(strstr(at_node.text, ") is revoked"));
	at_node.ended = 0;
	open_stream(true); /* on the same upstream */
	node_send(1, 1);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(at_node.text, "certificate \"hub\" (serial "));
	ck_assert_int_eq(revoke_lines_at(node, ""), ST_OK);
	run_until(linked);
}
END_TEST

/* As openssl, browsers and people write them. */
START_TEST(forms_of_serials)
{
	static const char *const lines[] = {
		"8AC0", "8ac0\r\n", "serial=8AC0", "00:8A:C0", "00 8a c0 # lost", "0008AC0"
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		ck_assert_int_eq(revoke_lines(""), ST_OK);
		ck_assert(!revoked_has("8ac0"));
		ck_assert_int_eq(revoke_lines(lines[i]), ST_OK);
		ck_assert_msg(revoked_has("8ac0"), "%s", lines[i]);
	}
	ck_assert_int_eq(revoke_lines("00\n"), ST_OK);
	ck_assert(revoked_has("0"));
	ck_assert_int_eq(revoke_lines(""), ST_OK);
}
END_TEST

START_TEST(serials_of_certificates)
{
	char serial[REVOKED_SERIAL_MAX + 1], said[64], text[4096];
	certify_all();
	for (int i = 0; i < 10; i++) { /* with and without a leading zero */
		certify("x", "DNS:x");
		serial_of("x", said);
		FILE *file = fopen(path_of(0, "x", "pem"), "re");
		ck_assert_ptr_nonnull(file);
		size_t n = fread(text, 1, sizeof(text), file);
		fclose(file);
		ck_assert(revoked_serial(text, n, serial));
		const char *digits = said + strlen("serial=");
		ck_assert_int_eq(strcasecmp(serial, digits + (*digits == '0')), 0);
		for (size_t cut = 0; cut < 60; cut++)
			ck_assert(!revoked_serial(text, cut, serial));
	}
}
END_TEST

/* ---- users of the unix socket ---- */

/* What a user hears over the hub's unix socket: the stream's end, and the names of the services. */
struct as_user {
	char target[USERS_TARGET];
	struct rpc_failure failure;
	char services[512];
};

static void list_services(struct rpc_channel *channel, struct as_user *user)
{
	Grpc__Reflection__V1__ServerReflectionRequest request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
	char all[] = "";
	struct rpc_stream *stream;
	const ProtobufCMessage *base;
	request.message_request_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES;
	request.list_services = all;
	ck_assert_int_eq(rpc_stream_open(channel, &grpc__reflection__v1__server_reflection__descriptor,
					 "ServerReflectionInfo", 20000, 0, &stream),
			 ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &base, NULL), ST_OK);
	const Grpc__Reflection__V1__ListServiceResponse *list =
		((const Grpc__Reflection__V1__ServerReflectionResponse *)base)->list_services_response;
	for (size_t i = 0; i < list->n_service; i++)
		snprintf(user->services + strlen(user->services), sizeof(user->services) - strlen(user->services),
			 "%s ", list->service[i]->name);
	rpc_stream_free(stream);
}

static void *call_as_user(void *arg)
{
	struct as_user *user = arg;
	struct rpc_channel_options options = { .target = user->target };
	struct rpc_channel *channel;
	struct rpc_stream *stream;
	ck_assert_int_eq(rpc_channel_open(&options, &channel), ST_OK);
	ck_assert_int_eq(rpc_stream_open(channel, PEER, "Link", 20000, 0, &stream), ST_OK);
	rpc_stream_finish(stream, &user->failure);
	rpc_stream_free(stream);
	list_services(channel, user);
	rpc_channel_close(channel);
	thread_done = true;
	return NULL;
}

/* A user may not pretend to be a node, and is not told of the service. */
START_TEST(a_user_cannot_link)
{
	static struct as_user user;
	listen_for_users(hub, getuid(), user.target);
	in_thread(call_as_user, &user);
	ck_assert_int_eq(user.failure.status, ST_PERMISSION_DENIED);
	ck_assert_ptr_nonnull(strstr(user.failure.message, "/gacc.internal.v1.PeerService/Link: "));
	ck_assert_uint_eq(at_hub.messages, 0);
	ck_assert_ptr_nonnull(strstr(user.services, "gacc.v1.JobService "));
	ck_assert_ptr_null(strstr(user.services, "internal"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("roles");
	TCase *names = tcase_create("names");
	tcase_set_timeout(names, 60);
	tcase_add_test(names, roles_of_uris);
	tcase_add_test(names, serials_of_certificates);
	suite_add_tcase(suite, names);
	TCase *tls = tcase_create("tls");
	tcase_add_checked_fixture(tls, set_up_tls, tear_down);
	tcase_set_timeout(tls, 60);
	tcase_add_test(tls, a_node_links);
	tcase_add_test(tls, others_do_not_link);
	tcase_add_test(tls, a_long_chain);
	tcase_add_test(tls, over_another_authority);
	tcase_add_test(tls, the_upstream_has_the_right_name);
	tcase_add_test(tls, calls_of_users);
	tcase_add_test(tls, certificates_change);
	tcase_add_test(tls, a_revoked_node);
	tcase_add_test(tls, a_revoked_coordinator);
	tcase_add_test(tls, a_coordinator_that_is_revoked_while_linked);
	tcase_add_test(tls, forms_of_serials);
	suite_add_tcase(suite, tls);
	TCase *hubs = tcase_create("hubs");
	tcase_add_checked_fixture(hubs, certify_all, NULL);
	tcase_set_timeout(hubs, 60);
	tcase_add_test(hubs, only_a_coordinator_is_an_upstream);
	suite_add_tcase(suite, hubs);
	TCase *users = tcase_create("users");
	tcase_add_checked_fixture(users, set_up, tear_down);
	tcase_set_timeout(users, 60);
	tcase_add_test(users, a_user_cannot_link);
	suite_add_tcase(suite, users);
	return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The RPC server as a whole: stopping, identity, health, reflection, the check at the start. */
#include "gacc/v1/job.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "rpc_calls.h"
#include "support/suite.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <grpc/status.h>

static atomic_int n_ok, n_bad;

static void *call_many(void *arg)
{
	struct rpc_failure f;
	for (uint32_t i = 0; i < 250; i++) {
		uint32_t count = 0;
		if (flush_on(channel, i, 60 * SECONDS, &count, &f) == ST_OK && count == i)
			n_ok++;
		else
			n_bad++;
	}
	return arg;
}

START_TEST(a_thousand_calls_from_four_threads)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, call_many, NULL);
	struct rpc_stream *stream = get_parameters(8u << 20, 1u << 20);
	ck_assert_uint_eq(read_all(stream), 8);
	rpc_stream_free(stream);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_int_eq(n_ok, 1000);
	ck_assert_int_eq(n_bad, 0);
}
END_TEST

static atomic_int codes[17];

/* Calls without retry until one fails, and notes the codes. */
static void *call_until_down(void *arg)
{
	struct rpc_channel *own = open_channel(server->target, NULL);
	struct rpc_failure f;
	uint32_t count;
	while (flush_on(own, 1, 10 * SECONDS, &count, &f) == ST_OK)
		codes[0]++;
	codes[f.grpc_code]++;
	rpc_channel_close(own);
	return arg;
}

/* Calls during the stop hear UNAVAILABLE and not CANCELLED, so that any client knows to repeat them. */
START_TEST(stop_under_load_answers_unavailable)
{
	enum { THREADS = 16, ROUNDS = 4 };
	pthread_t threads[THREADS];
	for (int round = 0; round < ROUNDS; round++) {
		tear_down();
		start_with((struct fixture_options){ .drain_ms = 100, .grace_ms = 30000 });
		for (int i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, call_until_down, NULL);
		while (fixture_wait(server, any_begun).begun < 200)
			;
		fixture_stop_begin(server);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
	}
	ck_assert_int_gt(codes[GRPC_STATUS_OK], 0);
	ck_assert_int_gt(codes[GRPC_STATUS_UNAVAILABLE], 0);
	for (int i = 1; i < 17; i++)
		if (i != GRPC_STATUS_UNAVAILABLE)
			ck_assert_msg(codes[i] == 0, "code %d came %d times", i, codes[i]);
}
END_TEST

START_TEST(drain_ends_long_streams)
{
	struct rpc_stream *stream = watch(2);
	const ProtobufCMessage *msg;
	for (int i = 0; i < 2; i++) /* both have been sent when the drain begins */
		ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	fixture_stop_begin(server);
	ck_assert_uint_eq(read_all(stream), 0);
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_DRAINING);
	rpc_stream_free(stream);
}
END_TEST

/* A call that nobody answers is cancelled when the grace is over. */
START_TEST(stop_does_not_wait_for_ever)
{
	struct rpc_stream *stream = parked_call();
	fixture_wait(server, any_begun);
	fixture_stop_begin(server);
	ck_assert_int_ne(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
}
END_TEST

/* As libgacc repeats it. */
static void *call_until_answered(void *arg)
{
	enum status *st = arg;
	struct rpc_failure f;
	uint32_t count;
	for (int i = 0; i < 3000; i++) {
		*st = flush_on(channel, 3, 30 * SECONDS, &count, &f);
		if (*st != ST_UNAVAILABLE && *st != ST_CANCELLED)
			break;
		usleep(10000);
	}
	return NULL;
}

/* A channel finds the server again after a restart. */
START_TEST(restart)
{
	char path[80], dir[64];
	uint32_t count;
	pthread_t thread;
	enum status st;
	tear_down();
	temp_dir(dir);
	snprintf(path, sizeof(path), "%s/s", dir);
	start_with((struct fixture_options){ .socket = path });
	ck_assert_int_eq(flush(1, 10 * SECONDS, &count), ST_OK);
	fixture_stop(server);
	ck_assert_int_eq(flush(1, 10 * SECONDS, &count), ST_UNAVAILABLE);
	pthread_create(&thread, NULL, call_until_answered, &st);
	server = fixture_start(&(struct fixture_options){ .socket = path, .grace_ms = 100 });
	pthread_join(thread, NULL);
	ck_assert_int_eq(st, ST_OK);
	tear_down();
	rmdir(dir);
	set_up();
}
END_TEST

static bool token_is_right(void *context, const char *token, size_t len)
{
	return len == strlen(context) && memcmp(token, context, len) == 0;
}

static enum status health_on(struct rpc_channel *on, const char *name, int *out_state)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	ProtobufCMessage *reply;
	char service[64];
	request.service = strcpy(service, name);
	enum status st = rpc_channel_call(on, &grpc__health__v1__health__descriptor, "Check", &request.base,
					  10 * SECONDS, &reply, &failure);
	if (st == ST_OK) {
		*out_state = (int)((Grpc__Health__V1__HealthCheckResponse *)reply)->status;
		bytes_free(reply);
	}
	return st;
}

START_TEST(tcp_needs_the_token)
{
	static char secret[] = "s3cret";
	struct rpc_tcp_identity identity = { .token_ok = token_is_right, .context = secret };
	const char *tokens[] = { NULL, "wrong", "s3cret" };
	enum status expected[] = { ST_UNAUTHENTICATED, ST_UNAUTHENTICATED, ST_OK };
	char target[64];
	uint32_t count;
	int state;
	tear_down();
	start_with((struct fixture_options){ .tcp = &identity });
	snprintf(target, sizeof(target), "ipv4:127.0.0.1:%d", server->tcp_port);
	for (int i = 0; i < 3; i++) {
		struct rpc_channel *tcp = open_channel(target, tokens[i]);
		ck_assert_int_eq(flush_on(tcp, 8, 10 * SECONDS, &count, &failure), expected[i]);
		ck_assert_int_eq(health_on(tcp, "", &state), ST_OK);
		rpc_channel_close(tcp);
	}
	ck_assert_int_eq(flush(8, 10 * SECONDS, &count), ST_OK);
}
END_TEST

/* Who connects and says nothing would keep one of the connections that there are. */
START_TEST(a_connection_says_something_soon)
{
	static char secret[] = "s3cret";
	struct rpc_tcp_identity identity = { .token_ok = token_is_right, .context = secret };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct pollfd silent = { .fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLRDHUP };
	tear_down();
	start_with((struct fixture_options){ .tcp = &identity, .config = { .handshake_ms = 300 } });
	at.sin_port = htons((uint16_t)server->tcp_port);
	ck_assert_int_eq(connect(silent.fd, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(poll(&silent, 1, 10000), 1);
	close(silent.fd);
}
END_TEST

/* An authority, and a key pair signed by it for "node-a" and one signed by itself for "mallory". */
static void make_certificates(const char *dir)
{
	char command[2048];
	snprintf(command, sizeof(command),
		 "cd %s && exec >/dev/null 2>&1 && new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
		 "-nodes' && "
		 "$new -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem && "
		 "$new -subj /CN=node-a -addext subjectAltName=DNS:node-a -keyout a.key -out a.csr && "
		 "openssl x509 -req -in a.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy "
		 "-out a.pem && "
		 "$new -x509 -days 2 -subj /CN=mallory -keyout m.key -out m.pem",
		 dir);
	ck_assert_int_eq(system(command), 0);
}

static enum status name_over_tls(const char *target, const char *dir, const char *who)
{
	char cert[96], key[96], ca[96];
	uint32_t count;
	struct rpc_channel *tcp;
	snprintf(cert, sizeof(cert), "%s/%s.pem", dir, who);
	snprintf(key, sizeof(key), "%s/%s.key", dir, who);
	snprintf(ca, sizeof(ca), "%s/ca.pem", dir);
	struct rpc_channel_options options = {
		.target = target, .cert_path = cert, .key_path = key, .ca_path = ca, .server_name = "node-a"
	};
	ck_assert_int_eq(rpc_channel_open(&options, &tcp), ST_OK);
	enum status st = flush_on(tcp, FIXTURE_NAME, 20 * SECONDS, &count, &failure);
	rpc_channel_close(tcp);
	return st;
}

START_TEST(mutual_tls)
{
	char dir[64], cert[96], key[96], ca[96], target[64], command[96];
	uint32_t count;
	temp_dir(dir);
	make_certificates(dir);
	snprintf(cert, sizeof(cert), "%s/a.pem", dir);
	snprintf(key, sizeof(key), "%s/a.key", dir);
	snprintf(ca, sizeof(ca), "%s/ca.pem", dir);
	struct rpc_tcp_identity identity = { .cert_path = cert, .key_path = key, .ca_path = ca };
	tear_down();
	start_with((struct fixture_options){ .tcp = &identity });
	snprintf(target, sizeof(target), "ipv4:127.0.0.1:%d", server->tcp_port);
	ck_assert_int_eq(name_over_tls(target, dir, "a"), ST_NOT_READY);
	ck_assert_str_eq(failure.message, "node-a");
	ck_assert_int_eq(name_over_tls(target, dir, "m"), ST_UNAVAILABLE);
	struct rpc_channel *plain = open_channel(target, "token");
	ck_assert_int_eq(flush_on(plain, 1, 20 * SECONDS, &count, &failure), ST_UNAVAILABLE);
	rpc_channel_close(plain);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

static void set_serving(struct fixture *fixture, void *arg)
{
	ck_assert_int_eq(rpc_health_set(fixture->health, "gacc.v1.JobService", *(bool *)arg), ST_OK);
}

static int next_state(struct rpc_stream *stream)
{
	const ProtobufCMessage *msg;
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_ptr_nonnull(msg);
	return (int)((const Grpc__Health__V1__HealthCheckResponse *)msg)->status;
}

START_TEST(health)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	struct rpc_stream *stream;
	int state;
	char name[] = "gacc.v1.JobService";
	ck_assert_int_eq(health_on(channel, "", &state), ST_OK);
	ck_assert_int_eq(state, 1);
	ck_assert_int_ne(health_on(channel, name, &state), ST_OK);
	ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_NOT_FOUND);

	request.service = name;
	ck_assert_int_eq(rpc_stream_open(channel, &grpc__health__v1__health__descriptor, "Watch", 0, 0, &stream),
			 ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(next_state(stream), 3);
	fixture_do(server, set_serving, &(bool){ true });
	ck_assert_int_eq(next_state(stream), 1);
	fixture_do(server, set_serving, &(bool){ true }); /* no change, no message */
	fixture_do(server, set_serving, &(bool){ false });
	ck_assert_int_eq(next_state(stream), 2);
	ck_assert_int_eq(health_on(channel, name, &state), ST_OK);
	ck_assert_int_eq(state, 2);
	rpc_stream_free(stream);
}
END_TEST

static struct rpc_stream *watch_health(struct rpc_channel *on)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	struct rpc_stream *stream;
	ck_assert_int_eq(rpc_stream_open(on, &grpc__health__v1__health__descriptor, "Watch", 0, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

/* Those without the token have 64 calls together, and take none from those who have it. */
START_TEST(unauthenticated_clients_have_few_calls)
{
	enum { STRANGERS = 64 };
	static char secret[] = "s3cret";
	struct rpc_tcp_identity identity = { .token_ok = token_is_right, .context = secret };
	struct rpc_stream *watching[STRANGERS];
	char target[64];
	uint32_t count;
	int state;
	tear_down();
	start_with((struct fixture_options){ .tcp = &identity });
	snprintf(target, sizeof(target), "ipv4:127.0.0.1:%d", server->tcp_port);
	struct rpc_channel *strange = open_channel(target, "wrong"), *known = open_channel(target, secret);
	for (int i = 0; i < STRANGERS; i++) {
		watching[i] = watch_health(strange);
		ck_assert_int_eq(next_state(watching[i]), 1);
	}
	ck_assert_int_eq(health_on(strange, "", &state), ST_RESOURCE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(failure.message, "64 calls of callers without a token"));
	struct rpc_stream *more = watch_health(known);
	ck_assert_int_eq(next_state(more), 1);
	rpc_stream_free(more);
	ck_assert_int_eq(flush_on(known, 8, 10 * SECONDS, &count, &failure), ST_OK);
	rpc_stream_free(watching[0]);
	while (health_on(strange, "", &state) != ST_OK)
		ck_assert_int_eq(failure.grpc_code, GRPC_STATUS_RESOURCE_EXHAUSTED);
	for (int i = 1; i < STRANGERS; i++)
		rpc_stream_free(watching[i]);
	rpc_channel_close(strange);
	rpc_channel_close(known);
}
END_TEST

typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_reply;
#define ASK(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define GOT(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static const reflection_reply *ask(struct rpc_stream *stream, int what, const char *text)
{
	Grpc__Reflection__V1__ServerReflectionRequest request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
	const ProtobufCMessage *msg;
	char value[64];
	request.message_request_case = (Grpc__Reflection__V1__ServerReflectionRequest__MessageRequestCase)what;
	request.file_containing_symbol = strcpy(value, text); /* the string members share a union */
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
	ck_assert_ptr_nonnull(msg);
	return (const reflection_reply *)msg;
}

static void reflect(const ProtobufCServiceDescriptor *service)
{
	struct rpc_stream *stream;
	const char *found[] = { "gacc.v1.GradientService", "gacc.v1.GradientService.Push", "gacc.v1.PushRequest",
				"gacc.v1.PushRequest.micro", "gacc.v1.PushResult" };
	const char *absent[] = { "gacc.v1.Nope", "gacc.v1.GradientService.Nope", "gacc.v1.PushRequest.nope", "gacc.v1",
				 "x" };
	ck_assert_int_eq(rpc_stream_open(channel, service, "ServerReflectionInfo", 10 * SECONDS, 0, &stream), ST_OK);
	const reflection_reply *reply = ask(stream, ASK(LIST_SERVICES), "");
	ck_assert_int_eq(reply->message_response_case, GOT(LIST_SERVICES_RESPONSE));
	ck_assert_uint_eq(reply->list_services_response->n_service, 6);
	ck_assert_str_eq(reply->list_services_response->service[0]->name, "gacc.v1.GradientService");
	for (size_t i = 0; i < 5; i++) {
		reply = ask(stream, ASK(FILE_CONTAINING_SYMBOL), found[i]);
		ck_assert_int_eq(reply->message_response_case, GOT(FILE_DESCRIPTOR_RESPONSE));
		ck_assert_uint_eq(reply->file_descriptor_response->n_file_descriptor_proto, 2); /* and common.proto */
		reply = ask(stream, ASK(FILE_CONTAINING_SYMBOL), absent[i]);
		ck_assert_int_eq(reply->message_response_case, GOT(ERROR_RESPONSE));
		ck_assert_int_eq(reply->error_response->error_code, GRPC_STATUS_NOT_FOUND);
	}
	reply = ask(stream, ASK(FILE_BY_FILENAME), "gacc/v1/node.proto");
	ck_assert_uint_eq(reply->file_descriptor_response->n_file_descriptor_proto, 1);
	reply = ask(stream, ASK(FILE_BY_FILENAME), "nope.proto");
	ck_assert_int_eq(reply->message_response_case, GOT(ERROR_RESPONSE));
	ck_assert_int_eq(rpc_stream_finish(stream, &failure), ST_OK);
	rpc_stream_free(stream);
}

START_TEST(reflection)
{
	reflect(&grpc__reflection__v1__server_reflection__descriptor);
	reflect(&grpc__reflection__v1alpha__server_reflection__descriptor);
}
END_TEST

static enum status start_with_rows(const struct rpc_method *rows, size_t n)
{
	struct rpc_server *own;
	ck_assert_int_eq(rpc_server_new(&(struct rpc_config){ 0 }, &own), ST_OK);
	enum status st = rpc_server_add(own, rows, n, NULL);
	if (st == ST_OK)
		st = rpc_server_start(own);
	rpc_server_free(own);
	return st;
}

/* Rows that do not match the .proto: refused before anything listens. */
START_TEST(rows_must_match_the_protos)
{
	struct rpc_method rows[FIXTURE_ROWS + 1];
	fixture_rows(rows);
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS - 1), ST_INTERNAL); /* GetNode is missing */
	ck_assert_int_eq(start_with_rows(rows, 13), ST_INTERNAL);		/* two services are */
	rows[0].kind = RPC_CLIENT_STREAM;
	rows[0].on_half_close = rows[2].on_half_close;
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
	fixture_rows(rows);
	rows[2].on_half_close = NULL;
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
	fixture_rows(rows);
	rows[FIXTURE_ROWS] = rows[3];
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS + 1), ST_INTERNAL);
	rows[0].name = "Nope";
	ck_assert_int_eq(start_with_rows(rows, FIXTURE_ROWS), ST_INTERNAL);
}
END_TEST

START_TEST(tcp_without_identity_is_refused)
{
	static char secret[] = "x";
	struct rpc_tcp_identity token = { .token_ok = token_is_right, .context = secret }, none = { 0 };
	struct rpc_tcp_identity files = { .cert_path = "/nonexistent",
					  .key_path = "/nonexistent",
					  .ca_path = "/nonexistent" };
	struct rpc_server *own;
	int port;
	ck_assert_int_eq(rpc_server_new(&(struct rpc_config){ 0 }, &own), ST_OK);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &none, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "0.0.0.0:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "[::]:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1.evil.example:0", &token, &port), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &files, &port), ST_IO_ERROR);
	ck_assert_int_eq(rpc_server_listen_tcp(own, "127.0.0.1:0", &token, &port), ST_OK);
	ck_assert_int_gt(port, 0);
	rpc_server_free(own);
}
END_TEST

START_TEST(channel_options_are_checked)
{
	struct rpc_channel *opened;
	struct rpc_channel_options bad[] = {
		{ 0 }, { .target = "127.0.0.1:1" }, { .target = "unix:" }, { .target = "unix:/x", .cert_path = "/x" }
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_int_eq(rpc_channel_open(&bad[i], &opened), ST_INVALID_ARGUMENT);
	struct rpc_channel_options files = {
		.target = "unix:/x", .cert_path = "/nonexistent", .key_path = "/nonexistent", .ca_path = "/nonexistent"
	};
	ck_assert_int_eq(rpc_channel_open(&files, &opened), ST_IO_ERROR);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_server");
	TCase *tc = tcase_create("server");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, a_thousand_calls_from_four_threads);
	tcase_add_test(tc, stop_under_load_answers_unavailable);
	tcase_add_test(tc, drain_ends_long_streams);
	tcase_add_test(tc, stop_does_not_wait_for_ever);
	tcase_add_test(tc, restart);
	tcase_add_test(tc, tcp_needs_the_token);
	tcase_add_test(tc, a_connection_says_something_soon);
	tcase_add_test(tc, unauthenticated_clients_have_few_calls);
	tcase_add_test(tc, mutual_tls);
	tcase_add_test(tc, health);
	tcase_add_test(tc, reflection);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	tc = tcase_create("settings");
	tcase_add_test(tc, rows_must_match_the_protos);
	tcase_add_test(tc, tcp_without_identity_is_refused);
	tcase_add_test(tc, channel_options_are_checked);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Streams from one gaccd to another: messages, bounds, every way to end, and what is refused. */
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"
#include "two_servers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE (64u << 10)

/* ---- messages ---- */

static bool hundred_came_back(void)
{
	return at_node.messages == 100;
}

START_TEST(messages_go_both_ways)
{
	at_hub.echo = true;
	open_stream(true);
	for (uint32_t i = 0; i < 100; i++)
		ck_assert_int_eq(node_send(i, i), ST_OK);
	run_until(hundred_came_back);
	ck_assert_uint_eq(at_node.last_kind, 99);
	ck_assert_uint_eq(at_hub.bytes, 99 * 100 / 2);
	ck_assert_str_eq(at_hub.peer.name, "token");
	ck_assert_uint_eq(at_node.ended, 0);
}
END_TEST

static unsigned sent; /* whole messages; all of them are at the hub when it has as many bytes */

static bool hub_has_all(void)
{
	if (at_hub.call && at_hub.hold) { /* lets it read */
		at_hub.hold = false;
		rpc_recv(at_hub.call);
	}
	return at_hub.bytes == (size_t)sent * PIECE;
}

static bool all_has_left(void)
{
	return rpc_outgoing_room(at_node.stream) == QUEUE;
}

/* Messages that the hub does not read wait here and in the windows of the connection, and no more of them are taken. */
START_TEST(sending_is_bounded)
{
	at_hub.hold = true;
	connected(true);
	for (int i = 0; i < 5; i++) {
		while (node_send(2, PIECE) == ST_OK)
			ck_assert_uint_le(++sent, 1024);
		turn_until(never, 20);
	}
	ck_assert_int_eq(node_send(2, PIECE), ST_RESOURCE_EXHAUSTED);
	ck_assert_uint_ge(sent, QUEUE / PIECE);
	ck_assert_uint_le(sent, 8 * QUEUE / PIECE);
	ck_assert_uint_eq(rpc_outgoing_room(at_node.stream), 0);
	ck_assert_uint_eq(at_hub.messages, 1);
	unsigned before = at_node.writable;
	run_until(hub_has_all);
	ck_assert_uint_gt(at_node.writable, before);
	run_until(all_has_left);
}
END_TEST

static bool all_came(void)
{
	return at_node.messages == sent;
}

/* What the node has not asked for stays with the hub, beyond the connection's windows. */
START_TEST(reading_is_bounded)
{
	connected(false);
	for (int i = 0; i < 5; i++) {
		while (hub_send(3, PIECE) == ST_OK)
			ck_assert_uint_le(++sent, 1024);
		turn_until(never, 20);
	}
	ck_assert_uint_ge(sent, (8u << 20) / PIECE);
	ck_assert_uint_le(sent, (12u << 20) / PIECE);
	ck_assert_uint_eq(at_node.messages, 0);
	rpc_outgoing_recv(at_node.stream);
	turn_until(never, 50);
	ck_assert_uint_eq(at_node.messages, 1); /* one for each request */
	at_node.reads = true;
	rpc_outgoing_recv(at_node.stream);
	run_until(all_came);
}
END_TEST

static bool ten_came(void)
{
	return at_node.messages == 10;
}

START_TEST(two_requests_are_one)
{
	connected(false);
	for (uint32_t i = 0; i < 10; i++)
		ck_assert_int_eq(hub_send(i, 1), ST_OK);
	rpc_outgoing_recv(at_node.stream);
	rpc_outgoing_recv(at_node.stream);
	turn_until(never, 50);
	ck_assert_uint_eq(at_node.messages, 1);
	at_node.reads = true;
	rpc_outgoing_recv(at_node.stream);
	run_until(ten_came);
	ck_assert_uint_eq(at_node.last_kind, 9);
}
END_TEST

/* ---- ends ---- */

START_TEST(nobody_listens)
{
	dial(1, TOKEN);
	open_stream(true);
	ck_assert_int_eq(node_send(1, 10), ST_OK);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_UNAVAILABLE);
	ck_assert_str_ne(at_node.text, "");
}
END_TEST

START_TEST(wrong_token)
{
	static const char *const tokens[] = { "wrong", NULL };
	for (size_t i = 0; i < 2; i++) {
		dial(hub_port, tokens[i]);
		open_stream(true);
		run_until(node_ended);
		ck_assert_int_eq(at_node.status, ST_UNAUTHENTICATED);
		ck_assert_uint_eq(at_hub.messages, 0);
	}
}
END_TEST

START_TEST(the_hub_ends_it)
{
	connected(true);
	rpc_failf(at_hub.call, ST_STALE_TERM, "not my node");
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_STALE_TERM);
	ck_assert_str_eq(at_node.text, "not my node");
	at_hub.messages = 0;
	connected(true);
	rpc_finish(at_hub.call, NULL);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_OK);
	ck_assert_uint_eq(at_node.ended, 1);
}
END_TEST

START_TEST(cancelled)
{
	at_hub.echo = true;
	connected(true);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(node_send(1, PIECE), ST_OK);
	rpc_outgoing_cancel(at_node.stream);
	unsigned before = at_node.messages, writable = at_node.writable;
	ck_assert_uint_eq(at_node.ended, 0);
	ck_assert_int_eq(node_send(1, 1), ST_CANCELLED);
	ck_assert_uint_eq(rpc_outgoing_room(at_node.stream), 0);
	rpc_outgoing_cancel(at_node.stream);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_CANCELLED);
	ck_assert_uint_eq(at_node.messages, before);
	ck_assert_uint_eq(at_node.writable, writable);
	run_until(hub_ended);
}
END_TEST

/* A hub in a process of its own, which is killed. */
static void hub_process(int out)
{
	uv_loop_init(&loop);
	hub = serve(&link_row, &hub_port);
	if (write(out, &hub_port, sizeof(hub_port)) != sizeof(hub_port))
		_exit(1);
	uv_run(&loop, UV_RUN_DEFAULT);
	_exit(1);
}

static bool one_came(void)
{
	return at_node.messages >= 1;
}

static void dial_process(pid_t *out_pid)
{
	int fds[2];
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	*out_pid = fork();
	ck_assert_int_ge(*out_pid, 0);
	if (*out_pid == 0) {
		at_hub.echo = true;
		hub_process(fds[1]);
	}
	ck_assert_int_eq(read(fds[0], &hub_port, sizeof(hub_port)), sizeof(hub_port));
	close(fds[0]);
	close(fds[1]);
}

START_TEST(the_hub_dies)
{
	pid_t pid;
	dial_process(&pid);
	uv_loop_init(&loop);
	node = serve(&link_row, NULL);
	dial(hub_port, TOKEN);
	open_stream(true);
	ck_assert_int_eq(node_send(1, 10), ST_OK);
	run_until(one_came);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_UNAVAILABLE);
	rpc_server_stop(node, 0, 0, on_stopped, NULL);
	run_until(one_stopped);
	free_all();
}
END_TEST

/* A row whose answers are not what the node expects. */
START_TEST(a_malformed_message_ends_it)
{
	static const ProtobufCMethodDescriptor method = { "Link", &gacc__internal__v1__peer_message__descriptor,
							  &gacc__v1__label__descriptor };
	ProtobufCServiceDescriptor service = *PEER;
	struct rpc_method row = link_row;
	Gacc__V1__Label label = GACC__V1__LABEL__INIT;
	char key[] = "\x7f";
	int port;
	service.methods = &method;
	row.service = &service;
	rpc_server_stop(hub, 0, 0, on_stopped, NULL);
	run_until(one_stopped);
	rpc_server_free(hub);
	n_stopped = 0;
	hub = serve(&row, &port);
	dial(port, TOKEN);
	connected(true);
	label.key = key;
	ck_assert_int_eq(rpc_send(at_hub.call, &label.base), ST_OK);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_MALFORMED);
	ck_assert_ptr_nonnull(strstr(at_node.text, "gacc.internal.v1.Hello"));
	ck_assert_uint_eq(at_node.messages, 0);
	tear_down(); /* `row` ends here */
	n_stopped = 0;
	upstream = NULL;
	set_up();
}
END_TEST

START_TEST(a_large_message_ends_it)
{
	connected(true);
	ck_assert_int_eq(hub_send(1, RPC_OUTGOING_MESSAGE_MAX + 1), ST_OK);
	run_until(node_ended);
	ck_assert_int_eq(at_node.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_uint_eq(at_node.messages, 0);
}
END_TEST

/* ---- stops ---- */

/* One has stopped; the rest of tear_down. */
static void stop_other(struct rpc_server *other)
{
	rpc_server_stop(other, 0, 0, on_stopped, NULL);
	run_until(both_stopped);
	free_all();
}

START_TEST(a_stop_ends_open_streams)
{
	connected(true);
	rpc_server_stop(node, 50, 60000, on_stopped, NULL);
	ck_assert_int_eq(node_send(1, 1), ST_OK); /* until the drain is over */
	run_until(one_stopped);
	ck_assert_uint_eq(at_node.ended, 1);
	ck_assert_int_eq(at_node.status, ST_CANCELLED);
	ck_assert_int_eq(try_open("Link"), ST_UNAVAILABLE);
	stop_other(hub);
}
END_TEST

START_TEST(a_stop_waits_for_forgotten_streams)
{
	connected(true);
	rpc_upstream_free(upstream);
	upstream = NULL;
	rpc_server_stop(node, 0, 60000, on_stopped, NULL);
	run_until(one_stopped);
	ck_assert_uint_eq(at_node.ended, 0);
	run_until(hub_ended);
	stop_other(hub);
}
END_TEST

static void free_upstream(void)
{
	rpc_upstream_free(upstream);
	upstream = NULL;
}

START_TEST(freed_as_its_stream_ends)
{
	connected(true);
	at_node.on_ended = free_upstream;
	rpc_failf(at_hub.call, ST_STALE_TERM, "go away");
	run_until(node_ended);
	ck_assert_ptr_null(upstream);
}
END_TEST

START_TEST(the_hub_stops)
{
	connected(true);
	rpc_server_stop(hub, 0, 50, on_stopped, NULL);
	run_until(one_stopped);
	run_until(node_ended);
	ck_assert_int_ne(at_node.status, ST_OK);
	stop_other(node);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(configurations)
{
	struct rpc_upstream_config half = { .address = "127.0.0.1:1", .cert_path = "/a" };
	struct rpc_upstream_config missing = {
		.address = "10.0.0.1:1", .cert_path = "/nowhere", .key_path = "/nowhere", .ca_path = "/nowhere"
	};
	struct rpc_upstream_config remote_token = missing;
	remote_token.token = TOKEN;
	rpc_upstream_free(upstream);
	upstream = NULL;
	ck_assert_int_eq(upstream_with("10.0.0.1:7420", NULL), ST_INVALID_CONFIG);
	ck_assert_int_eq(upstream_with("10.0.0.1:7420", TOKEN), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_upstream_new(node, &half, &upstream), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_upstream_new(node, &remote_token, &upstream), ST_INVALID_CONFIG);
	ck_assert_int_eq(rpc_upstream_new(node, &missing, &upstream), ST_IO_ERROR);
	dial(hub_port, TOKEN);
	ck_assert_int_eq(try_open("Nope"), ST_UNIMPLEMENTED);
}
END_TEST

static enum status start_with_links(const struct rpc_method *links, size_t n)
{
	struct rpc_method rows[FIXTURE_ROWS];
	struct rpc_server *server;
	fixture_rows(rows);
	ck_assert_int_eq(rpc_server_new(&(struct rpc_config){ 0 }, &server), ST_OK);
	ck_assert_int_eq(rpc_server_add(server, rows, FIXTURE_ROWS, NULL), ST_OK);
	ck_assert_int_eq(rpc_server_add(server, links, n, NULL), ST_OK);
	enum status st = rpc_server_start(server);
	rpc_server_free(server);
	return st;
}

START_TEST(rows_of_internal_services)
{
	struct rpc_method two[] = { link_row, link_row };
	ck_assert_int_eq(start_with_links(two, 2), ST_INTERNAL);
	two[0].on_half_close = NULL;
	ck_assert_int_eq(start_with_links(two, 1), ST_INTERNAL);
	two[0] = link_row;
	two[0].flags = 0; /* not in the descriptor set */
	ck_assert_int_eq(start_with_links(two, 1), ST_INTERNAL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("upstream");
	TCase *one = tcase_create("streams");
	tcase_add_checked_fixture(one, set_up, tear_down);
	tcase_set_timeout(one, 60);
	tcase_add_test(one, messages_go_both_ways);
	tcase_add_test(one, sending_is_bounded);
	tcase_add_test(one, reading_is_bounded);
	tcase_add_test(one, two_requests_are_one);
	tcase_add_test(one, nobody_listens);
	tcase_add_test(one, wrong_token);
	tcase_add_test(one, the_hub_ends_it);
	tcase_add_test(one, cancelled);
	tcase_add_test(one, a_malformed_message_ends_it);
	tcase_add_test(one, a_large_message_ends_it);
	tcase_add_test(one, freed_as_its_stream_ends);
	tcase_add_test(one, configurations);
	suite_add_tcase(suite, one);
	TCase *stops = tcase_create("stops");
	tcase_add_checked_fixture(stops, set_up, NULL);
	tcase_set_timeout(stops, 60);
	tcase_add_test(stops, a_stop_ends_open_streams);
	tcase_add_test(stops, a_stop_waits_for_forgotten_streams);
	tcase_add_test(stops, the_hub_stops);
	suite_add_tcase(suite, stops);
	TCase *others = tcase_create("others");
	tcase_set_timeout(others, 60);
	tcase_add_test(others, the_hub_dies);
	tcase_add_test(others, rows_of_internal_services);
	suite_add_tcase(suite, others);
	return suite_run(suite);
}

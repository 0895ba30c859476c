/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a node's users that are passed on to the hub: what arrives there, what comes back, bounds, ends, and for
 * whom a node may speak. The fixture's rows are served by both, and the node counts none. Also what a handler of the
 * node asks the hub for its caller (rpc_ask). */
#include "certificates.h"
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "support/suite.h"
#include "two_servers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRADIENT (&gacc__v1__gradient_service__descriptor)
#define SECONDS 1000
#define USER 4711

/* A user's channel to the node; used by one thread at a time. */
static char target[USERS_TARGET];
static struct rpc_channel *channel;

static void set_up_relay(void)
{
	set_up();
	rpc_server_set_relay(node, upstream);
	listen_for_users(node, USER, target);
	ck_assert_int_eq(rpc_channel_open(&(struct rpc_channel_options){ .target = target }, &channel), ST_OK);
}

static void tear_down_relay(void)
{
	rpc_channel_close(channel);
	ck_assert_uint_eq(node_calls.counts.begun, 0);
	tear_down();
}

/* Flush is the fixture's unary call. */
struct flush {
	uint64_t window;
	int64_t timeout_ms;
	uint32_t count;
	struct rpc_failure failure;
};

static void *run_flush(void *arg)
{
	struct flush *flush = arg;
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	ProtobufCMessage *reply;
	request.window = flush->window;
	if (rpc_channel_call(channel, GRADIENT, "Flush", &request.base, flush->timeout_ms, &reply, &flush->failure) ==
	    ST_OK) {
		flush->count = ((Gacc__V1__FlushResponse *)reply)->micro_count;
		bytes_free(reply);
	}
	thread_done = true;
	return NULL;
}

static struct flush flushed(uint64_t window, int64_t timeout_ms)
{
	struct flush flush = { .window = window, .timeout_ms = timeout_ms };
	in_thread(run_flush, &flush);
	return flush;
}

/* ---- what goes through ---- */

START_TEST(a_request_and_its_reply)
{
	for (uint32_t i = 1; i <= 20; i++) {
		struct flush flush = flushed(i, 20 * SECONDS);
		ck_assert_int_eq(flush.failure.status, ST_OK);
		ck_assert_uint_eq(flush.count, i);
	}
	ck_assert_uint_eq(hub_calls.counts.begun, 20);
}
END_TEST

START_TEST(the_hub_knows_the_user)
{
	ck_assert_uint_eq(flushed(FIXTURE_UID, 20 * SECONDS).count, USER);
}
END_TEST

START_TEST(errors_with_all_details)
{
	struct rpc_failure f = flushed(FIXTURE_FAIL, 20 * SECONDS).failure;
	ck_assert_int_eq(f.status, ST_WINDOW_CLOSED);
	ck_assert_str_eq(f.message, "window 7 closed");
	ck_assert_str_eq(f.hint, "go on");
	ck_assert_str_eq(f.field, "window");
	ck_assert_int_eq(f.retry_after_ms, 5);
	ck_assert_uint_eq(f.n_missing_ranks, 2);
	ck_assert_uint_eq(f.missing_ranks[1], 5);
	struct rpc_failure longest = flushed(FIXTURE_LONG_ERROR, 20 * SECONDS).failure;
	rpc_server_set_relay(node, NULL);
	struct rpc_failure own = flushed(FIXTURE_LONG_ERROR, 20 * SECONDS).failure;
	ck_assert_uint_eq(node_calls.counts.begun, 1);
	node_calls.counts.begun = 0;
	ck_assert_int_eq(longest.status, ST_STALLED);
	ck_assert_str_eq(longest.message, own.message);
	ck_assert_uint_eq(longest.n_missing_ranks, own.n_missing_ranks);
}
END_TEST

#define CHUNK (64u << 10)
#define CHUNKS 100

static void *push_inline(void *arg)
{
	static uint8_t data[CHUNK];
	uint64_t *result = arg;
	struct rpc_stream *stream;
	const ProtobufCMessage *base;
	Gacc__V1__PushInlineRequest request = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	memset(data, 3, sizeof(data));
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "PushInline", 20 * SECONDS, 0, &stream), ST_OK);
	for (int i = 0; i < CHUNKS; i++)
		ck_assert_int_eq(
			rpc_stream_send_bulk(stream, &request.base, BYTES_BULK_FIELD, data, sizeof(data), NULL, NULL),
			ST_OK);
	ck_assert_int_eq(rpc_stream_close_send(stream), ST_OK);
	ck_assert_int_eq(rpc_stream_next(stream, -1, &base, NULL), ST_OK);
	ck_assert_ptr_nonnull(base);
	*result = ((const Gacc__V1__PushResponse *)base)->window;
	ck_assert_int_eq(rpc_stream_finish(stream, NULL), ST_OK);
	rpc_stream_free(stream);
	thread_done = true;
	return NULL;
}

START_TEST(a_stream_of_requests)
{
	uint64_t sum = 0;
	in_thread(push_inline, &sum);
	ck_assert_uint_eq(sum, 3ull * CHUNK * CHUNKS);
	ck_assert_uint_eq(hub_calls.counts.messages, CHUNKS);
}
END_TEST

/* WatchSession sends `n` messages of 1 KiB at once and stays open, or fails when 8 MiB wait. */
struct watch {
	uint64_t n;
	size_t read;
	struct rpc_failure failure;
};

static void *watch_session(void *arg)
{
	struct watch *watch = arg;
	Gacc__V1__WatchSessionRequest request = GACC__V1__WATCH_SESSION_REQUEST__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	struct rpc_stream *stream;
	const ProtobufCMessage *base = &request.base;
	session.id = watch->n;
	request.session = &session;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "WatchSession", 20 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	while (watch->read < watch->n && base) {
		ck_assert_int_eq(rpc_stream_next(stream, -1, &base, NULL), ST_OK);
		watch->read += base != NULL;
	}
	if (base)
		rpc_stream_cancel(stream);
	rpc_stream_finish(stream, &watch->failure);
	rpc_stream_free(stream);
	thread_done = true;
	return NULL;
}

static bool hub_broke(void)
{
	return hub_calls.counts.broken > 0;
}

START_TEST(a_stream_of_answers)
{
	struct watch watch = { .n = 5000 };
	in_thread(watch_session, &watch);
	ck_assert_uint_eq(watch.read, 5000);
	run_until(hub_broke); /* hears of the cancellation */
}
END_TEST

START_TEST(an_error_after_answers)
{
	struct watch watch = { .n = 1000000 };
	in_thread(watch_session, &watch);
	ck_assert_uint_ge(watch.read, 1);
	ck_assert_int_eq(watch.failure.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(watch.failure.message, "slow reader after"));
}
END_TEST

/* ---- bounds and ends ---- */

static atomic_uint taken; /* chunks that the client has got rid of */
static struct rpc_stream *holding;

static void *push_into_a_held_call(void *arg)
{
	static uint8_t data[CHUNK];
	Gacc__V1__PushInlineRequest request = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	Gacc__V1__PushRequest header = GACC__V1__PUSH_REQUEST__INIT;
	header.window = FIXTURE_HOLD;
	request.header = &header;
	while (taken < 1000 &&
	       rpc_stream_send_bulk(holding, &request.base, BYTES_BULK_FIELD, data, sizeof(data), NULL, NULL) == ST_OK)
		taken++;
	rpc_stream_finish(holding, arg);
	thread_done = true;
	return NULL;
}

static void *cancel_soon(void *arg)
{
	pthread_t pusher;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "PushInline", 60 * SECONDS, 0, &holding), ST_OK);
	ck_assert_int_eq(pthread_create(&pusher, NULL, push_into_a_held_call, arg), 0);
	unsigned before;
	do {
		before = taken;
		usleep(500000);
	} while (taken < 2 || before != taken);
	rpc_stream_cancel(holding);
	pthread_join(pusher, NULL);
	rpc_stream_free(holding);
	thread_done = true;
	return NULL;
}

/* The hub reads the first message only: the others stay with the client, but for the windows of two connections. */
START_TEST(requests_wait_with_the_caller)
{
	struct rpc_failure failure;
	in_thread(cancel_soon, &failure);
	run_until(hub_broke);
	ck_assert_uint_eq(hub_calls.counts.messages, 1);
	ck_assert_uint_ge(taken, 2);
	ck_assert_uint_le(taken, (8u << 20) / CHUNK);
	ck_assert_int_eq(failure.status, ST_CANCELLED);
}
END_TEST

START_TEST(the_deadline_goes_with_it)
{
	struct rpc_failure f = flushed(FIXTURE_PARK, 300).failure;
	ck_assert_int_eq(f.grpc_code, 4);
	run_until(hub_broke);
	ck_assert_uint_eq(hub_calls.counts.begun, 1);
}
END_TEST

START_TEST(the_hub_is_gone)
{
	rpc_server_set_relay(node, NULL);
	dial(1, TOKEN);
	rpc_server_set_relay(node, upstream);
	struct rpc_failure f = flushed(1, 20 * SECONDS).failure;
	ck_assert_int_eq(f.status, ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(f.message, "the coordinator cannot be reached: "));
}
END_TEST

static bool hub_began(void)
{
	return hub_calls.counts.begun > 0;
}

/* A call that waits at the hub has the time that the node's stop gives to all. */
START_TEST(the_node_stops)
{
	struct flush flush = { .window = FIXTURE_PARK, .timeout_ms = 60 * SECONDS };
	pthread_t thread;
	ck_assert_int_eq(pthread_create(&thread, NULL, run_flush, &flush), 0);
	run_until(hub_began);
	rpc_server_stop(node, 0, 100, on_stopped, NULL);
	run_until(one_stopped);
	pthread_join(thread, NULL);
	ck_assert_int_ne(flush.failure.status, ST_OK);
	run_until(hub_broke);
	rpc_server_set_relay(node, NULL);
	rpc_server_stop(hub, 0, 0, on_stopped, NULL);
	rpc_channel_close(channel);
	run_until(both_stopped);
	free_all();
}
END_TEST

START_TEST(no_way_to_the_hub)
{
	node_relays = true;
	set_up_relay();
	ck_assert_uint_eq(flushed(7, 20 * SECONDS).count, 7);
	rpc_server_set_relay(node, NULL);
	struct rpc_failure f = flushed(7, 20 * SECONDS).failure;
	ck_assert_int_eq(f.status, ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(f.message, "/Flush: is for the coordinator"));
	tear_down_relay();
}
END_TEST

/* ---- what a handler asks ---- */

#define HEARD 100000 /* is added to the hub's answer, to tell it from one that was passed on */
static unsigned n_begun, n_heard, n_refused, n_ended;
static const char *asked_path;

static void reply_with(struct rpc_call *call, uint32_t count)
{
	Gacc__V1__FlushResponse reply = GACC__V1__FLUSH_RESPONSE__INIT;
	reply.micro_count = count;
	rpc_finish(call, &reply.base);
}

static void on_heard(struct rpc_call *call, struct grpc_byte_buffer *answer)
{
	ProtobufCMessage *m = NULL;
	n_heard++;
	ck_assert_int_eq(bytes_from_buffer(&gacc__v1__flush_response__descriptor, answer, &m), ST_OK);
	reply_with(call, ((const Gacc__V1__FlushResponse *)m)->micro_count + HEARD);
	bytes_free(m);
}

/* Asks for what the caller has asked; a second question of the same call has no place. */
static void ask_hub(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	n_begun++;
	if (!rpc_ask(call, asked_path, request, on_heard)) {
		n_refused++;
		reply_with(call, 0);
		return;
	}
	ck_assert(!rpc_ask(call, asked_path, request, on_heard));
}

static void ask_ended(struct rpc_call *call, bool completed)
{
	n_ended++;
}

/* That may be late. */
static bool all_ended(void)
{
	return n_ended == n_begun;
}

static void set_up_ask(void)
{
	node_flush = ask_hub;
	node_flush_end = ask_ended;
	asked_path = "/gacc.v1.GradientService/Flush";
	set_up_relay();
}

START_TEST(an_answer_goes_to_who_has_asked)
{
	for (uint32_t i = 1; i <= 20; i++) {
		ck_assert_uint_eq(flushed(i, 20 * SECONDS).count, i + HEARD);
		ck_assert_uint_eq(n_heard, i);
	}
	ck_assert_uint_eq(hub_calls.counts.begun, 20);
	ck_assert_uint_eq(flushed(FIXTURE_UID, 20 * SECONDS).count, USER + HEARD); /* it is asked for the caller */
	run_until(all_ended);
	ck_assert(n_begun == 21 && !n_refused);
}
END_TEST

START_TEST(the_caller_hears_errors_of_what_was_asked)
{
	struct rpc_failure f = flushed(FIXTURE_FAIL, 20 * SECONDS).failure;
	ck_assert_int_eq(f.status, ST_WINDOW_CLOSED);
	ck_assert_str_eq(f.message, "window 7 closed");
	ck_assert_uint_eq(f.n_missing_ranks, 2);
	asked_path = "/gacc.v1.GradientService/NoSuch";
	ck_assert_int_eq(flushed(1, 20 * SECONDS).failure.grpc_code, 12);
	rpc_server_set_relay(node, NULL);
	dial(1, TOKEN);
	rpc_server_set_relay(node, upstream);
	f = flushed(1, 20 * SECONDS).failure;
	ck_assert_int_eq(f.status, ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(f.message, "the coordinator cannot be reached: "));
	ck_assert(!n_heard && !n_refused);
}
END_TEST

/* The question ends with the caller. */
START_TEST(the_deadline_goes_with_the_question)
{
	ck_assert_int_eq(flushed(FIXTURE_PARK, 300).failure.grpc_code, 4);
	run_until(hub_broke);
	run_until(all_ended);
	ck_assert(n_begun == 1 && !n_heard);
}
END_TEST

/* The handler answers by itself. */
START_TEST(nobody_to_ask)
{
	rpc_server_set_relay(node, NULL);
	struct flush flush = flushed(7, 20 * SECONDS);
	ck_assert(flush.failure.status == ST_OK && flush.count == 0);
	run_until(all_ended);
	ck_assert(n_begun == 1 && n_refused == 1 && !n_heard);
	ck_assert_uint_eq(hub_calls.counts.begun, 0);
}
END_TEST

/* ---- for whom ---- */

static struct flush flushed_with(const char *certificate, uid_t uid)
{
	set_up_with("hub");
	dial_as(certificate, NULL);
	rpc_server_set_relay(node, upstream);
	listen_for_users(node, uid, target);
	ck_assert_int_eq(rpc_channel_open(&(struct rpc_channel_options){ .target = target }, &channel), ST_OK);
	struct flush flush = flushed(FIXTURE_UID, 20 * SECONDS);
	tear_down_relay();
	upstream = NULL;
	n_stopped = 0;
	return flush;
}

START_TEST(a_node_speaks_for_its_users)
{
	certify_all();
	ck_assert_uint_eq(flushed_with("a", USER).count, USER);
	ck_assert_uint_eq(flushed_with("a", 1000).count, 1000);
	static const uid_t low[] = { 999, 0 };
	for (size_t i = 0; i < 2; i++) {
		struct rpc_failure f = flushed_with("a", low[i]).failure;
		ck_assert_int_eq(f.status, ST_PERMISSION_DENIED);
		ck_assert_ptr_nonnull(strstr(f.message, "of node a: uid "));
		ck_assert_ptr_nonnull(strstr(f.message, "is below cluster.relay_min_uid"));
	}
	hub_min_uid = USER + 1;
	ck_assert_int_eq(flushed_with("a", USER).failure.status, ST_PERMISSION_DENIED);
	hub_min_uid = 0;
	ck_assert_int_eq(flushed_with("a", (uid_t)-1).failure.status, ST_UNAUTHENTICATED);
}
END_TEST

/* An admin's certificate may call for itself; what it says of users is not believed. */
START_TEST(others_speak_for_nobody)
{
	certify_all();
	ck_assert_uint_eq(flushed_with("boss", USER).count, UINT32_MAX);
	ck_assert_uint_eq(flushed_with("plain", USER).count, UINT32_MAX);
	ck_assert_int_eq(flushed_with("hub", USER).failure.status, ST_PERMISSION_DENIED);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("relay");
	TCase *calls = tcase_create("calls");
	tcase_add_checked_fixture(calls, set_up_relay, tear_down_relay);
	tcase_set_timeout(calls, 60);
	tcase_add_test(calls, a_request_and_its_reply);
	tcase_add_test(calls, the_hub_knows_the_user);
	tcase_add_test(calls, errors_with_all_details);
	tcase_add_test(calls, a_stream_of_requests);
	tcase_add_test(calls, a_stream_of_answers);
	tcase_add_test(calls, an_error_after_answers);
	tcase_add_test(calls, requests_wait_with_the_caller);
	tcase_add_test(calls, the_deadline_goes_with_it);
	tcase_add_test(calls, the_hub_is_gone);
	suite_add_tcase(suite, calls);
	TCase *asks = tcase_create("asks");
	tcase_add_checked_fixture(asks, set_up_ask, tear_down_relay);
	tcase_set_timeout(asks, 60);
	tcase_add_test(asks, an_answer_goes_to_who_has_asked);
	tcase_add_test(asks, the_caller_hears_errors_of_what_was_asked);
	tcase_add_test(asks, the_deadline_goes_with_the_question);
	tcase_add_test(asks, nobody_to_ask);
	suite_add_tcase(suite, asks);
	TCase *stop = tcase_create("stop");
	tcase_add_checked_fixture(stop, set_up_relay, NULL);
	tcase_set_timeout(stop, 60);
	tcase_add_test(stop, the_node_stops);
	suite_add_tcase(suite, stop);
	TCase *users = tcase_create("users");
	tcase_set_timeout(users, 60);
	tcase_add_test(users, a_node_speaks_for_its_users);
	tcase_add_test(users, others_speak_for_nobody);
	tcase_add_test(users, no_way_to_the_hub);
	suite_add_tcase(suite, users);
	return suite_run(suite);
}

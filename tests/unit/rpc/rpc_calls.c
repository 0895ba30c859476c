/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture *server;
struct rpc_channel *channel;
struct rpc_failure failure;

struct rpc_channel *open_channel(const char *target, const char *token)
{
	struct rpc_channel *opened;
	ck_assert_int_eq(rpc_channel_open(&(struct rpc_channel_options){ .target = target, .token = token }, &opened),
			 ST_OK);
	return opened;
}

void start_with(struct fixture_options options)
{
	options.grace_ms = options.grace_ms ? options.grace_ms : 100;
	server = fixture_start(&options);
	channel = open_channel(server->target, NULL);
}

void set_up(void)
{
	start_with((struct fixture_options){ .drain_ms = 0 });
}

void tear_down(void)
{
	rpc_channel_close(channel);
	fixture_stop(server);
}

enum status flush_on(struct rpc_channel *on, uint64_t window, int64_t timeout_ms, uint32_t *out_count,
		     struct rpc_failure *f)
{
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	ProtobufCMessage *reply;
	request.window = window;
	enum status st = rpc_channel_call(on, GRADIENT, "Flush", &request.base, timeout_ms, &reply, f);
	if (st == ST_OK) {
		*out_count = ((Gacc__V1__FlushResponse *)reply)->micro_count;
		bytes_free(reply);
	}
	return st;
}

enum status flush(uint64_t window, int64_t timeout_ms, uint32_t *out_count)
{
	return flush_on(channel, window, timeout_ms, out_count, &failure);
}

bool any_begun(const struct fixture_counts *counts)
{
	return counts->begun > 0;
}

bool any_broken(const struct fixture_counts *counts)
{
	return counts->broken > 0;
}

struct rpc_stream *parked_call(void)
{
	Gacc__V1__FlushRequest request = GACC__V1__FLUSH_REQUEST__INIT;
	struct rpc_stream *stream;
	request.window = FIXTURE_PARK;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "Flush", 60 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

struct rpc_stream *get_parameters(uint64_t bytes, uint64_t chunk)
{
	Gacc__V1__GetParametersRequest request = GACC__V1__GET_PARAMETERS_REQUEST__INIT;
	struct rpc_stream *stream;
	request.bytes = bytes;
	request.offset = chunk;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "GetParameters", 60 * SECONDS, BYTES_BULK_FIELD, &stream),
			 ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	ck_assert_int_eq(rpc_stream_close_send(stream), ST_OK);
	return stream;
}

struct rpc_stream *watch(uint64_t n)
{
	Gacc__V1__WatchSessionRequest request = GACC__V1__WATCH_SESSION_REQUEST__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	struct rpc_stream *stream;
	session.id = n;
	request.session = &session;
	ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "WatchSession", 60 * SECONDS, 0, &stream), ST_OK);
	ck_assert_int_eq(rpc_stream_send(stream, &request.base), ST_OK);
	return stream;
}

size_t read_all(struct rpc_stream *stream)
{
	const ProtobufCMessage *msg;
	size_t n = 0;
	for (;; n++) {
		ck_assert_int_eq(rpc_stream_next(stream, -1, &msg, NULL), ST_OK);
		if (!msg)
			return n;
	}
}

void temp_dir(char dir[64])
{
	const char *tmp = getenv("TMPDIR");
	snprintf(dir, 64, "%s/rpc-XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

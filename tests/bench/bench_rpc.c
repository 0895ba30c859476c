/* SPDX-License-Identifier: Apache-2.0 */
/* Latency and throughput of the RPC layer over a unix socket, server and client in one process.
 *   bench_rpc [seconds per line, default 1]
 */
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "support/rpc_fixture.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <protobuf-c/protobuf-c.h>

#define GRADIENT (&gacc__v1__gradient_service__descriptor)
#define CALLS_MAX 1000000

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double cpu_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void need(enum status st, const char *what)
{
	if (st == ST_OK)
		return;
	fprintf(stderr, "bench_rpc: %s: %s\n", what, status_info(st)->name);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void unary(struct rpc_channel *channel, double budget)
{
	static double took[CALLS_MAX];
	Gacc__V1__PushRequest request = GACC__V1__PUSH_REQUEST__INIT;
	size_t n = 0;
	for (double begin = seconds(); n < CALLS_MAX && seconds() - begin < budget; n++) {
		ProtobufCMessage *reply;
		double start = seconds();
		request.micro = (uint32_t)n;
		need(rpc_channel_call(channel, GRADIENT, "Push", &request.base, 10000, &reply, NULL), "Push");
		took[n] = seconds() - start;
		bytes_free(reply);
	}
	qsort(took, n, sizeof(took[0]), by_value);
	printf("unary Push           n %7zu   p50 %6.1f us   p99 %6.1f us\n", n, took[n / 2] * 1e6,
	       took[n * 99 / 100] * 1e6);
}

static void report(const char *what, size_t chunk, double bytes, double wall, double cpu)
{
	printf("%-20s chunk %7zu B   %5.2f GB/s   %.3f CPU-s/GB (both sides)\n", what, chunk, bytes / wall * 1e-9,
	       cpu / bytes * 1e9);
}

static void released(void *arg)
{
	atomic_fetch_sub((atomic_int *)arg, 1);
}

/* The server sums the bytes: that is part of the figure. */
static void push(struct rpc_channel *channel, const uint8_t *data, size_t chunk, double budget)
{
	struct rpc_stream *stream;
	struct rpc_failure failure;
	atomic_int out = 0;
	double begin = seconds(), cpu = cpu_seconds(), bytes = 0;
	need(rpc_stream_open(channel, GRADIENT, "PushInline", 60000, 0, &stream), "PushInline");
	for (; seconds() - begin < budget; bytes += (double)chunk) {
		Gacc__V1__PushInlineRequest msg = GACC__V1__PUSH_INLINE_REQUEST__INIT;
		out++;
		need(rpc_stream_send_bulk(stream, &msg.base, BYTES_BULK_FIELD, data, chunk, released, &out), "send");
	}
	need(rpc_stream_finish(stream, &failure), "finish");
	report("PushInline + sum", chunk, bytes, seconds() - begin, cpu_seconds() - cpu);
	rpc_stream_free(stream);
}

static void get(struct rpc_channel *channel, size_t chunk, double budget)
{
	double begin = seconds(), cpu = cpu_seconds(), bytes = 0;
	while (seconds() - begin < budget) {
		Gacc__V1__GetParametersRequest request = GACC__V1__GET_PARAMETERS_REQUEST__INIT;
		const ProtobufCMessage *msg;
		struct bytes_view view;
		struct rpc_stream *stream;
		request.bytes = 32u << 20;
		request.offset = chunk;
		need(rpc_stream_open(channel, GRADIENT, "GetParameters", 60000, BYTES_BULK_FIELD, &stream),
		     "GetParameters");
		need(rpc_stream_send(stream, &request.base), "send");
		for (;;) {
			need(rpc_stream_next(stream, -1, &msg, &view), "next");
			if (!msg)
				break;
			bytes += (double)view.left;
		}
		need(rpc_stream_finish(stream, NULL), "finish");
		rpc_stream_free(stream);
	}
	report("GetParameters", chunk, bytes, seconds() - begin, cpu_seconds() - cpu);
}

int main(int argc, char **argv)
{
	double budget = argc > 1 ? atof(argv[1]) : 1;
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 16 << 20);
	struct fixture *server = fixture_start(&(struct fixture_options){ .grace_ms = 100 });
	struct rpc_channel *channel;
	need(rpc_channel_open(&(struct rpc_channel_options){ .target = server->target }, &channel), "open");
	uint8_t *data = calloc(1, 4 << 20);
	unary(channel, budget);
	for (size_t chunk = 64 << 10; chunk <= 4 << 20; chunk *= 8) {
		push(channel, data, chunk, budget);
		get(channel, chunk, budget);
	}
	rpc_channel_close(channel);
	fixture_stop(server);
	free(data);
	return 0;
}

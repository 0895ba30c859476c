/* SPDX-License-Identifier: Apache-2.0 */
#include "bare.h"

#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#define CHUNK_MAX ((4 << 20) + 1024)
#define CALLS_MAX 10000
#define CALL_BYTES_MAX 4096
#define UNARY "/bare/Unary"
#define STREAM "/bare/Stream"

static grpc_arg int_arg(const char *key, int value)
{
	/* gRPC reads the key only; its type has no const. */
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value };
}

static void need(grpc_call_error err)
{
	if (err != GRPC_CALL_OK)
		bench_die("gRPC: %s", grpc_call_error_to_string(err));
}

static gpr_timespec never(void)
{
	return gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

/* ---- server ---- */

enum event { ACCEPTED, RECEIVED, ANSWERED };

struct call;
struct tag {
	enum event event;
	struct call *call;
};
struct call {
	grpc_call *grpc;
	grpc_call_details details;
	grpc_metadata_array metadata;
	grpc_byte_buffer *in;
	bool is_stream;
	int cancelled;
	struct tag accept, receive, answer;
};

static void arm(grpc_server *server, grpc_completion_queue *queue)
{
	struct call *c = calloc(1, sizeof(*c));
	c->accept = (struct tag){ ACCEPTED, c };
	c->receive = (struct tag){ RECEIVED, c };
	c->answer = (struct tag){ ANSWERED, c };
	grpc_call_details_init(&c->details);
	grpc_metadata_array_init(&c->metadata);
	need(grpc_server_request_call(server, &c->grpc, &c->details, &c->metadata, queue, queue, &c->accept));
}

static void receive(struct call *c)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &c->in;
	need(grpc_call_start_batch(c->grpc, &op, 1, &c->receive, NULL));
}

/* A unary request goes back as it came; a stream's answer is empty. */
static void answer(struct call *c)
{
	grpc_byte_buffer *out = c->in ? c->in : grpc_raw_byte_buffer_create(NULL, 0);
	grpc_op ops[4] = { { .op = GRPC_OP_SEND_INITIAL_METADATA },
			   { .op = GRPC_OP_SEND_MESSAGE },
			   { .op = GRPC_OP_SEND_STATUS_FROM_SERVER },
			   { .op = GRPC_OP_RECV_CLOSE_ON_SERVER } };
	ops[1].data.send_message.send_message = out;
	ops[2].data.send_status_from_server.status = GRPC_STATUS_OK;
	ops[3].data.recv_close_on_server.cancelled = &c->cancelled;
	need(grpc_call_start_batch(c->grpc, ops, 4, &c->answer, NULL));
	grpc_byte_buffer_destroy(out);
}

static void on_received(struct call *c)
{
	bool end = !c->in;
	if (c->is_stream && !end) {
		grpc_byte_buffer_destroy(c->in);
		receive(c);
	} else {
		answer(c);
	}
}

static void call_free(struct call *c)
{
	grpc_metadata_array_destroy(&c->metadata);
	grpc_call_details_destroy(&c->details);
	grpc_call_unref(c->grpc);
	free(c);
}

static _Noreturn void serve(const char *path)
{
	char address[80];
	grpc_arg args[] = { int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, CHUNK_MAX),
			    int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0) };
	grpc_channel_args all = { .num_args = 2, .args = args };
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 16 << 20);
	grpc_init();
	grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
	grpc_server *server = grpc_server_create(&all, NULL);
	grpc_server_register_completion_queue(server, queue, NULL);
	snprintf(address, sizeof(address), "unix:%s", path);
	grpc_server_credentials *insecure = grpc_insecure_server_credentials_create();
	if (!grpc_server_add_http2_port(server, address, insecure))
		_exit(1);
	grpc_server_credentials_release(insecure);
	grpc_server_start(server);
	arm(server, queue);
	for (;;) {
		grpc_event e = grpc_completion_queue_next(queue, never(), NULL);
		const struct tag *tag = e.tag;
		struct call *c = tag->call;
		if (tag->event == ACCEPTED) {
			arm(server, queue);
			c->is_stream = grpc_slice_str_cmp(c->details.method, STREAM) == 0;
			receive(c);
		} else if (tag->event == RECEIVED) {
			on_received(c);
		} else {
			call_free(c);
		}
	}
}

/* ---- client ---- */

struct client {
	grpc_channel *channel;
	grpc_completion_queue *queue;
};

/* A call under way and what comes back. */
struct exchange {
	grpc_call *call;
	grpc_metadata_array initial, trailing;
	grpc_byte_buffer *in;
	grpc_status_code code;
	grpc_slice text;
};

static void wait_for(struct client *c, void *tag)
{
	grpc_event e = grpc_completion_queue_next(c->queue, never(), NULL);
	if (e.tag != tag || !e.success)
		bench_die("the bare call failed");
}

static void client_open(struct client *c, const char *path)
{
	char target[80];
	grpc_arg args[] = { int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
			    int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
			    int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
			    int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
			    int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
			    int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100),
			    int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0) };
	grpc_channel_args all = { .num_args = sizeof(args) / sizeof(args[0]), .args = args };
	snprintf(target, sizeof(target), "unix:%s", path);
	grpc_init();
	grpc_channel_credentials *insecure = grpc_insecure_credentials_create();
	c->channel = grpc_channel_create(target, insecure, &all);
	grpc_channel_credentials_release(insecure);
	c->queue = grpc_completion_queue_create_for_next(NULL);
}

static void begin(struct client *c, struct exchange *x, const char *method)
{
	*x = (struct exchange){ .text = grpc_empty_slice() };
	grpc_metadata_array_init(&x->initial);
	grpc_metadata_array_init(&x->trailing);
	gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(60, GPR_TIMESPAN));
	x->call = grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue,
					   grpc_slice_from_static_string(method), NULL, deadline, NULL);
}

/* Headers out and in, one answer, the status. */
static size_t answer_ops(struct exchange *x, grpc_op *ops)
{
	ops[0] = (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA, .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY };
	ops[1] = (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA };
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &x->initial;
	ops[2] = (grpc_op){ .op = GRPC_OP_RECV_MESSAGE };
	ops[2].data.recv_message.recv_message = &x->in;
	ops[3] = (grpc_op){ .op = GRPC_OP_RECV_STATUS_ON_CLIENT };
	ops[3].data.recv_status_on_client.trailing_metadata = &x->trailing;
	ops[3].data.recv_status_on_client.status = &x->code;
	ops[3].data.recv_status_on_client.status_details = &x->text;
	return 4;
}

static void end(struct exchange *x)
{
	if (x->code != GRPC_STATUS_OK || !x->in)
		bench_die("the bare call ended with gRPC code %d", (int)x->code);
	grpc_byte_buffer_destroy(x->in);
	grpc_metadata_array_destroy(&x->initial);
	grpc_metadata_array_destroy(&x->trailing);
	grpc_slice_unref(x->text);
	grpc_call_unref(x->call);
}

static void call_unary(struct client *c, const void *request, size_t n)
{
	struct exchange x;
	grpc_op ops[6];
	grpc_slice slice = grpc_slice_from_copied_buffer(request, n);
	grpc_byte_buffer *out = grpc_raw_byte_buffer_create(&slice, 1);
	begin(c, &x, UNARY);
	size_t k = answer_ops(&x, ops);
	ops[k] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
	ops[k++].data.send_message.send_message = out;
	ops[k++] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	need(grpc_call_start_batch(x.call, ops, k, &x, NULL));
	wait_for(c, &x);
	grpc_byte_buffer_destroy(out);
	grpc_slice_unref(slice);
	end(&x);
}

static void send_chunk(struct client *c, struct exchange *x, const unsigned char *data, size_t n)
{
	grpc_slice slice = grpc_slice_from_static_buffer(data, n);
	grpc_byte_buffer *out = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_op op = { .op = GRPC_OP_SEND_MESSAGE };
	op.data.send_message.send_message = out;
	need(grpc_call_start_batch(x->call, &op, 1, out, NULL));
	wait_for(c, out);
	grpc_byte_buffer_destroy(out);
}

static void call_stream(struct client *c, const unsigned char *data, size_t total, size_t chunk)
{
	struct exchange x;
	grpc_op ops[4];
	begin(c, &x, STREAM);
	answer_ops(&x, ops);
	/* the ops that wait for the answer go out last: only one batch is on the queue at a time */
	need(grpc_call_start_batch(x.call, ops, 1, &x, NULL));
	wait_for(c, &x);
	for (size_t at = 0; at < total; at += chunk)
		send_chunk(c, &x, data + at, total - at < chunk ? total - at : chunk);
	ops[0] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	need(grpc_call_start_batch(x.call, ops, 4, &x, NULL));
	wait_for(c, &x);
	end(&x);
}

/* What the client is told to do, and what it answers. */
struct order {
	size_t calls, bytes; /* unary; or, with no calls, */
	size_t total, chunk; /* a stream */
};

static struct bare_times run_unary(struct client *c, const struct order *o, double *took)
{
	static const char request[CALL_BYTES_MAX];
	for (size_t i = 0; i < o->calls; i++) {
		double start = bench_seconds();
		call_unary(c, request, o->bytes);
		took[i] = bench_seconds() - start;
	}
	double p99 = bench_quantile(took, o->calls, 0.99);
	return (struct bare_times){ bench_quantile(took, o->calls, 0.5), p99 };
}

/* The stream's bytes, written once. */
static unsigned char *stream_data(size_t n)
{
	static unsigned char *data;
	static size_t have;
	if (n > have) {
		data = realloc(data, n);
		if (!data)
			bench_die("no memory for %zu bytes", n);
		for (size_t i = have; i < n; i++)
			data[i] = (unsigned char)(i * 31);
		have = n;
	}
	return data;
}

static _Noreturn void obey(const char *path, int in, int out)
{
	static double took[CALLS_MAX];
	struct client c;
	struct order o;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	client_open(&c, path);
	while (read(in, &o, sizeof(o)) == sizeof(o)) {
		struct bare_times t = { 0, 0 };
		if (o.calls) {
			t = run_unary(&c, &o, took);
		} else {
			const unsigned char *data = stream_data(o.total);
			double start = bench_seconds();
			call_stream(&c, data, o.total, o.chunk);
			t.p50 = bench_seconds() - start;
		}
		if (write(out, &t, sizeof(t)) != sizeof(t))
			break;
	}
	_exit(0);
}

/* ---- the benchmark's side ---- */

static pid_t fork_or_die(void)
{
	pid_t pid = fork();
	if (pid < 0)
		bench_die("cannot fork: %s", strerror(errno));
	return pid;
}

void bare_start(struct bare *b)
{
	int to[2], from[2];
	snprintf(b->path, sizeof(b->path), "/tmp/gacc-bare-%d.sock", (int)getpid());
	unlink(b->path);
	b->server = fork_or_die();
	if (b->server == 0)
		serve(b->path);
	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) /* not before: the server would keep them open */
		bench_die("cannot make a pipe: %s", strerror(errno));
	b->client = fork_or_die();
	if (b->client == 0) {
		close(to[1]);
		obey(b->path, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	b->to_client = to[1];
	b->from_client = from[0];
}

void bare_stop(struct bare *b)
{
	close(b->to_client);
	close(b->from_client);
	waitpid(b->client, NULL, 0);
	kill(b->server, SIGTERM);
	waitpid(b->server, NULL, 0);
	unlink(b->path);
}

static struct bare_times order(struct bare *b, const struct order *o)
{
	struct bare_times t;
	if (write(b->to_client, o, sizeof(*o)) != sizeof(*o) || read(b->from_client, &t, sizeof(t)) != sizeof(t))
		bench_die("the bare client has ended");
	return t;
}

struct bare_times bare_unary(struct bare *b, size_t calls, size_t n)
{
	if (calls == 0 || calls > CALLS_MAX || n > CALL_BYTES_MAX)
		bench_die("%zu bare calls of %zu bytes", calls, n);
	return order(b, &(struct order){ .calls = calls, .bytes = n });
}

double bare_stream(struct bare *b, size_t total, size_t chunk)
{
	return order(b, &(struct order){ .total = total, .chunk = chunk }).p50;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "support/rpc_fixture.h"

#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                     \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

struct fixture_private {
	uv_loop_t loop;
	uv_async_t wake;
	uv_poll_t poll;
	int listener;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t done;
	void (*fn)(struct fixture *, void *);
	void *arg;
	int drain_ms, grace_ms;
	bool stopping;
	char dir[96], path[108];
	uint8_t *parameters;
};

#define PARAMETERS (32u << 20)

/* State of a PushInline or GetParameters call. */
struct progress {
	uint64_t bytes, messages, sum;
	uint64_t offset, end, chunk;
};

static struct fixture *fixture_of(const struct rpc_call *call)
{
	return rpc_context(call);
}

static void count(struct rpc_call *call)
{
	fixture_of(call)->counts.messages++;
	fixture_of(call)->counts.last_id = rpc_id(call);
}

static void begin(struct rpc_call *call)
{
	count(call);
	fixture_of(call)->counts.begun++;
}

static void on_end(struct rpc_call *call, bool completed)
{
	struct fixture_counts *counts = &fixture_of(call)->counts;
	*(completed ? &counts->completed : &counts->broken) += 1;
	counts->fd_open_at_end = fcntl(counts->last_fd, F_GETFD) >= 0;
	free(rpc_data(call));
}

static void fail_long(struct rpc_call *call)
{
	static char text[6001];
	static uint32_t ranks[2000];
	for (size_t i = 0; i < 6000; i += 2)
		memcpy(text + i, "\xc3\xa4", 2);
	text[0] = 'x'; /* so that a cut at an even number of bytes is inside of a character */
	memmove(text + 1, text + 2, 5998);
	text[5999] = 0;
	rpc_fail(call, &(struct rpc_error){ .status = ST_STALLED,
					    .message = text,
					    .hint = text,
					    .missing_ranks = ranks,
					    .n_missing_ranks = 2000 });
}

static void on_flush(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__V1__FlushRequest *asked = (const void *)request;
	Gacc__V1__FlushResponse reply = GACC__V1__FLUSH_RESPONSE__INIT;
	begin(call);
	switch (asked->window) {
	case FIXTURE_PARK:
		return;
	case FIXTURE_FAIL:
		rpc_fail(call, &(struct rpc_error){ .status = ST_WINDOW_CLOSED,
						    .message = "window 7 closed",
						    .hint = "go on",
						    .field = "window",
						    .retry_after_ms = 5,
						    .missing_ranks = (uint32_t[]){ 3, 5 },
						    .n_missing_ranks = 2 });
		return;
	case FIXTURE_LONG_ERROR:
		fail_long(call);
		return;
	case FIXTURE_NAME:
		rpc_failf(call, ST_NOT_READY, "%s", rpc_peer(call)->name);
		return;
	case FIXTURE_UID:
		reply.micro_count = rpc_peer(call)->uid;
		break;
	case FIXTURE_PID:
		reply.micro_count = (uint32_t)rpc_peer(call)->pid;
		break;
	default:
		reply.micro_count = (uint32_t)asked->window;
	}
	rpc_finish(call, &reply.base);
}

static void on_push(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	Gacc__V1__PushResponse reply = GACC__V1__PUSH_RESPONSE__INIT;
	begin(call);
	reply.micro_count = ((const Gacc__V1__PushRequest *)request)->micro;
	rpc_finish(call, &reply.base);
}

static void on_push_inline(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__V1__PushInlineRequest *msg = (const void *)request;
	struct progress *p = rpc_data(call);
	struct bytes_view view = *bulk;
	const uint8_t *piece;
	size_t n;
	if (!p) {
		begin(call);
		p = calloc(1, sizeof(*p));
		CHECK(p);
		rpc_set_data(call, p);
	} else {
		count(call);
	}
	p->messages++;
	p->bytes += view.left;
	while (bytes_next(&view, &piece, &n))
		for (size_t i = 0; i < n; i++)
			p->sum += piece[i];
	if (!msg->header || msg->header->window != FIXTURE_HOLD)
		rpc_recv(call);
}

static void on_push_inline_sent(struct rpc_call *call)
{
	static const struct progress nothing;
	const struct progress *p = rpc_data(call) ? rpc_data(call) : &nothing;
	Gacc__V1__PushResponse reply = GACC__V1__PUSH_RESPONSE__INIT;
	if (p == &nothing)
		fixture_of(call)->counts.begun++;
	reply.parked_ns = (int64_t)p->bytes;
	reply.micro_count = (uint32_t)p->messages;
	reply.window = p->sum;
	rpc_finish(call, &reply.base);
}

static void on_released(void *arg)
{
	((struct fixture *)arg)->counts.released++;
}

static void send_parameters(struct rpc_call *call)
{
	struct fixture *fixture = fixture_of(call);
	struct progress *p = rpc_data(call);
	while (p->offset < p->end) {
		Gacc__V1__GetParametersResponse msg = GACC__V1__GET_PARAMETERS_RESPONSE__INIT;
		size_t n = p->end - p->offset < p->chunk ? p->end - p->offset : p->chunk;
		msg.offset = p->offset;
		msg.window = 9;
		p->messages++;
		enum status st = rpc_send_bulk(call, &msg.base, BYTES_BULK_FIELD,
					       fixture->private->parameters + p->offset, n, on_released, fixture);
		if (st != ST_OK)
			return; /* goes on in on_writable */
		p->offset += n;
	}
	rpc_finish(call, NULL);
}

static void on_get_parameters(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__V1__GetParametersRequest *asked = (const void *)request;
	struct progress *p = calloc(1, sizeof(*p));
	CHECK(p && asked->bytes <= PARAMETERS && asked->offset > 0);
	begin(call);
	*p = (struct progress){ .end = asked->bytes, .chunk = asked->offset };
	rpc_set_data(call, p);
	send_parameters(call);
}

static void on_watch(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	const Gacc__V1__WatchSessionRequest *asked = (const void *)request;
	static char text[1025];
	Gacc__V1__WatchSessionResponse msg = GACC__V1__WATCH_SESSION_RESPONSE__INIT;
	begin(call);
	memset(text, 'x', sizeof(text) - 1);
	msg.message = text;
	for (uint64_t i = 0; i < asked->session->id; i++)
		if (rpc_send(call, &msg.base) != ST_OK) {
			rpc_failf(call, ST_RESOURCE_EXHAUSTED, "slow reader after %u messages", (unsigned)i);
			return;
		}
}

static void on_put_inline(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	begin(call);
	rpc_failf(call, ST_BAD_SLOT, "no");
}

static void on_get(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	size_t n = strtoul(((const Gacc__V1__GetRequest *)request)->job, NULL, 10);
	Gacc__V1__GetResponse reply = GACC__V1__GET_RESPONSE__INIT;
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	begin(call);
	job.reason = calloc(n + 1, 1);
	CHECK(job.reason);
	memset(job.reason, 'x', n);
	reply.job = &job;
	rpc_finish(call, &reply.base);
	free(job.reason);
}

static void on_other(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	begin(call);
	rpc_fail(call, &(struct rpc_error){ .status = ST_NOT_SUPPORTED });
}

#define GRADIENT(name_, kind_, ...)                                                                                    \
	{                                                                                                              \
		.service = &gacc__v1__gradient_service__descriptor, .name = #name_, .kind = kind_, .on_end = on_end,   \
		__VA_ARGS__                                                                                            \
	}
#define JOB(name_, kind_)                                                                                              \
	{                                                                                                              \
		.service = &gacc__v1__job_service__descriptor, .name = #name_, .kind = kind_, .on_end = on_end,        \
		.on_message = on_other                                                                                 \
	}
#define NODE(name_, kind_)                                                                                             \
	{                                                                                                              \
		.service = &gacc__v1__node_service__descriptor, .name = #name_, .kind = kind_, .on_end = on_end,       \
		.on_message = on_other                                                                                 \
	}

static const struct rpc_method rows[FIXTURE_ROWS] = {
	GRADIENT(Flush, RPC_UNARY, .on_message = on_flush),
	GRADIENT(Push, RPC_UNARY, .on_message = on_push, .flags = RPC_NEEDS_DEADLINE),
	GRADIENT(PushInline, RPC_CLIENT_STREAM, .on_message = on_push_inline, .on_half_close = on_push_inline_sent,
		 .bulk = BYTES_BULK_FIELD),
	GRADIENT(GetParameters, RPC_SERVER_STREAM, .on_message = on_get_parameters, .on_writable = send_parameters),
	GRADIENT(WatchSession, RPC_SERVER_STREAM, .on_message = on_watch, .flags = RPC_ENDS_ON_DRAIN),
	GRADIENT(PutParametersInline, RPC_CLIENT_STREAM, .on_message = on_put_inline,
		 .on_half_close = on_push_inline_sent, .bulk = BYTES_BULK_FIELD),
	GRADIENT(Attach, RPC_UNARY, .on_message = on_other),
	GRADIENT(RegisterTensors, RPC_UNARY, .on_message = on_other),
	GRADIENT(PutParameters, RPC_UNARY, .on_message = on_other),
	GRADIENT(WaitReady, RPC_UNARY, .on_message = on_other),
	GRADIENT(WaitStep, RPC_UNARY, .on_message = on_other),
	GRADIENT(AckStep, RPC_UNARY, .on_message = on_other),
	GRADIENT(Detach, RPC_UNARY, .on_message = on_other),
	GRADIENT(PutTrainerState, RPC_UNARY, .on_message = on_other),
	GRADIENT(GetTrainerState, RPC_UNARY, .on_message = on_other),
	JOB(Submit, RPC_UNARY),
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "Get",
	  .kind = RPC_UNARY,
	  .on_message = on_get,
	  .on_end = on_end },
	JOB(List, RPC_UNARY),
	JOB(Cancel, RPC_UNARY),
	JOB(Flush, RPC_UNARY),
	JOB(Watch, RPC_SERVER_STREAM),
	JOB(Wait, RPC_UNARY),
	JOB(Pause, RPC_UNARY),
	JOB(Resume, RPC_UNARY),
	JOB(Update, RPC_UNARY),
	JOB(TensorNorms, RPC_UNARY),
	JOB(History, RPC_SERVER_STREAM),
	JOB(ListEvents, RPC_UNARY),
	JOB(SaveCheckpoint, RPC_UNARY),
	JOB(ListCheckpoints, RPC_UNARY),
	JOB(ReadLog, RPC_UNARY),
	JOB(LogScalars, RPC_UNARY),
	NODE(ListBuffers, RPC_UNARY),
	NODE(GetConfig, RPC_UNARY),
	NODE(ListNodes, RPC_UNARY),
	NODE(DrainNode, RPC_UNARY),
	NODE(GetNode, RPC_UNARY),
};

void fixture_rows(struct rpc_method *out_rows)
{
	memcpy(out_rows, rows, sizeof(rows));
}

/* What the daemon's listener does. */
static void on_connection(uv_poll_t *poll, int status, int events)
{
	struct fixture *fixture = poll->data;
	struct ucred peer;
	socklen_t n = sizeof(peer);
	int fd = accept4(fixture->private->listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0);
	fixture->counts.last_fd = fd;
	rpc_server_add_fd(fixture->server, fd, peer.uid, peer.pid, 0);
}

static void listen_unix(struct fixture *fixture, const char *path)
{
	struct fixture_private *private = fixture->private;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	if (path) {
		snprintf(private->path, sizeof(private->path), "%s", path);
	} else {
		const char *tmp = getenv("TMPDIR");
		snprintf(private->dir, sizeof(private->dir), "%s/rpc-XXXXXX", tmp ? tmp : "/tmp");
		CHECK(mkdtemp(private->dir));
		snprintf(private->path, sizeof(private->path), "%s/s", private->dir);
	}
	strcpy(address.sun_path, private->path);
	unlink(private->path);
	private->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(private->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(private->listener, 64) == 0);
	uv_poll_init(&private->loop, &private->poll, private->listener);
	private->poll.data = fixture;
	uv_poll_start(&private->poll, UV_READABLE, on_connection);
	snprintf(fixture->target, sizeof(fixture->target), "unix:%s", private->path);
}

static void on_wake(uv_async_t *wake)
{
	struct fixture *fixture = wake->data;
	struct fixture_private *private = fixture->private;
	pthread_mutex_lock(&private->mutex);
	if (private->fn)
	private->fn(fixture, private->arg);
	private->fn = NULL;
	pthread_cond_broadcast(&private->done);
	pthread_mutex_unlock(&private->mutex);
}

static void *loop_main(void *arg)
{
	struct fixture *fixture = arg;
	uv_run(&fixture->private->loop, UV_RUN_DEFAULT);
	return NULL;
}

struct fixture *fixture_start(const struct fixture_options *options)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct fixture_private *private = calloc(1, sizeof(*private));
	CHECK(fixture && private);
	fixture->private = private;
	private->parameters = malloc(PARAMETERS);
	CHECK(private->parameters);
	for (size_t i = 0; i < PARAMETERS; i++)
	private->parameters[i] = (uint8_t)(i % 251);
	private->drain_ms = options->drain_ms;
	private->grace_ms = options->grace_ms;
	pthread_mutex_init(&private->mutex, NULL);
	pthread_cond_init(&private->done, NULL);
	uv_loop_init(&private->loop);
	uv_async_init(&private->loop, &private->wake, on_wake);
	private->wake.data = fixture;

	struct rpc_config config = options->config;
	config.loop = &private->loop;
	CHECK(rpc_server_new(&config, &fixture->server) == ST_OK);
	CHECK(rpc_server_add(fixture->server, rows, FIXTURE_ROWS, fixture) == ST_OK);
	CHECK(rpc_health_new(fixture->server, &fixture->health) == ST_OK);
	CHECK(rpc_reflection_add(fixture->server) == ST_OK);
	if (options->tcp) {
		const char *address = options->tcp_address ? options->tcp_address : "127.0.0.1:0";
		CHECK(rpc_server_listen_tcp(fixture->server, address, options->tcp, &fixture->tcp_port) == ST_OK);
	}
	CHECK(rpc_server_start(fixture->server) == ST_OK);
	CHECK(rpc_health_set(fixture->health, "", true) == ST_OK);
	listen_unix(fixture, options->socket);
	CHECK(pthread_create(&private->thread, NULL, loop_main, fixture) == 0);
	return fixture;
}

void fixture_do(struct fixture *fixture, void (*fn)(struct fixture *fixture, void *arg), void *arg)
{
	struct fixture_private *private = fixture->private;
	pthread_mutex_lock(&private->mutex);
	private->fn = fn;
	private->arg = arg;
	uv_async_send(&private->wake);
	while (private->fn)
		pthread_cond_wait(&private->done, &private->mutex);
	pthread_mutex_unlock(&private->mutex);
}

static void copy_counts(struct fixture *fixture, void *arg)
{
	*(struct fixture_counts *)arg = fixture->counts;
}

struct fixture_counts fixture_wait(struct fixture *fixture, bool (*cond)(const struct fixture_counts *counts))
{
	struct fixture_counts counts;
	for (int i = 0; i < 10000; i++) {
		fixture_do(fixture, copy_counts, &counts);
		if (cond(&counts))
			return counts;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	CHECK(!"what the test waits for does not come");
	return counts;
}

static void on_stopped(void *arg)
{
	struct fixture *fixture = arg;
	rpc_server_free(fixture->server);
	rpc_health_free(fixture->health);
	uv_close((uv_handle_t *)&fixture->private->wake, NULL);
}

static void begin_stop(struct fixture *fixture, void *arg)
{
	struct fixture_private *private = fixture->private;
	rpc_server_stop(fixture->server, private->drain_ms, private->grace_ms, on_stopped, fixture);
	uv_close((uv_handle_t *)&private->poll, NULL);
}

void fixture_stop_begin(struct fixture *fixture)
{
	fixture->private->stopping = true;
	fixture_do(fixture, begin_stop, NULL);
}

static void fixture_free(struct fixture *fixture)
{
	struct fixture_private *private = fixture->private;
	close(private->listener);
	unlink(private->path);
	if (private->dir[0])
		rmdir(private->dir);
	pthread_cond_destroy(&private->done);
	pthread_mutex_destroy(&private->mutex);
	free(private->parameters);
	free(private);
	free(fixture);
}

void fixture_stop(struct fixture *fixture)
{
	struct fixture_private *private = fixture->private;
	if (!private->stopping)
		fixture_stop_begin(fixture);
	pthread_join(private->thread, NULL);
	CHECK(uv_loop_close(&private->loop) == 0);
	CHECK(fixture->counts.begun == fixture->counts.completed + fixture->counts.broken);
	fixture_free(fixture);
}

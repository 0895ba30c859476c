#include "lib/channel.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>
#include "proto/handoff.h"

#define REPLY_MAX (64 << 20)
#define KEEPALIVE_MS 20000
#define KEEPALIVE_TIMEOUT_MS 10000
#define BACKOFF_FIRST_MS 50
#define BACKOFF_MAX_MS 2000
#define PUMP_AWAY_MS 20

/* One thread at a time takes events from the queue. A caller that waits for a batch does it itself if nobody else is at
 * it: handing the event over from another thread would take longer than the call's work. The pump does it while nobody
 * calls; in the midst of calls it looks only every PUMP_AWAY_MS whether they go on. */
struct rpc_channel {
	grpc_channel *grpc;
	grpc_completion_queue *queue;
	pthread_t pump;
	char *authorization; /* NULL: none */

	pthread_mutex_t lock; /* of all below, and of the tags */
	pthread_cond_t pump_due;
	bool taken; /* a thread is in grpc_completion_queue_next */
	bool called; /* a caller has waited since the pump looked last */
	bool closing;
	struct rpc_stream *followers; /* callers that will take from the queue when who does it now is through */
};

/* A batch that is out. */
struct tag {
	struct rpc_stream *stream;
	bool out;
	bool ok;
};

/* A call of any kind; a unary one uses the `status` batch alone. */
struct rpc_stream {
	struct rpc_channel *channel;
	grpc_call *call;
	const ProtobufCMethodDescriptor *types;
	uint32_t bulk;
	bool patient; /* long silences: its thread never takes events, so that the callers' need no handing over */
	pthread_cond_t changed;
	struct rpc_stream *next_follower;
	struct tag status, send, close, recv;
	bool close_sent;
	bool ended; /* no more messages will come */

	grpc_byte_buffer *out;
	grpc_byte_buffer *in;
	ProtobufCMessage *msg;

	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice text;
};

/* Channel */

/* Takes one event, with the lock released meanwhile; false when the queue has shut down. */
static bool take_event(struct rpc_channel *channel, gpr_timespec until)
{
	channel->taken = true;
	pthread_mutex_unlock(&channel->lock);
	grpc_event event = grpc_completion_queue_next(channel->queue, until, NULL);
	if (event.type == GRPC_OP_COMPLETE)
		handoff_taken(event.tag);
	pthread_mutex_lock(&channel->lock);
	channel->taken = false;
	if (event.type == GRPC_OP_COMPLETE) {
		struct tag *tag = event.tag;
		tag->ok = event.success != 0;
		tag->out = false;
		pthread_cond_signal(&tag->stream->changed);
	}
	return event.type != GRPC_QUEUE_SHUTDOWN;
}

static void hand_over(struct rpc_channel *channel)
{
	if (channel->followers && !channel->taken)
		pthread_cond_signal(&channel->followers->changed);
}

static struct timespec time_in(int64_t ms)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += ms % 1000 * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

static void *pump_main(void *arg)
{
	struct rpc_channel *channel = arg;
	bool open = true;
	pthread_mutex_lock(&channel->lock);
	while (open) {
		while (!channel->closing && (channel->taken || channel->called)) {
			struct timespec until = time_in(PUMP_AWAY_MS);
			channel->called = false;
			pthread_cond_timedwait(&channel->pump_due, &channel->lock, &until);
		}
		open = take_event(channel, gpr_inf_future(GPR_CLOCK_MONOTONIC));
		hand_over(channel);
	}
	pthread_mutex_unlock(&channel->lock);
	return NULL;
}

static char *read_pem(const char *path)
{
	char *text = NULL;
	size_t n = 0;
	FILE *file = fopen(path, "re");
	if (!file || getdelim(&text, &n, 0, file) < 0) {
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	return text;
}

static enum status make_credentials(const struct rpc_channel_options *options, grpc_channel_credentials **out_creds)
{
	if (!options->cert_path && !options->key_path && !options->ca_path) {
		*out_creds = grpc_insecure_credentials_create();
		return ST_OK;
	}
	if (!options->cert_path || !options->key_path || !options->ca_path)
		return ST_INVALID_ARGUMENT;
	enum status st = ST_IO_ERROR;
	char *cert = read_pem(options->cert_path), *key = read_pem(options->key_path), *ca = read_pem(options->ca_path);
	grpc_ssl_pem_key_cert_pair pair = { .private_key = key, .cert_chain = cert };
	if (cert && key && ca) {
		*out_creds = grpc_ssl_credentials_create_ex(ca, &pair, NULL, NULL);
		st = *out_creds ? ST_OK : ST_IO_ERROR;
	}
	free(cert);
	free(key);
	free(ca);
	return st;
}

/* gRPC only reads keys and strings; its types have no const. */
static grpc_arg int_arg(const char *key, int value)
{
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value };
}

static grpc_arg string_arg(const char *key, const char *value)
{
	return (grpc_arg){
		.type = GRPC_ARG_STRING, .key = (char *)(uintptr_t)key, .value.string = (char *)(uintptr_t)value
	};
}

/* Retries of gRPC are off because they hold lent memory after the call; a subchannel pool of its own, because channels
 * to the same daemon would share one connection; no proxy and no service config, because a daemon has neither. */
static grpc_channel *make_channel(const struct rpc_channel_options *options, grpc_channel_credentials *creds)
{
	grpc_arg args[] = {
		int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
		int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
		int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
		int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100),
		int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
		int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
		int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
		int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, REPLY_MAX),
		int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		int_arg("grpc.compression_enabled_algorithms_bitset", 1),
		string_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, options->server_name), /* last: left out if NULL */
	};
	size_t n = sizeof args / sizeof args[0] - (options->server_name ? 0 : 1);
	grpc_channel_args all = { .num_args = n, .args = args };
	return grpc_channel_create(options->target, creds, &all);
}

static void cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

static bool target_ok(const char *target)
{
	static const char *const schemes[] = { "unix:", "dns:", "ipv4:", "ipv6:" };
	for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
		if (strncmp(target, schemes[i], strlen(schemes[i])) == 0 && target[strlen(schemes[i])])
			return true;
	return false;
}

enum status rpc_channel_open(const struct rpc_channel_options *options, struct rpc_channel **out_channel)
{
	if (!options->target || !target_ok(options->target))
		return ST_INVALID_ARGUMENT;
	struct rpc_channel *channel = calloc(1, sizeof *channel);
	if (!channel)
		return ST_NO_MEMORY;
	grpc_init();
	pthread_mutex_init(&channel->lock, NULL);
	cond_init(&channel->pump_due);
	grpc_channel_credentials *creds = NULL;
	enum status st = make_credentials(options, &creds);
	if (st != ST_OK)
		goto fail;
	st = ST_NO_MEMORY;
	if (options->token && asprintf(&channel->authorization, "Bearer %s", options->token) < 0) {
		channel->authorization = NULL;
		goto fail;
	}
	channel->grpc = make_channel(options, creds);
	grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
	channel->queue = queue;
	if (pthread_create(&channel->pump, NULL, pump_main, channel) != 0) {
		grpc_completion_queue_shutdown(queue);
		grpc_completion_queue_destroy(queue);
		channel->queue = NULL;
		goto fail;
	}
	grpc_channel_credentials_release(creds);
	*out_channel = channel;
	return ST_OK;
fail:
	if (creds)
		grpc_channel_credentials_release(creds);
	rpc_channel_close(channel);
	return st;
}

void rpc_channel_close(struct rpc_channel *channel)
{
	if (!channel)
		return;
	if (channel->grpc)
		grpc_channel_destroy(channel->grpc);
	if (channel->queue) {
		grpc_completion_queue_shutdown(channel->queue);
		pthread_mutex_lock(&channel->lock);
		channel->closing = true;
		pthread_cond_signal(&channel->pump_due);
		pthread_mutex_unlock(&channel->lock);
		pthread_join(channel->pump, NULL);
		grpc_completion_queue_destroy(channel->queue);
	}
	pthread_cond_destroy(&channel->pump_due);
	pthread_mutex_destroy(&channel->lock);
	free(channel->authorization);
	free(channel);
	grpc_shutdown();
}

static void fill_failure(const struct rpc_stream *stream, struct rpc_failure *failure)
{
	const void *trailer = NULL;
	size_t n = 0;
	for (size_t i = 0; i < stream->trailing.count; i++) {
		const grpc_metadata *entry = &stream->trailing.metadata[i];
		if (grpc_slice_str_cmp(entry->key, ERROR_DETAIL_KEY) == 0) {
			trailer = GRPC_SLICE_START_PTR(entry->value);
			n = GRPC_SLICE_LENGTH(entry->value);
		}
	}
	error_detail_unpack(stream->code, (const char *)GRPC_SLICE_START_PTR(stream->text), GRPC_SLICE_LENGTH(stream->text),
			    trailer, n, failure);
}

static void fill_local(struct rpc_failure *failure, enum status st, const char *message)
{
	*failure = (struct rpc_failure){ .status = st, .grpc_code = status_info(st)->grpc_code };
	snprintf(failure->message, sizeof failure->message, "%s", message);
}

/* Calls */

static const ProtobufCMethodDescriptor *find_method(const ProtobufCServiceDescriptor *service, const char *name)
{
	for (unsigned i = 0; i < service->n_methods; i++)
		if (strcmp(service->methods[i].name, name) == 0)
			return &service->methods[i];
	return NULL;
}

static gpr_timespec deadline_in(int64_t timeout_ms)
{
	return timeout_ms > 0 ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN)) :
				gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

static enum status stream_new(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *name,
			      int64_t timeout_ms, struct rpc_stream **out_stream)
{
	const ProtobufCMethodDescriptor *types = find_method(service, name);
	char path[160];
	if (!types)
		return ST_UNIMPLEMENTED;
	struct rpc_stream *stream = calloc(1, sizeof *stream);
	if (!stream)
		return ST_NO_MEMORY;
	snprintf(path, sizeof path, "/%s/%s", service->name, name);
	stream->channel = channel;
	stream->types = types;
	stream->status.stream = stream->send.stream = stream->close.stream = stream->recv.stream = stream;
	stream->text = grpc_empty_slice();
	grpc_metadata_array_init(&stream->initial);
	grpc_metadata_array_init(&stream->trailing);
	cond_init(&stream->changed);
	grpc_slice path_slice = grpc_slice_from_copied_string(path);
	stream->call = grpc_channel_create_call(channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, channel->queue, path_slice, NULL,
						deadline_in(timeout_ms), NULL);
	grpc_slice_unref(path_slice);
	*out_stream = stream;
	return ST_OK;
}

static bool start(struct rpc_stream *stream, const grpc_op *ops, size_t n, struct tag *tag)
{
	tag->out = true;
	handoff_given(tag);
	if (grpc_call_start_batch(stream->call, ops, n, tag, NULL) == GRPC_CALL_OK)
		return true;
	tag->out = false;
	tag->ok = false;
	return false;
}

/* One turn of waiting: takes an event if nobody else does, else sleeps. The lock is held. */
static void wait_turn(struct rpc_stream *stream, int64_t timeout_ms, const struct timespec *until)
{
	struct rpc_channel *channel = stream->channel;
	struct rpc_stream **at = &channel->followers;
	if (stream->patient && timeout_ms < 0) {
		pthread_cond_wait(&stream->changed, &channel->lock);
		return;
	}
	if (!channel->taken) {
		take_event(channel, timeout_ms < 0 ? gpr_inf_future(GPR_CLOCK_MONOTONIC) :
						     (gpr_timespec){ until->tv_sec, (int32_t)until->tv_nsec, GPR_CLOCK_MONOTONIC });
		return;
	}
	stream->next_follower = channel->followers;
	channel->followers = stream;
	if (timeout_ms < 0)
		pthread_cond_wait(&stream->changed, &channel->lock);
	else
		pthread_cond_timedwait(&stream->changed, &channel->lock, until);
	while (*at != stream)
		at = &(*at)->next_follower;
	*at = stream->next_follower;
}

static bool is_past(const struct timespec *t)
{
	struct timespec now = time_in(0);
	return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

/* Waits until the batch is back; false when timeout_ms (-1: for ever) pass first. */
static bool wait_for(struct rpc_stream *stream, const struct tag *tag, int64_t timeout_ms)
{
	struct rpc_channel *channel = stream->channel;
	struct timespec until = { 0 };
	if (timeout_ms > 0)
		until = time_in(timeout_ms);
	pthread_mutex_lock(&channel->lock);
	while (tag->out && (timeout_ms < 0 || (timeout_ms > 0 && !is_past(&until)))) {
		channel->called |= !stream->patient;
		wait_turn(stream, timeout_ms, &until);
	}
	bool back = !tag->out;
	hand_over(channel);
	pthread_mutex_unlock(&channel->lock);
	return back;
}

static bool is_out(struct rpc_stream *stream, const struct tag *tag)
{
	return !wait_for(stream, tag, 0);
}

/* The ops that every call has: headers out and in, and the status. */
static size_t common_ops(struct rpc_stream *stream, grpc_op *ops, grpc_metadata *header)
{
	ops[0] = (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA };
	if (stream->channel->authorization) {
		header->key = grpc_slice_from_static_string("authorization");
		header->value = grpc_slice_from_copied_string(stream->channel->authorization);
		ops[0].data.send_initial_metadata.count = 1;
		ops[0].data.send_initial_metadata.metadata = header;
	}
	ops[1] = (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA };
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
	ops[2] = (grpc_op){ .op = GRPC_OP_RECV_STATUS_ON_CLIENT };
	ops[2].data.recv_status_on_client.trailing_metadata = &stream->trailing;
	ops[2].data.recv_status_on_client.status = &stream->code;
	ops[2].data.recv_status_on_client.status_details = &stream->text;
	return 3;
}

static void drop_out(struct rpc_stream *stream)
{
	if (stream->out)
		grpc_byte_buffer_destroy(stream->out);
	stream->out = NULL;
}

static void drop_in(struct rpc_stream *stream)
{
	bytes_free(stream->msg);
	stream->msg = NULL;
	if (stream->in)
		grpc_byte_buffer_destroy(stream->in);
	stream->in = NULL;
}

void rpc_stream_free(struct rpc_stream *stream)
{
	if (!stream)
		return;
	if (is_out(stream, &stream->status))
		grpc_call_cancel(stream->call, NULL);
	wait_for(stream, &stream->status, -1);
	wait_for(stream, &stream->send, -1);
	wait_for(stream, &stream->close, -1);
	wait_for(stream, &stream->recv, -1);
	drop_out(stream);
	drop_in(stream);
	grpc_metadata_array_destroy(&stream->initial);
	grpc_metadata_array_destroy(&stream->trailing);
	grpc_slice_unref(stream->text);
	grpc_call_unref(stream->call);
	pthread_cond_destroy(&stream->changed);
	free(stream);
}

/* One batch, one completion. */
static enum status attempt(struct rpc_stream *stream, const ProtobufCMessage *request, ProtobufCMessage **out_reply,
			   struct rpc_failure *failure)
{
	grpc_op ops[6];
	grpc_metadata header = { .value = grpc_empty_slice() };
	size_t n = common_ops(stream, ops, &header);
	stream->out = bytes_to_buffer(request);
	ops[n] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
	ops[n++].data.send_message.send_message = stream->out;
	ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	ops[n] = (grpc_op){ .op = GRPC_OP_RECV_MESSAGE };
	ops[n++].data.recv_message.recv_message = &stream->in;
	bool started = start(stream, ops, n, &stream->status);
	grpc_slice_unref(header.value);
	wait_for(stream, &stream->status, -1);
	if (!started) {
		fill_local(failure, ST_INTERNAL, "gRPC refused the call");
	} else {
		fill_failure(stream, failure);
		if (failure->status == ST_OK && !stream->in)
			fill_local(failure, ST_MALFORMED, "the reply has no message");
		else if (failure->status == ST_OK && bytes_from_buffer(stream->types->output, stream->in, out_reply) != ST_OK)
			fill_local(failure, ST_MALFORMED, "the reply is malformed");
	}
	return failure->status;
}

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Half of the back-off, plus a random part of the other half: the callers of a node that restarts spread out. */
static int64_t jitter(int64_t backoff_ms)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return backoff_ms / 2 + (now.tv_nsec / 64 * 2654435761) % (backoff_ms / 2 + 1);
}

/* CANCELLED that nobody asked for comes from a server that died between accept and answer. */
static bool worth_repeating(const struct rpc_failure *failure)
{
	return failure->grpc_code == GRPC_STATUS_UNAVAILABLE ||
	       (failure->grpc_code == GRPC_STATUS_CANCELLED && failure->reason[0] == 0);
}

enum status rpc_channel_call(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
			     const ProtobufCMessage *request, int64_t timeout_ms, unsigned flags,
			     ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	struct rpc_failure unused;
	struct rpc_failure *f = failure ? failure : &unused;
	int64_t until = now_ms() + timeout_ms, backoff_ms = BACKOFF_FIRST_MS;
	for (;;) {
		struct rpc_stream *stream;
		enum status st = stream_new(channel, service, method, until - now_ms(), &stream);
		if (st != ST_OK) {
			fill_local(f, st, status_info(st)->text);
			return st;
		}
		st = attempt(stream, request, out_reply, f);
		rpc_stream_free(stream);
		if (st == ST_OK || (flags & RPC_NO_RETRY) || !worth_repeating(f))
			return st;
		int64_t pause_ms = jitter(backoff_ms);
		if (pause_ms < f->retry_after_ms)
			pause_ms = f->retry_after_ms;
		if (now_ms() + pause_ms >= until)
			return st;
		nanosleep(&(struct timespec){ .tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000 }, NULL);
		backoff_ms = backoff_ms * 2 < BACKOFF_MAX_MS ? backoff_ms * 2 : BACKOFF_MAX_MS;
	}
}

/* Streams */

enum status rpc_stream_open(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
			    int64_t timeout_ms, uint32_t bulk, struct rpc_stream **out_stream)
{
	struct rpc_stream *stream;
	enum status st = stream_new(channel, service, method, timeout_ms, &stream);
	if (st != ST_OK)
		return st;
	grpc_op ops[3];
	grpc_metadata header = { .value = grpc_empty_slice() };
	size_t n = common_ops(stream, ops, &header);
	bool started = start(stream, ops, n, &stream->status);
	grpc_slice_unref(header.value);
	if (!started) {
		rpc_stream_free(stream);
		return ST_INTERNAL;
	}
	stream->bulk = bulk;
	stream->patient = timeout_ms <= 0;
	*out_stream = stream;
	return ST_OK;
}

/* Takes the buffer. */
static enum status send_buffer(struct rpc_stream *stream, grpc_byte_buffer *buffer)
{
	grpc_op op = { .op = GRPC_OP_SEND_MESSAGE };
	bool first = !stream->out;
	wait_for(stream, &stream->send, -1);
	drop_out(stream);
	stream->out = buffer;
	if (stream->close_sent || (!first && !stream->send.ok))
		return ST_UNAVAILABLE;
	op.data.send_message.send_message = buffer;
	return start(stream, &op, 1, &stream->send) ? ST_OK : ST_UNAVAILABLE;
}

enum status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *msg)
{
	return send_buffer(stream, bytes_to_buffer(msg));
}

enum status rpc_stream_send_bulk(struct rpc_stream *stream, const ProtobufCMessage *msg, uint32_t field, const void *data,
				 size_t n, void (*release)(void *arg), void *arg)
{
	return send_buffer(stream, bytes_to_buffer_bulk(msg, field, data, n, release, arg));
}

enum status rpc_stream_close_send(struct rpc_stream *stream)
{
	grpc_op op = { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	if (stream->close_sent)
		return ST_OK;
	wait_for(stream, &stream->send, -1);
	stream->close_sent = true;
	return start(stream, &op, 1, &stream->close) ? ST_OK : ST_UNAVAILABLE;
}

static enum status unpack(struct rpc_stream *stream, struct bytes_view *out_bulk)
{
	struct bytes_view ignored;
	if (stream->bulk)
		return bytes_from_buffer_bulk(stream->types->output, stream->bulk, stream->in, &stream->msg,
					      out_bulk ? out_bulk : &ignored);
	return bytes_from_buffer(stream->types->output, stream->in, &stream->msg);
}

/* Waits for a message in stream->in; NULL at the end. */
static enum status next_buffer(struct rpc_stream *stream, int64_t timeout_ms)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &stream->in;
	if (stream->ended)
		return ST_OK;
	if (!is_out(stream, &stream->recv)) {
		drop_in(stream);
		start(stream, &op, 1, &stream->recv);
	}
	if (!wait_for(stream, &stream->recv, timeout_ms))
		return ST_STALLED;
	stream->ended = !stream->in;
	return ST_OK;
}

enum status rpc_stream_next(struct rpc_stream *stream, int64_t timeout_ms, const ProtobufCMessage **out_msg,
			    struct bytes_view *out_bulk)
{
	enum status st = next_buffer(stream, timeout_ms);
	if (st != ST_OK)
		return st;
	if (!stream->ended) {
		st = unpack(stream, out_bulk);
		if (st != ST_OK) {
			rpc_stream_cancel(stream);
			return ST_MALFORMED;
		}
	}
	*out_msg = stream->ended ? NULL : stream->msg;
	return ST_OK;
}

enum status rpc_stream_finish(struct rpc_stream *stream, struct rpc_failure *failure)
{
	struct rpc_failure unused;
	struct rpc_failure *f = failure ? failure : &unused;
	rpc_stream_close_send(stream);
	do
		next_buffer(stream, -1);
	while (!stream->ended);
	wait_for(stream, &stream->status, -1);
	fill_failure(stream, f);
	return f->status;
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
	grpc_call_cancel(stream->call, NULL);
}

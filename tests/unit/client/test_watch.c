/* SPDX-License-Identifier: Apache-2.0 */
/* A session's event stream follows the session: what is read when the process attaches again ends, and the next stream
 * asks for the new session. The streams are a script (-Wl,--wrap). */
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/clock.h"
#include "lib/internal.h"
#include "support/suite.h"

#include <pthread.h>
#include <string.h>

#define SOON_MS 10000

enum status __wrap_rpc_stream_open(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				   const char *method, int64_t timeout_ms, uint32_t bulk, struct rpc_stream **out);
enum status __wrap_rpc_stream_send(struct rpc_stream *stream, const struct ProtobufCMessage *msg);
enum status __wrap_rpc_stream_close_send(struct rpc_stream *stream);
enum status __wrap_rpc_stream_next(struct rpc_stream *stream, int64_t timeout_ms,
				   const struct ProtobufCMessage **out_msg, struct bytes_view *out_bulk);
enum status __wrap_rpc_stream_finish(struct rpc_stream *stream, struct rpc_failure *failure);
void __wrap_rpc_stream_cancel(struct rpc_stream *stream);
void __wrap_rpc_stream_free(struct rpc_stream *stream);

struct rpc_stream {
	bool cancelled;
};

/* The script, under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct rpc_stream stream; /* there is one at a time */
static uint64_t session;	 /* that the last stream has asked for; 0: none */
static bool first_is_over;	 /* gaccd has ended the stream of session 1 */
static unsigned finished;

enum status __wrap_rpc_stream_open(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				   const char *method, int64_t timeout_ms, uint32_t bulk, struct rpc_stream **out)
{
	stream.cancelled = false;
	*out = &stream;
	return ST_OK;
}

enum status __wrap_rpc_stream_send(struct rpc_stream *s, const struct ProtobufCMessage *msg)
{
	pthread_mutex_lock(&lock);
	session = ((const Gacc__V1__WatchSessionRequest *)msg)->session->id;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return ST_OK;
}

enum status __wrap_rpc_stream_close_send(struct rpc_stream *s)
{
	return ST_OK;
}

/* Nothing is said; the stream ends when it is cancelled, or when gaccd ends it. */
enum status __wrap_rpc_stream_next(struct rpc_stream *s, int64_t timeout_ms, const struct ProtobufCMessage **out_msg,
				   struct bytes_view *out_bulk)
{
	pthread_mutex_lock(&lock);
	while (!s->cancelled && !(first_is_over && session == 1))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	*out_msg = NULL;
	return ST_OK;
}

enum status __wrap_rpc_stream_finish(struct rpc_stream *s, struct rpc_failure *failure)
{
	pthread_mutex_lock(&lock);
	memset(failure, 0, sizeof(*failure));
	failure->status = s->cancelled ? ST_CANCELLED : ST_SESSION_FENCED;
	finished++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return failure->status;
}

void __wrap_rpc_stream_cancel(struct rpc_stream *s)
{
	pthread_mutex_lock(&lock);
	s->cancelled = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void __wrap_rpc_stream_free(struct rpc_stream *s)
{
}

static void wait_until(bool (*condition)(void))
{
	struct timespec until = time_in(SOON_MS);

	pthread_mutex_lock(&lock);
	while (!condition())
		ck_assert_int_eq(pthread_cond_timedwait(&changed, &lock, &until), 0);
	pthread_mutex_unlock(&lock);
}

static bool first_is_read(void)
{
	return session == 1;
}

static bool first_has_ended(void)
{
	return finished == 1;
}

static bool second_is_read(void)
{
	return session == 2;
}

/* 0: the stream is read when there is another session; 1: gaccd has ended it, and no other was begun. */
START_TEST(the_stream_follows_the_session)
{
	uint8_t token[TOKEN_BYTES] = "0123456789";
	Gacc__V1__Session s = GACC__V1__SESSION__INIT;
	struct gacc_client client = { 0 };
	struct gacc_job job = { .client = &client, .session = &s };

	cond_init(&changed);
	s.id = 1;
	s.token = (ProtobufCBinaryData){ sizeof(token), token };
	ck_assert_int_eq(watcher_new(&job, &job.watcher), ST_OK);
	wait_until(first_is_read);
	if (_i) {
		pthread_mutex_lock(&lock);
		first_is_over = true;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		wait_until(first_has_ended);
	}
	s.id = 2;
	watcher_rebind(job.watcher, &s);
	wait_until(second_is_read);
	watcher_free(job.watcher);
	ck_assert_uint_eq(finished, 2);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_watch");
	TCase *tc = tcase_create("watch");

	tcase_add_loop_test(tc, the_stream_follows_the_session, 0, 2);
	tcase_set_timeout(tc, 30);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

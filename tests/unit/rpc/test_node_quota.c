/* SPDX-License-Identifier: Apache-2.0 */
/* How many calls a node may have at its coordinator: links of its own, and those that it passes on for its users. */
#include "certificates.h"
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "support/suite.h"
#include "two_servers.h"

#include <stdlib.h>
#include <string.h>

#define GRADIENT (&gacc__v1__gradient_service__descriptor)
#define SECONDS 1000
#define USER 4711

/* A user's channel to the node; used by one thread at a time. */
static char target[USERS_TARGET];
static struct rpc_channel *channel;

/* ---- links ---- */

static unsigned n_ended, n_opened;
static char last_text[256];

static void on_link_ended(void *context, enum status st, const char *text)
{
	if (st != ST_RESOURCE_EXHAUSTED)
		return; /* with its server */
	snprintf(last_text, sizeof(last_text), "%s", text);
	n_ended++;
}

static bool all_taken_or_refused(void)
{
	return at_hub.messages + n_ended == n_opened;
}

/* One more link, which is left open. */
static void one_more(struct rpc_upstream *from)
{
	const struct rpc_outgoing_ends ends = { .ended = on_link_ended };
	Gacc__Internal__V1__PeerMessage message = GACC__INTERNAL__V1__PEER_MESSAGE__INIT;
	Gacc__Internal__V1__Carried carried = GACC__INTERNAL__V1__CARRIED__INIT;
	struct rpc_outgoing *stream;
	message.carried = &carried;
	ck_assert_int_eq(rpc_outgoing_open(from, PEER, "Link", QUEUE, &ends, &stream), ST_OK);
	ck_assert_int_eq(rpc_outgoing_send(stream, &message.base), ST_OK);
	rpc_outgoing_recv(stream);
	n_opened++;
	run_until(all_taken_or_refused);
}

static bool all_before_have_ended(void)
{
	return at_hub.ends == 9;
}

static void set_up_node(const char *certificate)
{
	hub_max_calls = 64;
	certify_all();
	certify("b", "URI:spiffe://lab/node/b");
	set_up_with("hub");
	dial_as(certificate, NULL);
	rpc_server_set_relay(node, upstream);
	listen_for_users(node, USER, target);
	ck_assert_int_eq(rpc_channel_open(&(struct rpc_channel_options){ .target = target }, &channel), ST_OK);
}

static void tear_down_node(void)
{
	rpc_channel_close(channel);
	tear_down();
	hub_max_calls = 0;
}

START_TEST(a_node_has_eight_links)
{
	set_up_node("a");
	struct rpc_upstream *of_a = upstream;
	for (int i = 0; i < 10; i++)
		one_more(of_a);
	ck_assert_uint_eq(at_hub.messages, 8);
	ck_assert_uint_eq(n_ended, 2);
	ck_assert_ptr_nonnull(strstr(last_text, "node a has 8 of them open already"));
	upstream = NULL;
	dial_as("b", NULL);
	one_more(upstream);
	ck_assert_uint_eq(at_hub.messages, 9);
	rpc_server_set_relay(node, NULL);
	rpc_upstream_free(of_a);
	dial_as("a", NULL); /* and b's has ended */
	run_until(all_before_have_ended);
	one_more(upstream);
	ck_assert_uint_eq(at_hub.messages, 10);
	tear_down_node();
}
END_TEST

/* ---- calls that are passed on ---- */

#define WATCHES 12

/* Opens calls that stay open until those beyond are refused, and ends them. */
struct watches {
	uint32_t open;
	struct rpc_failure failure;
};

static void *open_watches(void *arg)
{
	struct watches *w = arg;
	struct rpc_stream *stream[WATCHES];
	Gacc__V1__WatchSessionRequest request = GACC__V1__WATCH_SESSION_REQUEST__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	session.id = 1; /* messages, and it stays open */
	request.session = &session;
	for (int i = 0; i < WATCHES; i++) {
		const ProtobufCMessage *base;
		ck_assert_int_eq(rpc_stream_open(channel, GRADIENT, "WatchSession", 20 * SECONDS, 0, &stream[i]),
				 ST_OK);
		ck_assert_int_eq(rpc_stream_send(stream[i], &request.base), ST_OK);
		if (rpc_stream_next(stream[i], -1, &base, NULL) == ST_OK && base)
			w->open++;
	}
	for (int i = 0; i < WATCHES; i++) {
		struct rpc_failure f;
		rpc_stream_cancel(stream[i]);
		rpc_stream_finish(stream[i], &f);
		if (f.status == ST_RESOURCE_EXHAUSTED)
			w->failure = f;
		rpc_stream_free(stream[i]);
	}
	thread_done = true;
	return NULL;
}

static bool watches_have_ended(void)
{
	return hub_calls.counts.broken >= 8;
}

/* A node has 16 of 64 calls that may be passed on by it; one user has half of these. They come back. */
START_TEST(a_user_of_a_node_leaves_calls_to_others)
{
	set_up_node("a");
	for (int i = 0; i < 2; i++) {
		struct watches w = { 0 };
		hub_calls.counts.broken = 0;
		in_thread(open_watches, &w);
		ck_assert_uint_eq(w.open, 8);
		ck_assert_int_eq(w.failure.status, ST_RESOURCE_EXHAUSTED);
		ck_assert_ptr_nonnull(
			strstr(w.failure.message, "node a has passed on 8 calls that are open, 8 of them yours;"));
		run_until(watches_have_ended);
	}
	tear_down_node();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("node_quota");
	TCase *c = tcase_create("node_quota");
	tcase_set_timeout(c, 60);
	tcase_add_test(c, a_node_has_eight_links);
	tcase_add_test(c, a_user_of_a_node_leaves_calls_to_others);
	suite_add_tcase(s, c);
	return suite_run(s);
}

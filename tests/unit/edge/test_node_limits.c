/* SPDX-License-Identifier: Apache-2.0 */
/* What a node may take of its coordinator: links without a word, and memory for messages that do not get on. Over real
 * sockets. */
#include "edge/node_serve.h"
#include "edge/peer_link.h"
#include "far_rig.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define S INT64_C(1000000000)

static struct now at;

static void setup(void)
{
	rig_open();
	at = node_now();
	free(conf->node.name);
	conf->node.name = strdup("a");
	ck_assert_int_eq(node_serve_new(&d), ST_OK);
	far_serve(false);
}

static void teardown(void)
{
	far_close();
	rig_close();
	node_serve_free(&d);
}

static void tick_in(int64_t ns)
{
	at.mono_ns += ns;
	at.unix_ns += ns;
	node_serve_tick(&d, at);
}

/* With ticks, as in a loop that runs. */
static void pass(int64_t ns)
{
	tick_in(0);
	for (; ns > 0; ns -= S / 2)
		tick_in(S / 2);
}

static uint32_t n_served(void)
{
	uint32_t n = 0;
	struct served *s = d.served;
	for (; s; s = *(struct served **)s) /* next is its first member */
		n++;
	return n;
}

START_TEST(a_link_without_a_hello_ends)
{
	far_link(&far[1], NULL);
	FAR_UNTIL(n_served() == 1);
	far_link(&far[2], NULL);
	far_hello(&far[2], "c", 1, 0);
	FAR_UNTIL(far[2].n[PEER_WELCOME]);
	pass(9 * S);
	for (int i = 0; i < 50; i++)
		far_turn();
	ck_assert(!far[1].ended && n_served() == 2);
	pass(S);
	FAR_ENDED(&far[1], ST_DEADLINE, "no Hello has come for 10 s: a link begins with it; dial anew");
	ck_assert(!far[2].ended);
	for (int i = 0; i < 200; i++)
		far_turn();
	ck_assert_msg(n_served() == 1, "%u", n_served());
}
END_TEST

static unsigned char frame[PEER_FRAME];

/* A frame of a tensor set of 3 MiB. */
static void send_frame(struct far *f, uint64_t rest)
{
	far_say(f, &(struct peer_message){ .kind = PEER_CARRIED,
					   .carried = { LINK_TENSORS, 9, 0, frame, PEER_FRAME, rest } });
}

static void say_half(struct far *f)
{
	far_link(f, NULL);
	far_hello(f, "b", 1, 0);
	FAR_UNTIL(f->n[PEER_WELCOME]);
	send_frame(f, 2 * PEER_FRAME);
	FAR_UNTIL(d.node_link[1] && d.node_link[1]->arrived.n == PEER_FRAME);
}

START_TEST(a_message_that_stops_ends_its_link)
{
	say_half(&far[1]);
	pass(9 * S);
	ck_assert_ptr_nonnull(d.node_link[1]);
	far_say(&far[1], &(struct peer_message){ .kind = PEER_BEAT }); /* is no news of the message */
	for (int i = 0; i < 50; i++)
		far_turn();
	pass(S);
	ck_assert_ptr_null(d.node_link[1]);
	FAR_ENDED(&far[1], ST_DEADLINE, "a message has stopped after 1048576 bytes: dial anew and send it again");
}
END_TEST

/* Frame by frame, each in time: a node could hold its coordinator's memory for ever. */
START_TEST(a_message_that_is_too_slow_ends_its_link)
{
	say_half(&far[1]);
	int64_t *begun = &d.node_link[1]->begun_ns;
	*begun -= 26 * S - S / 2; /* 1 MiB in 25.5 s, and 26 s are allowed */
	tick_in(0);
	ck_assert_ptr_nonnull(d.node_link[1]);
	send_frame(&far[1], PEER_FRAME);
	FAR_UNTIL(d.node_link[1]->arrived.n == 2 * PEER_FRAME);
	tick_in(S);
	ck_assert_ptr_nonnull(d.node_link[1]);
	*begun -= 16 * S;
	tick_in(0);
	FAR_ENDED(&far[1], ST_DEADLINE, "a message has come too slowly: 2097152 bytes in 42 s; dial anew");
}
END_TEST

START_TEST(a_message_that_is_whole_is_not_late)
{
	say_half(&far[1]);
	send_frame(&far[1], PEER_FRAME);
	FAR_UNTIL(d.node_link[1]->arrived.n == 2 * PEER_FRAME);
	send_frame(&far[1], 0);
	FAR_UNTIL(d.node_link[1]->arrived.whole);
	pass(100 * S);
	ck_assert_ptr_nonnull(d.node_link[1]);
	ck_assert(!far[1].ended);
}
END_TEST

/* A coordinator that was stopped for a minute: what the nodes have sent meanwhile is still to be read. */
START_TEST(a_minute_in_which_gaccd_was_stopped_ends_no_link)
{
	far_link(&far[2], NULL);
	FAR_UNTIL(n_served() == 1);
	say_half(&far[1]);
	pass(5 * S);
	tick_in(60 * S);
	pass(3 * S);
	ck_assert_ptr_nonnull(d.node_link[1]);
	for (int i = 0; i < 50; i++)
		far_turn();
	ck_assert(!far[1].ended && !far[2].ended);
	pass(S);
	FAR_ENDED(&far[1], ST_DEADLINE, "a message has stopped after 1048576 bytes");
	FAR_ENDED(&far[2], ST_DEADLINE, "no Hello has come for 10 s");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("node limits");
	TCase *c = tcase_create("node limits");
	suite_add_tcase(s, c);
	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_link_without_a_hello_ends);
	tcase_add_test(c, a_message_that_stops_ends_its_link);
	tcase_add_test(c, a_message_that_is_too_slow_ends_its_link);
	tcase_add_test(c, a_message_that_is_whole_is_not_late);
	tcase_add_test(c, a_minute_in_which_gaccd_was_stopped_ends_no_link);
	return suite_run(s);
}

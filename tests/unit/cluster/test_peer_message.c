/* SPDX-License-Identifier: Apache-2.0 */
/* Hello, Welcome, Beat and frames: every field goes through a message, and what is wrong with one is said. */
#include "cluster/peer_message.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "proto/bytes.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static char why[300];
static struct part_held held[PEER_MAX_HELD];
static uint8_t frame[PEER_FRAME + 1];

static struct peer_message full_hello(void)
{
	struct peer_message p = {
		.kind = PEER_HELLO,
		.hello = { .facts = { .node = "node-1.rack_B",
				      .boot_id = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255 },
				      .incarnation = UINT64_MAX,
				      .protocol_min = 1,
				      .protocol_max = 3,
				      .version = "0.9.1",
				      .coll = "gloo/1",
				      .kernels = "avx2",
				      .data_address = "fd00::7",
				      .cpus = 48,
				      .memory_limit = UINT64_C(1) << 40,
				      .memory_used = 77,
				      .term_seen = 9 },
			   .held = held,
			   .n_held = 3 },
	};
	for (uint32_t i = 0; i < PEER_MAX_HELD; i++)
		held[i] = (struct part_held){ 1 + i, 2 + i, 3 + i, UINT64_MAX - i, i % 16, 0, 0 };
	return p;
}

static struct peer_message full_welcome(void)
{
	return (struct peer_message){ .kind = PEER_WELCOME, .welcome = { UINT64_MAX, 4, "head", 15000 } };
}

static struct peer_message full_beat(void)
{
	return (struct peer_message){ .kind = PEER_BEAT, .beat = { UINT64_MAX, 5 } };
}

static struct peer_message full_carried(void)
{
	return (struct peer_message){ .kind = PEER_CARRIED, .carried = { LINK_BOARD, 7, 15, "some bytes", 10, 1000 } };
}
/* A member that is added and not compared below changes the size. */
_Static_assert(sizeof(struct member_facts) == 280 && sizeof(struct part_held) == 56, "compared below");
_Static_assert(sizeof(struct peer_welcome) == 88 && sizeof(struct member_beat) == 16, "compared below");
_Static_assert(sizeof(struct peer_carried) == 48, "compared below");

static ProtobufCMessage *received; /* the frame's bytes are in it */

static void drop_received(void)
{
	if (received)
		bytes_free(received);
	received = NULL;
}

static void *packed(const struct peer_message *p, size_t *n)
{
	Gacc__Internal__V1__PeerMessage *m = peer_message_make(p);
	ck_assert_ptr_nonnull(m);
	void *bytes = bytes_pack(&m->base, n);
	free(m);
	return bytes;
}

static enum status through(const struct peer_message *p, struct peer_message *back)
{
	size_t n;
	void *bytes = packed(p, &n);
	drop_received();
	ck_assert(!bytes_decode(&gacc__internal__v1__peer_message__descriptor, bytes, n, &received));
	free(bytes);
	*why = '\0';
	return peer_message_read((const Gacc__Internal__V1__PeerMessage *)received, back, why, sizeof(why));
}

START_TEST(a_hello_comes_back)
{
	struct peer_message p = full_hello(), back;
	p.hello.n_held = (uint32_t[]){ 3, 0, PEER_MAX_HELD }[_i];
	p.hello.facts.kernels_revision = _i ? 8 : 0; /* 0 is not sent, as by a gaccd that does not know of it */
	ck_assert_msg(!through(&p, &back), "%s", why);
	ck_assert_int_eq(back.kind, PEER_HELLO);
	const struct member_facts *a = &p.hello.facts, *b = &back.hello.facts;
	ck_assert_str_eq(b->node, a->node);
	ck_assert_str_eq(b->version, a->version);
	ck_assert_str_eq(b->coll, a->coll);
	ck_assert_str_eq(b->kernels, a->kernels);
	ck_assert_str_eq(b->data_address, a->data_address);
	ck_assert(!memcmp(b->boot_id, a->boot_id, 16) && b->incarnation == a->incarnation);
	ck_assert(b->protocol_min == 1 && b->protocol_max == 3 && b->cpus == 48 && b->term_seen == 9);
	ck_assert(b->memory_limit == a->memory_limit && b->memory_used == 77 && b->kernels_revision == (_i ? 8 : 1));
	ck_assert_uint_eq(back.hello.n_held, p.hello.n_held);
	for (uint32_t i = 0; i < p.hello.n_held; i++) {
		const struct part_held *h = &back.hello.held[i];
		ck_assert(h->job_id == held[i].job_id && h->epoch == held[i].epoch && h->term == held[i].term);
		ck_assert(h->window == held[i].window && h->part == held[i].part);
	}
	peer_message_release(&back);
}
END_TEST

START_TEST(the_others_come_back)
{
	struct peer_message p = full_welcome(), back;
	ck_assert_msg(!through(&p, &back), "%s", why);
	ck_assert(back.kind == PEER_WELCOME && back.welcome.link == UINT64_MAX && back.welcome.term == 4);
	ck_assert(!strcmp(back.welcome.coordinator, "head") && back.welcome.lease_ms == 15000);
	p = full_beat();
	ck_assert_msg(!through(&p, &back), "%s", why);
	ck_assert(back.kind == PEER_BEAT && back.beat.memory_limit == UINT64_MAX && back.beat.memory_used == 5);
	peer_message_release(&back);
	p = full_carried();
	ck_assert_msg(!through(&p, &back), "%s", why);
	const struct peer_carried *c = &back.carried;
	ck_assert(back.kind == PEER_CARRIED && c->kind == LINK_BOARD && c->job == 7 && c->part == 15 &&
		  c->rest == 1000);
	ck_assert(c->n == 10 && !memcmp(c->bytes, "some bytes", 10));
	peer_message_release(&back);
	drop_received();
}
END_TEST

#define REFUSED(made, change, text)                                                                                    \
	do {                                                                                                           \
		struct peer_message p = made, back;                                                                    \
		change;                                                                                                \
		ck_assert_int_eq(through(&p, &back), ST_VERSION_SKEW);                                                 \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)
#define ACCEPTED(made, change)                                                                                         \
	do {                                                                                                           \
		struct peer_message p = made, back;                                                                    \
		change;                                                                                                \
		ck_assert_msg(!through(&p, &back), "%s", why);                                                         \
		peer_message_release(&back);                                                                           \
	} while (0)
#define NAME(what) strcpy(p.hello.facts.node, what)
#define LONGEST "abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"
_Static_assert(sizeof(LONGEST) == MEMBER_NAME, "the longest name");

START_TEST(senseless_hellos_are_refused)
{
	const struct peer_message h = full_hello();
	ACCEPTED(h, NAME("x"));
	ACCEPTED(h, NAME(LONGEST));
	REFUSED(h, NAME(""), "Hello.node is \"\" (0 bytes), and must be 1 to 64 letters, digits and \".-_\"");
	REFUSED(h, NAME("a b\x1b\""),
		"Hello.node is \"a b??\" (5 bytes), and must be 1 to 64 letters, digits and \".-_\"");
	REFUSED(h, NAME("a/b"), "Hello.node is \"a/b\" (3 bytes), and must be 1 to 64 letters, digits and \".-_\"");
	REFUSED(h, NAME("\xc3\xa9"), "Hello.node is \"??\" (2 bytes), and must be 1 to 64 letters, digits and \".-_\"");
	REFUSED(h, p.hello.facts.incarnation = 0, "Hello.incarnation is missing");
	REFUSED(h, p.hello.facts.protocol_min = 0, "Hello.protocol_min is missing");
	ACCEPTED(h, p.hello.facts.protocol_min = 3);
	REFUSED(h, p.hello.facts.protocol_min = 4, "Hello.protocol_min is 4, and protocol_max 3");
	ACCEPTED(h, strcpy(p.hello.facts.data_address, "10.0.0.7"));
	REFUSED(h, strcpy(p.hello.facts.data_address, "node-1"),
		"Hello.data_address is \"node-1\", and must be an IP address");
	REFUSED(h, p.hello.facts.data_address[0] = '\0', "Hello.data_address is \"\", and must be an IP address");
	REFUSED(h, held[2].job_id = 0, "PartHeld.job_id is missing");
	held[2].job_id = 1;
	REFUSED(h, held[1].epoch = 0, "PartHeld.epoch is missing");
	held[1].epoch = 1;
	REFUSED(h, held[0].part = 16, "PartHeld.part is 16, and a job has 16 parts at most");
	drop_received();
}
END_TEST

START_TEST(the_others_are_refused)
{
	const struct peer_message w = full_welcome(), c = full_carried();
	REFUSED(w, p.welcome.link = 0, "Welcome.link is missing");
	REFUSED(w, p.welcome.term = 0, "Welcome.term is missing");
	REFUSED(w, p.welcome.coordinator[0] = ' ',
		"Welcome.coordinator is \" ead\" (4 bytes), and must be 1 to 64 letters, digits and \".-_\"");
	ACCEPTED(w, p.welcome.lease_ms = 1000);
	ACCEPTED(w, p.welcome.lease_ms = 3600000);
	REFUSED(w, p.welcome.lease_ms = 999, "Welcome.lease_ms is 999, and must be 1000 to 3600000");
	REFUSED(w, p.welcome.lease_ms = 3600001, "Welcome.lease_ms is 3600001, and must be 1000 to 3600000");
	REFUSED(c, p.carried.job = 0, "Carried.job_id is missing");
	REFUSED(c, p.carried.part = 16, "Carried.part is 16, and a job has 16 parts at most");
	ACCEPTED(c, (p.carried.bytes = frame, p.carried.n = PEER_FRAME));
	ACCEPTED(c, p.carried.rest = (16 << 20) - 10);
	REFUSED(c, p.carried.rest = (16 << 20) - 9,
		"Carried.rest is 16777207 after 10 bytes, and a message of kind 13 has 16777216 at most");
	REFUSED(c, p.carried.rest = UINT64_MAX,
		"Carried.rest is 18446744073709551615 after 10 bytes, and a message of kind 13 has 16777216 at most");
	for (enum link_kind k = 0; k < LINK_KINDS; k++)
		if (k == LINK_PLACEMENT || k == LINK_TENSORS)
			ACCEPTED(c, (p.carried.kind = k, p.carried.rest = (128 << 20) - 10));
		else
			ACCEPTED(c, p.carried.kind = k);
	REFUSED(c, (p.carried.kind = LINK_TENSORS, p.carried.rest = (128 << 20) - 9),
		"Carried.rest is 134217719 after 10 bytes, and a message of kind 6 has 134217728 at most");
	drop_received();
}
END_TEST

/* What peer_message_make would not make. */
#define MADE_REFUSED(text)                                                                                             \
	do {                                                                                                           \
		struct peer_message none;                                                                              \
		ck_assert_int_eq(peer_message_read(&m, &none, why, sizeof(why)), ST_VERSION_SKEW);                     \
		ck_assert_str_eq(why, text);                                                                           \
	} while (0)

START_TEST(malformed_ones_are_refused)
{
	Gacc__Internal__V1__PeerMessage m = GACC__INTERNAL__V1__PEER_MESSAGE__INIT;
	Gacc__Internal__V1__Beat beat = GACC__INTERNAL__V1__BEAT__INIT;
	Gacc__Internal__V1__Welcome welcome = GACC__INTERNAL__V1__WELCOME__INIT;
	Gacc__Internal__V1__Carried carried = GACC__INTERNAL__V1__CARRIED__INIT;
	MADE_REFUSED("PeerMessage has 0 of hello, welcome, beat and carried that are known, and must have one");
	m.beat = &beat;
	m.welcome = &welcome;
	MADE_REFUSED("PeerMessage has 2 of hello, welcome, beat and carried that are known, and must have one");
	m.beat = NULL;
	m.welcome = NULL;
	m.carried = &carried;
	carried.job_id = 1;
	MADE_REFUSED("Carried.bytes has 0 bytes, and must have 1 to 1048576");
	carried.bytes = (ProtobufCBinaryData){ sizeof(frame), frame };
	MADE_REFUSED("Carried.bytes has 1048577 bytes, and must have 1 to 1048576");
	carried.kind = LINK_KINDS;
	MADE_REFUSED("Carried.kind is 20, and 19 is the last that is known");
}
END_TEST

START_TEST(malformed_hellos_are_refused)
{
	struct peer_message p = full_hello(), back;
	Gacc__Internal__V1__PeerMessage *made = peer_message_make(&p), m = *made;
	char long_name[] = LONGEST "x", version[] = "1234567890123456789012345678901\xc3\xa9";
	Gacc__Internal__V1__PartHeld *list[PEER_MAX_HELD + 1];
	for (size_t i = 0; i <= PEER_MAX_HELD; i++)
		list[i] = m.hello->held[0];
	m.hello->held = list;
	m.hello->n_held = PEER_MAX_HELD + 1;
	MADE_REFUSED("Hello.held has 4097 parts, and may have 4096");
	m.hello->n_held = 0;
	m.hello->boot_id.len = 15;
	MADE_REFUSED("Hello.boot_id has 15 bytes, and must have 16");
	m.hello->boot_id = (ProtobufCBinaryData){ 17, frame };
	MADE_REFUSED("Hello.boot_id has 17 bytes, and must have 16");
	m.hello->boot_id.len = 16;
	m.hello->node = long_name;
	MADE_REFUSED(
		"Hello.node is \"abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJKLMNOPQRST\" (65 bytes), and must be 1 to 64 "
		"letters, digits and \".-_\"");
	long_name[64] = '\0';
	m.hello->version = version; /* is cut where the character begins */
	ck_assert(!peer_message_read(&m, &back, why, sizeof(why)));
	ck_assert_str_eq(back.hello.facts.version, "1234567890123456789012345678901");
	peer_message_release(&back);
	free(made);
}
END_TEST

START_TEST(text_that_is_no_utf8_is_mended)
{
	struct peer_message p = full_hello(), back;
	strcpy(p.hello.facts.version, "1\xff"
				      "2");
	ck_assert_msg(!through(&p, &back), "%s", why);
	ck_assert_str_eq(back.hello.facts.version, "1?2");
	peer_message_release(&back);
	drop_received();
}
END_TEST

/* Their bytes are for ever. */
START_TEST(the_bytes_are_those_of_peer_proto)
{
	static const uint8_t welcome[] = { 0x12, 13, 0x08, 1, 0x10, 4, 0x1a, 4, 'h', 'e', 'a', 'd', 0x20, 0x98, 0x75 };
	static const uint8_t beat[] = { 0x1a, 4, 0x08, 1, 0x10, 5 };
	static const uint8_t carried[] = { 0x22, 13, 0x08, 13, 0x10, 7, 0x18, 15, 0x22, 2, 'a', 'b', 0x28, 0xe8, 0x07 };
	struct peer_message p = full_welcome();
	size_t n;
	p.welcome.link = 1;
	void *bytes = packed(&p, &n);
	ck_assert(n == sizeof(welcome) && !memcmp(bytes, welcome, n));
	free(bytes);
	p = full_beat();
	p.beat.memory_limit = 1;
	bytes = packed(&p, &n);
	ck_assert(n == sizeof(beat) && !memcmp(bytes, beat, n));
	free(bytes);
	p = full_carried();
	p.carried.bytes = "ab";
	p.carried.n = 2;
	bytes = packed(&p, &n);
	ck_assert(n == sizeof(carried) && !memcmp(bytes, carried, n));
	free(bytes);
}
END_TEST

START_TEST(the_bytes_of_a_hello_are_those_of_peer_proto)
{
	static const uint8_t hello[] = { 0x0a, 55,   0x0a, 1,	 'n', 0x12, 16,	 1,    2,    3,	   4,	5,
					 6,    7,    8,	   9,	 10,  11,   12,	 13,   14,   15,   255, 0x18,
					 2,    0x20, 1,	   0x28, 3,   0x32, 1,	 'v',  0x3a, 1,	   'c', 0x42,
					 1,    'k',  0x4a, 3,	 ':', ':',  '1', 0x50, 48,   0x58, 6,	0x60,
					 5,    0x68, 9,	   0x72, 4,   0x08, 1,	 0x18, 2 };
	struct peer_message p = full_hello();
	struct member_facts *f = &p.hello.facts;
	size_t n;
	strcpy(f->node, "n");
	strcpy(f->version, "v");
	strcpy(f->coll, "c");
	strcpy(f->kernels, "k");
	strcpy(f->data_address, "::1");
	f->incarnation = 2;
	f->memory_limit = 6;
	f->memory_used = 5;
	p.hello.n_held = 1;
	held[0] = (struct part_held){ .job_id = 1, .epoch = 2 };
	void *bytes = packed(&p, &n);
	ck_assert_uint_eq(n, sizeof(hello));
	ck_assert_mem_eq(bytes, hello, n);
	free(bytes);
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct peer_message p;
	ProtobufCMessage *m;
	if (bytes_decode(&gacc__internal__v1__peer_message__descriptor, bytes, n, &m))
		return 0;
	*why = '\0';
	enum status st = peer_message_read((const Gacc__Internal__V1__PeerMessage *)m, &p, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	if (!st && p.kind == PEER_HELLO)
		ck_assert(node_name_ok(p.hello.facts.node, strlen(p.hello.facts.node)) && p.hello.n_held <= n);
	if (!st && p.kind == PEER_CARRIED)
		ck_assert(p.carried.kind < LINK_KINDS && p.carried.job && p.carried.n && p.carried.n <= n);
	if (!st)
		peer_message_release(&p);
	bytes_free(m);
	return !st;
}

START_TEST(altered_ones_do_no_harm)
{
	const struct peer_message p = !_i ? full_hello() : _i == 1 ? full_welcome() : full_carried();
	size_t n;
	void *bytes = packed(&p, &n);
	altered_try(bytes, n, 20000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer message");
	TCase *c = tcase_create("peer message");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_hello_comes_back, 0, 3);
	tcase_add_test(c, the_others_come_back);
	tcase_add_test(c, senseless_hellos_are_refused);
	tcase_add_test(c, the_others_are_refused);
	tcase_add_test(c, malformed_ones_are_refused);
	tcase_add_test(c, malformed_hellos_are_refused);
	tcase_add_test(c, text_that_is_no_utf8_is_mended);
	tcase_add_test(c, the_bytes_are_those_of_peer_proto);
	tcase_add_test(c, the_bytes_of_a_hello_are_those_of_peer_proto);
	tcase_add_loop_test(c, altered_ones_do_no_harm, 0, 3);
	return suite_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of messages for test_no_memory.c: those of communicators, launches, logs and norms, and what is a link's own.
 */
#include "unit/cluster/no_memory.h"

#include "cluster/board_message.h"
#include "cluster/launch_message.h"
#include "cluster/log_message.h"
#include "cluster/norms_message.h"
#include "cluster/peer_frames.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "proto/bytes.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 20 };

static void *pack_blob(size_t *n)
{
	return blob_pack(&(struct part_blob){ .epoch = 1, .term = 1, .comm = 1, .life = 1, .bytes = "x", .n = 1 }, n);
}

static enum status read_blob(const void *bytes, size_t n, char *why)
{
	struct held_blob b;
	enum status st = blob_unpack(bytes, n, 1, &b, why, 200);
	if (!st)
		blob_release(&b);
	return st;
}

static void *pack_board(size_t *n)
{
	const struct coll_address a = { 1, "x", 1 };
	return board_pack(&(struct part_board){ .epoch = 1, .term = 1, .comm = 1, .n_parts = 1, .address = &a }, n);
}

static enum status read_board(const void *bytes, size_t n, char *why)
{
	struct held_board b;
	enum status st = board_unpack(bytes, n, 1, &b, why, 200);
	if (!st)
		board_release(&b);
	return st;
}

static void *pack_launch_wanted(size_t *n)
{
	const struct launch_wanted w = {
		.epoch = 1,
		.term = 1,
		.number = 1,
		.wish = { .want = LAUNCH_WANT_RUN, .n_ranks = 1, .n_groups = 1, .master_addr = "::1" }
	};
	return launch_wanted_pack(&w, n);
}

static enum status read_launch_wanted(const void *bytes, size_t n, char *why)
{
	return launch_wanted_unpack(bytes, n, RANKS, &(struct launch_wanted){ .part = 0 }, why, 200);
}

static void *pack_launched(size_t *n)
{
	const struct launch_rank rank = { LAUNCH_RANK_RUNNING, 7, 0, 0, 0 };
	const struct launched l = {
		.epoch = 1, .incarnation = 1, .number = 1, .n_ranks = 1, .rank = &rank, .tail = "x", .n_tail = 1
	};
	return launched_pack(&l, n);
}

static enum status read_launched(const void *bytes, size_t n, char *why)
{
	struct launched l;
	enum status st = launched_unpack(bytes, n, RANKS, UINT32_MAX, &l, why, 200);
	if (!st)
		free((void *)l.rank);
	return st;
}

static void *pack_log_ask(size_t *n)
{
	return log_ask_pack(&(struct log_ask){ .job_id = 1, .number = 1 }, n);
}

static enum status read_log_ask(const void *bytes, size_t n, char *why)
{
	struct log_ask a;
	return log_ask_unpack(bytes, n, &a, why, 200);
}

static void *pack_log_piece(size_t *n)
{
	const struct log_piece p = {
		.job_id = 1, .number = 1, .file = 1, .offset = 1, .data = (const uint8_t *)"x", .n = 1
	};
	return log_piece_pack(&p, n);
}

static enum status read_log_piece(const void *bytes, size_t n, char *why)
{
	struct log_piece p;
	enum status st = log_piece_unpack(bytes, n, &p, why, 200);
	if (!st)
		log_piece_release(&p);
	return st;
}

static void *pack_norms_ask(size_t *n)
{
	return norms_ask_pack(&(struct norms_ask){ .epoch = 1, .number = 1, .term = 1, .attempt = 1 }, n);
}

static enum status read_norms_ask(const void *bytes, size_t n, char *why)
{
	struct norms_ask a;
	return norms_ask_unpack(bytes, n, &a, why, 200);
}

static void *pack_norms(size_t *n)
{
	double value = 1;
	const struct part_norms p = { .epoch = 1, .number = 1, .total = 1, .n = 1, .grad = &value, .param = &value };
	return norms_pack(&p, n);
}

static enum status read_norms(const void *bytes, size_t n, char *why)
{
	struct part_norms p;
	enum status st = norms_unpack(bytes, n, &p, why, 200);
	if (!st)
		norms_release(&p);
	return st;
}

static void *pack_peer(const struct peer_message *p, size_t *n)
{
	Gacc__Internal__V1__PeerMessage *m = peer_message_make(p);
	void *bytes = m ? bytes_pack(&m->base, n) : NULL;
	free(m);
	return bytes;
}

static void *pack_hello(size_t *n)
{
	const struct part_held held = { .job_id = 1, .epoch = 1 };
	struct peer_message p = { .kind = PEER_HELLO, .hello = { .held = &held, .n_held = 1 } };
	p.hello.facts = (struct member_facts){ .node = "b", .incarnation = 1, .protocol_min = 1, .protocol_max = 1 };
	strcpy(p.hello.facts.data_address, "::1");
	return pack_peer(&p, n);
}

static void *pack_welcome(size_t *n)
{
	return pack_peer(&(struct peer_message){ PEER_WELCOME, .welcome = { 1, 1, "a", 1000 } }, n);
}

static void *pack_beat(size_t *n)
{
	return pack_peer(&(struct peer_message){ PEER_BEAT, .beat = { 1, 1 } }, n);
}

static void *pack_carried(size_t *n)
{
	const struct peer_carried c = { LINK_DROP, 1, 0, "x", 1, 1 };
	return pack_peer(&(struct peer_message){ PEER_CARRIED, .carried = c }, n);
}

static enum status read_peer(const void *bytes, size_t n, char *why)
{
	struct ProtobufCMessage *m;
	struct peer_assembly a = { 0 };
	struct link_message whole;
	struct peer_message p;
	bool is_whole;
	enum status st = bytes_decode(&gacc__internal__v1__peer_message__descriptor, bytes, n, &m);
	if (st)
		return st;
	st = peer_message_read((const Gacc__Internal__V1__PeerMessage *)m, &p, why, 200);
	if (!st && p.kind == PEER_CARRIED)
		st = peer_assembly_take(&a, &p.carried, &whole, &is_whole, why, 200);
	if (!st)
		peer_message_release(&p);
	peer_assembly_clear(&a);
	bytes_free(m);
	return st;
}

const struct no_memory_kind no_memory_links[] = {
	{ "PartBlob", pack_blob, read_blob },
	{ "PartBoard", pack_board, read_board },
	{ "LaunchOrder", pack_launch_wanted, read_launch_wanted },
	{ "Launched", pack_launched, read_launched },
	{ "LogAsk", pack_log_ask, read_log_ask },
	{ "LogPiece", pack_log_piece, read_log_piece },
	{ "NormsAsk", pack_norms_ask, read_norms_ask },
	{ "PartNorms", pack_norms, read_norms },
	{ "Hello", pack_hello, read_peer },
	{ "Welcome", pack_welcome, read_peer },
	{ "Beat", pack_beat, read_peer },
	{ "Carried", pack_carried, read_peer },
};
const size_t no_memory_n_links = sizeof(no_memory_links) / sizeof(*no_memory_links);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the journal keeps of a job, and what gaccds tell each other: the first byte chooses the kind, the rest is the
 * record or the message. What is accepted keeps the rules, and packs again to something that is accepted; what is
 * refused is explained. */
#include "base/node_name.h"
#include "cluster/board_message.h"
#include "cluster/order_message.h"
#include "cluster/event_message.h"
#include "cluster/launch_message.h"
#include "cluster/ledger_message.h"
#include "cluster/log_message.h"
#include "cluster/norms_message.h"
#include "cluster/part_view_message.h"
#include "cluster/peer_frames.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "cluster/report_message.h"
#include "cluster/save_message.h"
#include "cluster/tensors_message.h"
#include "cluster/view_record.h"
#include "coll/board.h"
#include "gacc/internal/v1/peer.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "math/arena.h"
#include "proto/bytes.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, MAX_MICRO = 30, WINDOW = 7, PARTS = 18, BOARD_PARTS = 1, LAUNCH_RANKS = 32, RESTARTS = 1000 };
static const struct message_bounds bounds = { RANKS, MAX_MICRO, PARTS };
static const uint32_t list[] = { 1, 3, 4 };
static const struct part_ranks part = { 3, list };
static char why[200];

static void must(bool ok)
{
	if (!ok)
		abort();
}

static bool accepted(enum status st)
{
	must(!st || st == ST_NO_MEMORY || (st == ST_VERSION_SKEW && *why));
	return !st;
}

static void try_commit(const void *bytes, size_t n)
{
	struct decided k, again;
	if (!accepted(commit_record_read(bytes, n, &bounds, WINDOW, &k, why, sizeof(why))))
		return;
	void *packed = commit_record_pack(&k.commit, k.counted, k.n_words, &n);
	must(!commit_record_read(packed, n, &bounds, WINDOW, &again, why, sizeof(why)));
	must(again.commit.digest == k.commit.digest &&
	     again.commit.next.counters.partial == k.commit.next.counters.partial);
	free(packed);
	free(k.counted);
	free(again.counted);
}

static void try_update(const void *bytes, size_t n)
{
	struct update u, again;
	if (!accepted(update_record_read(bytes, n, WINDOW, &u, why, sizeof(why))))
		return;
	void *packed = update_record_pack(&u, &n);
	must(!update_record_read(packed, n, WINDOW, &again, why, sizeof(why)));
	free(packed);
}

static void try_restored(const void *bytes, size_t n)
{
	struct restored b, again;
	if (!accepted(restored_record_read(bytes, n, &b, why, sizeof(why))))
		return;
	void *packed = restored_record_pack(&b, &n);
	must(!restored_record_read(packed, n, &again, why, sizeof(why)));
	free(packed);
}

static void try_view(const void *bytes, size_t n)
{
	struct view_head h;
	struct Gacc__V1__Job *job = NULL;
	if (!accepted(view_record_read(bytes, n, &h, &job, why, sizeof(why))))
		return;
	must(job && h.ranks && h.ranks <= SPEC_MAX_RANKS);
	gacc__v1__job__free_unpacked(job, NULL);
}

static void try_report(const void *bytes, size_t n)
{
	struct report r, again;
	if (!accepted(report_unpack(bytes, n, &part, &bounds, &r, why, sizeof(why))))
		return;
	void *packed = report_pack(&r, &n);
	must(!report_unpack(packed, n, &part, &bounds, &again, why, sizeof(why)) && again.n_ranks == r.n_ranks);
	free(packed);
	report_release(&r);
	report_release(&again);
}

static void try_order(const void *bytes, size_t n)
{
	struct held_order o, again;
	if (!accepted(order_unpack(bytes, n, &bounds, &o, why, sizeof(why))))
		return;
	void *packed = order_pack(&o.order, &n);
	must(!order_unpack(packed, n, &bounds, &again, why, sizeof(why)) && again.order.want == o.order.want);
	free(packed);
}

static void try_placement(const void *bytes, size_t n)
{
	struct held_placement p, again;
	if (!accepted(placement_unpack(bytes, n, NULL, &p, why, sizeof(why))))
		return;
	void *packed = placement_pack(&p.placement, &n);
	must(!placement_unpack(packed, n, p.tensors, &again, why, sizeof(why)) &&
	     again.placement.n_ranks == p.placement.n_ranks);
	free(packed);
	placement_release(&p);
	placement_release(&again);
}

static void try_placed(const void *bytes, size_t n)
{
	struct placed p, again;
	if (!accepted(placed_unpack(bytes, n, &p, why, sizeof(why))))
		return;
	void *packed = placed_pack(&p, &n);
	must(!placed_unpack(packed, n, &again, why, sizeof(why)) && again.status == p.status);
	free(packed);
}

static void try_drop(const void *bytes, size_t n)
{
	struct drop d, again;
	if (!accepted(drop_unpack(bytes, n, &d, why, sizeof(why))))
		return;
	void *packed = drop_pack(&d, &n);
	must(!drop_unpack(packed, n, &again, why, sizeof(why)) && again.epoch == d.epoch);
	free(packed);
}

static void try_event(const void *bytes, size_t n)
{
	struct part_event e, again;
	if (!accepted(event_unpack(bytes, n, RANKS, &e, why, sizeof(why))))
		return;
	void *packed = event_pack(&e, &n);
	must(!event_unpack(packed, n, RANKS, &again, why, sizeof(why)) && again.rank == e.rank);
	free(packed);
}

static void try_set(const void *bytes, size_t n)
{
	struct part_tensor_set t, again;
	struct shared *set, *other;
	if (!accepted(tensor_set_unpack(bytes, n, NULL, &t, &set, why, sizeof(why))))
		return;
	void *packed = tensor_set_pack(&t, set, &n);
	must(!tensor_set_unpack(packed, n, set, &again, &other, why, sizeof(why)) && other == set);
	free(packed);
	shared_drop(other);
	shared_drop(set);
}

static void try_kept(const void *bytes, size_t n)
{
	struct tensors_kept k, again;
	if (!accepted(tensors_kept_unpack(bytes, n, &k, why, sizeof(why))))
		return;
	void *packed = tensors_kept_pack(&k, &n);
	must(!tensors_kept_unpack(packed, n, &again, why, sizeof(why)) && again.status == k.status);
	free(packed);
}

static void try_save(const void *bytes, size_t n)
{
	struct save s, again;
	if (!accepted(save_unpack(bytes, n, &s, why, sizeof(why))))
		return;
	void *packed = save_pack(&s, &n);
	must(!save_unpack(packed, n, &again, why, sizeof(why)) && again.window == s.window);
	free(packed);
}

static void try_saved(const void *bytes, size_t n)
{
	struct part_saved s, again;
	if (!accepted(saved_unpack(bytes, n, RANKS, &s, why, sizeof(why))))
		return;
	void *packed = saved_pack(&s, &n);
	must(!saved_unpack(packed, n, RANKS, &again, why, sizeof(why)) && again.status == s.status);
	free(packed);
}

static void try_part_view(const void *bytes, size_t n)
{
	struct part_view v, again;
	if (!accepted(part_view_unpack(bytes, n, &v, why, sizeof(why))))
		return;
	void *packed = part_view_pack(&v, &n);
	must(n <= PART_VIEW_BYTES && !part_view_unpack(packed, n, &again, why, sizeof(why)) &&
	     part_view_same(&v, &again));
	free(packed);
}

static void try_ledger(const void *bytes, size_t n)
{
	struct part_ledger l, again;
	if (!accepted(ledger_unpack(bytes, n, &bounds, &l, why, sizeof(why))))
		return;
	must(l.counted <= l.total && l.total <= RANKS * MAX_MICRO && l.first + l.n <= l.total);
	for (uint32_t i = 0; i < l.n; i++)
		must(l.rank[i] < RANKS && l.micro[i] < MAX_MICRO);
	void *packed = ledger_pack(&l, &n);
	must(!ledger_unpack(packed, n, &bounds, &again, why, sizeof(why)) && again.n == l.n);
	free(packed);
	ledger_release(&l);
	ledger_release(&again);
}

static void try_blob(const void *bytes, size_t n)
{
	struct held_blob b, again;
	if (!accepted(blob_unpack(bytes, n, PARTS, &b, why, sizeof(why))))
		return;
	must(b.blob.life && b.blob.part < PARTS && b.blob.n && b.blob.n <= n);
	void *packed = blob_pack(&b.blob, &n);
	must(!blob_unpack(packed, n, PARTS, &again, why, sizeof(why)) && again.blob.n == b.blob.n);
	free(packed);
	blob_release(&b);
	blob_release(&again);
}

static void try_board(const void *bytes, size_t n)
{
	struct held_board b, again;
	if (!accepted(board_unpack(bytes, n, BOARD_PARTS, &b, why, sizeof(why))))
		return;
	for (uint32_t i = 0; i < BOARD_PARTS; i++)
		must(b.address[i].life && b.address[i].n_blob && b.address[i].n_blob <= n);
	void *packed = board_pack(&b.board, &n);
	must(!board_unpack(packed, n, BOARD_PARTS, &again, why, sizeof(why)) &&
	     again.address[0].n_blob == b.address[0].n_blob);
	free(packed);
	board_release(&b);
	board_release(&again);
}

/* What one communicator's board must know, by the table in coll/board.h. */
struct known {
	bool open;
	uint32_t parts, n_put;
	struct {
		const uint8_t *bytes; /* NULL: no address */
		uint64_t life;
		size_t n;
	} put[COLL_MAX_PARTS];
};

static enum status expect_put(const struct known *k, uint32_t i, uint64_t life, const uint8_t *bytes, size_t n)
{
	if (!k->open)
		return ST_STALE_ATTEMPT;
	if (i >= k->parts || !life || !n)
		return ST_INVALID_ARGUMENT;
	if (!k->put[i].bytes)
		return ST_OK;
	if (k->put[i].life != life)
		return ST_ALREADY_EXISTS;
	return k->put[i].n == n && !memcmp(k->put[i].bytes, bytes, n) ? ST_OK : ST_MALFORMED;
}

static void put_address(struct board *b, const struct coll_id *id, struct known *k, uint32_t i, uint64_t life,
			const uint8_t *bytes, size_t n)
{
	const enum status st = expect_put(k, i, life, bytes, n);
	must(board_put(b, id, i, life, bytes, n) == st);
	if (st || k->put[i].bytes)
		return;
	k->put[i].bytes = bytes;
	k->put[i].life = life;
	k->put[i].n = n;
	k->n_put++;
}

static void look_at_board(const struct board *b, const struct coll_id *id, const struct known *k)
{
	uint32_t missing[COLL_MAX_PARTS], n = 0;
	const bool complete = k->open && k->n_put == k->parts;
	const struct coll_address *all = board_addresses(b, id, &n);
	must(board_state(b, id) == (!k->open ? BOARD_NONE : complete ? BOARD_COMPLETE : BOARD_COLLECTING));
	must(!all == !complete && (!complete || n == k->parts));
	for (uint32_t i = 0; i < n && complete; i++)
		must(all[i].life == k->put[i].life && all[i].n_blob == k->put[i].n &&
		     !memcmp(all[i].blob, k->put[i].bytes, all[i].n_blob));
	if (k->open)
		must(board_missing(b, id, missing) == k->parts - k->n_put);
}

/* Four communicators of one job: each four bytes say what is done with which, of which part and life, and with how many
 * bytes, which follow. */
static void try_boards(const void *bytes, size_t n)
{
	enum { COMMUNICATORS = 4 };
	struct known known[COMMUNICATORS] = { 0 };
	struct board *b = board_new();
	const uint8_t *at = bytes, *end = at + n;
	must(b);
	while (end - at >= 4) {
		const uint32_t which = at[0] >> 2 & 3, what = at[0] & 3, part_of = at[1];
		const struct coll_id id = { 7, 1, 3, which + 1 };
		struct known *k = &known[which];
		const uint64_t life = at[2];
		size_t length = at[3];
		at += 4;
		length = length < (size_t)(end - at) ? length : (size_t)(end - at);
		if (what == 0) {
			const bool ok = part_of && part_of <= COLL_MAX_PARTS && (!k->open || k->parts == part_of);
			must(board_open(b, &id, part_of) == (ok ? ST_OK : ST_INVALID_ARGUMENT));
			k->parts = ok ? part_of : k->parts;
			k->open = k->open || ok;
		} else if (what == 1) {
			put_address(b, &id, k, part_of, life, at, length);
		} else if (what == 2) {
			board_purge(b, &id);
			memset(known, 0, which * sizeof(*known)); /* older ones only */
		}
		for (uint32_t i = 0; i < COMMUNICATORS; i++)
			look_at_board(b, &(struct coll_id){ 7, 1, 3, i + 1 }, &known[i]);
		at += length;
	}
	board_free(b);
}

static void try_launch_wanted(const void *bytes, size_t n)
{
	struct launch_wanted w, again;
	if (!accepted(launch_wanted_unpack(bytes, n, LAUNCH_RANKS, &w, why, sizeof(why))))
		return;
	must(w.wish.n_ranks && w.wish.n_ranks <= LAUNCH_RANKS && w.wish.first <= LAUNCH_RANKS - w.wish.n_ranks);
	must(w.wish.group < w.wish.n_groups && w.wish.want >= LAUNCH_WANT_NOTHING && w.wish.want <= LAUNCH_WANT_END);
	void *packed = launch_wanted_pack(&w, &n);
	must(!launch_wanted_unpack(packed, n, LAUNCH_RANKS, &again, why, sizeof(why)) &&
	     !strcmp(again.wish.master_addr, w.wish.master_addr));
	free(packed);
}

static void try_launched(const void *bytes, size_t n)
{
	struct launched l, again;
	if (!accepted(launched_unpack(bytes, n, RANKS, RESTARTS, &l, why, sizeof(why))))
		return;
	must(l.n_ranks && l.n_ranks <= RANKS && l.first <= RANKS - l.n_ranks && l.n_tail <= LAUNCHED_MAX_TAIL);
	must(l.summary.allowed <= RESTARTS && l.summary.charged <= RESTARTS);
	for (uint32_t i = 0; i < l.n_ranks; i++)
		must((unsigned)l.rank[i].state <= LAUNCH_RANK_EXITED && l.rank[i].exit_status >= LAUNCH_NO_STATUS);
	const struct launch_cause *c = &l.summary.cause;
	must(!c->known || (c->rank >= l.first && c->rank - l.first < l.n_ranks));
	void *packed = launched_pack(&l, &n);
	must(!launched_unpack(packed, n, RANKS, RESTARTS, &again, why, sizeof(why)) && again.n_tail == l.n_tail &&
	     !memcmp(again.rank, l.rank, l.n_ranks * sizeof(*l.rank)));
	free(packed);
	free((void *)l.rank);
	free((void *)again.rank);
}

static void try_log_ask(const void *bytes, size_t n)
{
	struct log_ask a, again;
	if (!accepted(log_ask_unpack(bytes, n, &a, why, sizeof(why))))
		return;
	must(a.job_id && a.number);
	void *packed = log_ask_pack(&a, &n);
	must(!log_ask_unpack(packed, n, &again, why, sizeof(why)) && again.offset == a.offset);
	free(packed);
}

static void try_log_piece(const void *bytes, size_t n)
{
	struct log_piece p, again;
	if (!accepted(log_piece_unpack(bytes, n, &p, why, sizeof(why))))
		return;
	must(p.n <= LOG_PIECE_BYTES && p.n <= n && p.offset >= p.n && (p.file || !p.n));
	void *packed = log_piece_pack(&p, &n);
	must(!log_piece_unpack(packed, n, &again, why, sizeof(why)) && again.n == p.n);
	free(packed);
	log_piece_release(&p);
	log_piece_release(&again);
}

static void try_norms_ask(const void *bytes, size_t n)
{
	struct norms_ask a, again;
	if (!accepted(norms_ask_unpack(bytes, n, &a, why, sizeof(why))))
		return;
	must(a.epoch && a.number && a.term && a.attempt);
	void *packed = norms_ask_pack(&a, &n);
	must(!norms_ask_unpack(packed, n, &again, why, sizeof(why)) && again.first == a.first);
	free(packed);
}

static void try_norms(const void *bytes, size_t n)
{
	struct part_norms p, again;
	if (!accepted(norms_unpack(bytes, n, &p, why, sizeof(why))))
		return;
	must(p.epoch && p.number && p.n <= NORMS_PORTION && !p.n == !!p.status);
	must(p.first <= p.total && p.n <= p.total - p.first && p.total <= ARENA_MAX_TENSORS);
	for (uint32_t i = 0; i < p.n; i++)
		must(!(p.grad[i] < 0) && !(p.param[i] < 0));
	void *packed = norms_pack(&p, &n);
	must(!norms_unpack(packed, n, &again, why, sizeof(why)) && again.n == p.n && again.status == p.status &&
	     (!p.n || !memcmp(again.param, p.param, p.n * sizeof(*p.param))));
	free(packed);
	norms_release(&p);
	norms_release(&again);
}

static void try_frame(struct peer_assembly *a, const struct peer_carried *c)
{
	struct link_message whole;
	bool is_whole;
	uint64_t before = a->whole ? 0 : a->n;
	if (!accepted(peer_assembly_take(a, c, &whole, &is_whole, why, sizeof(why)))) {
		peer_assembly_clear(a); /* as with the link */
		return;
	}
	must(is_whole == !c->rest && a->room <= 2 * (before + c->n));
	if (is_whole)
		must(whole.kind == c->kind && whole.job == c->job && whole.part == c->part && !whole.end &&
		     whole.n == before + c->n && !memcmp((const uint8_t *)whole.bytes + before, c->bytes, c->n));
}

static void try_peer(const Gacc__Internal__V1__PeerMessage *m, struct peer_assembly *a)
{
	struct peer_message p, again;
	if (!accepted(peer_message_read(m, &p, why, sizeof(why))))
		return;
	Gacc__Internal__V1__PeerMessage *made = peer_message_make(&p);
	must(!peer_message_read(made, &again, why, sizeof(why)) && again.kind == p.kind);
	if (p.kind == PEER_HELLO)
		must(node_name_ok(p.hello.facts.node, strlen(p.hello.facts.node)) &&
		     again.hello.n_held == p.hello.n_held && p.hello.facts.kernels_revision &&
		     !memcmp(p.hello.facts.boot_id, again.hello.facts.boot_id, sizeof(p.hello.facts.boot_id)));
	if (p.kind == PEER_CARRIED)
		try_frame(a, &p.carried);
	peer_message_release(&again);
	peer_message_release(&p);
	free(made);
}

/* A link: messages, each with its length before it. */
static void try_peers(const void *bytes, size_t n)
{
	struct peer_assembly a = { 0 };
	struct ProtobufCMessage *m;
	const uint8_t *at = bytes, *end = at + n;
	while (end - at >= 2) {
		size_t length = (size_t)at[0] << 8 | at[1];
		at += 2;
		length = length < (size_t)(end - at) ? length : (size_t)(end - at);
		if (!bytes_decode(&gacc__internal__v1__peer_message__descriptor, at, length, &m)) {
			try_peer((const Gacc__Internal__V1__PeerMessage *)m, &a);
			bytes_free(m);
		}
		at += length;
	}
	peer_assembly_clear(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static void (*const kinds[])(const void *, size_t) = {
		try_commit,    try_update,    try_restored, try_view,  try_report,	  try_order,	try_placement,
		try_placed,    try_drop,      try_event,    try_set,   try_kept,	  try_save,	try_saved,
		try_part_view, try_ledger,    try_blob,	    try_board, try_launch_wanted, try_launched, try_log_ask,
		try_log_piece, try_norms_ask, try_norms,    try_peers, try_boards
	};
	*why = '\0';
	if (n && data[0] < sizeof(kinds) / sizeof(*kinds))
		kinds[data[0]](data + 1, n - 1);
	return 0;
}

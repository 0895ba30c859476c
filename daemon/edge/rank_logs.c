/* SPDX-License-Identifier: Apache-2.0 */
/* Reads pieces of the logs of launched ranks: in the pool where they are on this node, over the link where they are on
 * another one. For ReadLog, links and the tick. Loop thread. */
#include "edge/rank_logs.h"

#include "control/members.h"
#include "edge/launching.h"
#include "edge/links.h"
#include "edge/part_launch.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/common.pb-c.h"
#include "rpc/pool.h"
#include "runtime/rank_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- on this node ---- */

struct reading {
	struct rpc_work work;
	struct daemon *d;
	struct log_ask ask;
	uint64_t call; /* 0: the coordinator has asked */
	uint32_t owner;
	char *dir;
	struct log_piece piece;
	uint8_t room[LOG_PIECE_BYTES];
};

static void answer(struct daemon *d, uint64_t id, const struct log_piece *p)
{
	struct rpc_call *call = rpc_find(d->rpc, id);
	Gacc__V1__ReadLogResponse r = GACC__V1__READ_LOG_RESPONSE__INIT;
	if (!call)
		return;
	if (p->status) {
		rpc_failf(call, p->status, "%s", p->text);
		return;
	}
	r.data = (ProtobufCBinaryData){ p->n, (uint8_t *)p->data }; /* not written to */
	r.file = p->file;
	r.offset = p->offset;
	r.missing = p->missing;
	r.more = p->more;
	rpc_finish(call, &r.base);
}

static void run_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	rank_log_read(r->dir, r->owner, &r->ask, r->room, &r->piece);
}

static void on_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	size_t n = 0;
	r->piece.job_id = r->ask.job_id;
	r->piece.number = r->ask.number;
	if (r->call) {
		answer(r->d, r->call, &r->piece);
	} else if (!r->d->node.stopping) {
		void *bytes = log_piece_pack(&r->piece, &n);
		links_send(r->d, LINK_LOG_PIECE, r->ask.job_id, 0, bytes, n);
	}
	r->d->n_log_reads -= !r->call;
	free(r->dir);
	free(r);
}

/* Takes dir, which may be NULL. false: no memory. */
static bool begin(struct daemon *d, const struct log_ask *a, char *dir, uint32_t owner, uint64_t call, int64_t turn)
{
	struct reading *r = dir ? malloc(sizeof(*r)) : NULL;
	if (!r) {
		free(dir);
		return false;
	}
	*r = (struct reading){ .d = d, .ask = *a, .call = call, .owner = owner, .dir = dir };
	d->n_log_reads += !call;
	rpc_pool_put_kind(d->node.pool, RPC_POOL_DISK, &r->work, turn, run_read, on_read);
	return true;
}

/* The directory that gaccd makes belongs to the job's owner. It is there longer than the job's parts, which alone know
 * a directory that the user has chosen. */
void rank_logs_take_ask(struct daemon *d, const struct link_message *m)
{
	struct log_ask a;
	char why[200];
	enum status st = log_ask_unpack(m->bytes, m->n, &a, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || !m->away || a.job_id != m->job || d->n_log_reads >= 2 * RANK_LOGS_ON_THE_WAY)
		return;
	const struct part_launch *l = d->part_launch;
	while (l && (l->starter.job.id != a.job_id || memcmp(l->uuid, a.uuid, sizeof(a.uuid)) != 0))
		l = l->next;
	const bool chosen = l && *l->spec->log_dir;
	char *dir = chosen ? starter_log_dir(d, a.job_id, l->starter.job.spec->name, l->uuid, l->spec->log_dir)
			   : starter_log_dir(d, a.job_id, "", a.uuid, "");
	const uint32_t owner = chosen ? l->starter.job.uid : RANK_LOG_OF_DIR;
	begin(d, &a, dir, owner, 0, (int64_t)a.job_id); /* without memory: whoever reads asks again */
}

/* ---- on another node ---- */

struct rank_log_call {
	struct rank_log_call *next;
	uint64_t call;
	uint32_t node;
	bool sent;
	int64_t since_ns;
	struct log_ask ask;
};

static uint32_t on_the_way(const struct daemon *d, uint32_t node)
{
	uint32_t n = 0;
	for (const struct rank_log_call *c = d->log_call; c; c = c->next)
		n += c->node == node && c->sent;
	return n;
}

/* In the order in which they have come. */
static void send_next(struct daemon *d, uint32_t node)
{
	uint32_t n = on_the_way(d, node);
	for (struct rank_log_call *c = d->log_call; c && n < RANK_LOGS_ON_THE_WAY; c = c->next) {
		size_t size = 0;
		if (c->node != node || c->sent)
			continue;
		c->sent = true;
		n++;
		void *bytes = log_ask_pack(&c->ask, &size);
		links_send_down(d, node, LINK_LOG_ASK, c->ask.job_id, 0, bytes, size, NULL);
	}
}

static void end_call(struct daemon *d, struct rank_log_call *c)
{
	struct rank_log_call **at = &d->log_call;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free(c);
	d->n_log_calls--;
}

static void ask_node(struct daemon *d, struct rpc_call *call, uint32_t node, const struct log_ask *a)
{
	struct rank_log_call *c = d->n_log_calls < RANK_LOGS_MOST ? malloc(sizeof(*c)) : NULL;
	struct rank_log_call **last = &d->log_call;
	if (!c) {
		rpc_failf(call, ST_RESOURCE_EXHAUSTED, "%u readers of logs wait for other nodes already",
			  d->n_log_calls);
		return;
	}
	*c = (struct rank_log_call){ .call = rpc_id(call), .node = node, .since_ns = daemon_now(d).mono_ns, .ask = *a };
	while (*last)
		last = &(*last)->next;
	*last = c;
	d->n_log_calls++;
	send_next(d, node);
}

void rank_logs_take_piece(struct daemon *d, const struct link_message *m)
{
	struct log_piece p;
	char why[200];
	enum status st = log_piece_unpack(m->bytes, m->n, &p, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return;
	struct rank_log_call *c = d->log_call;
	while (c && (c->ask.number != p.number || c->node != m->node || c->ask.job_id != p.job_id || !c->sent))
		c = c->next;
	if (c) {
		answer(d, c->call, &p);
		end_call(d, c);
	}
	log_piece_release(&p);
	send_next(d, m->node);
}

static bool is_linked(const struct daemon *d, uint32_t node)
{
	return node < d->n_node_links && d->node_link[node];
}

static void give_up(struct daemon *d, struct rank_log_call *c)
{
	struct log_piece none = { .status = ST_UNAVAILABLE };
	snprintf(none.text, sizeof(none.text), "node %s %s", members_at(d->members, c->node - 1)->facts.node,
		 is_linked(d, c->node) ? "has not answered for 5 s" : "is not linked to the coordinator now");
	answer(d, c->call, &none);
	end_call(d, c);
}

void rank_logs_tick(struct daemon *d, struct now now)
{
	for (struct rank_log_call *c = d->log_call, *next; c; c = next) {
		const uint32_t node = c->node;
		next = c->next;
		if (is_linked(d, node) && now.mono_ns - c->since_ns < RANK_LOGS_NS)
			continue;
		give_up(d, c);
		send_next(d, node);
	}
}

void rank_logs_free(struct daemon *d)
{
	while (d->log_call)
		end_call(d, d->log_call);
}

/* ---- whoever reads ---- */

/* As in struct link_message; 0: this node; UINT32_MAX: none has this name. */
static uint32_t number_of(const struct daemon *d, const char *name)
{
	if (!*name || !strcmp(name, d->node.conf->node.name))
		return 0;
	for (uint32_t i = 0; i < members_n(d->members); i++)
		if (!strcmp(members_at(d->members, i)->facts.node, name))
			return i + 1;
	return UINT32_MAX;
}

void rank_logs_read(struct rpc_call *call, const struct hosted *h, const char *name, struct log_ask ask)
{
	struct daemon *d = h->d;
	const uint32_t node = number_of(d, name);
	const char *chosen = h->text->pb ? h->text->pb->log_dir : "";
	ask.job_id = h->id;
	ask.number = ++d->log_number;
	memcpy(ask.uuid, h->uuid, sizeof(ask.uuid));
	if (node == UINT32_MAX)
		rpc_failf(call, ST_INVALID_ARGUMENT, "the cluster has no node \"%.64s\"", name);
	else if (node && !is_linked(d, node))
		rpc_failf(call, ST_UNAVAILABLE, "node %.64s is not linked to the coordinator now", name);
	else if (node)
		ask_node(d, call, node, &ask);
	else if (!begin(d, &ask, starter_log_dir(d, h->id, h->spec->name, h->uuid, chosen),
			*chosen ? h->uid : RANK_LOG_OF_DIR, rpc_id(call), h->uid))
		rpc_failf(call, ST_NO_MEMORY, "no memory for the call");
}

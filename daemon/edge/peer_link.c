/* SPDX-License-Identifier: Apache-2.0 */
/* Queues the messages for another gaccd of the cluster and sends them in frames as its stream has room. For
 * node_dial.c, node_serve.c and links.c. Loop thread. */
#include "edge/peer_link.h"

#include "base/log.h"
#include "gacc/internal/v1/peer.pb-c.h"

#include <stdlib.h>

#define FRAME_ROOM 256 /* bytes of a frame beside those of the message */

struct peer_queued {
	struct peer_queued *next;
	struct link_message message;
};

static uint64_t size_of(const struct link_message *m)
{
	return m->n + (m->end ? m->end->n : 0);
}

void peer_link_init(struct peer_link *l, const struct peer_link_stream *s, int64_t heard_ns)
{
	*l = (struct peer_link){ .stream = *s, .heard_ns = heard_ns };
	l->tail = &l->first;
}

static void drop_first(struct peer_link *l)
{
	struct peer_queued *q = l->first;
	l->first = q->next;
	if (!l->first)
		l->tail = &l->first;
	l->queued -= size_of(&q->message);
	l->is_sending = false;
	free((void *)q->message.bytes);
	shared_drop(q->message.end);
	free(q);
}

void peer_link_fini(struct peer_link *l)
{
	while (l->first)
		drop_first(l);
	peer_assembly_clear(&l->arrived);
}

bool peer_link_post(struct peer_link *l, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		    struct shared *end)
{
	struct link_message m = { .kind = kind, .job = job, .part = part, .bytes = bytes, .n = n, .end = end };
	const bool fits = !l->first || l->queued + size_of(&m) <= PEER_LINK_QUEUE;
	struct peer_queued *q = bytes && fits ? malloc(sizeof(*q)) : NULL;
	if (!q) {
		l->lost++;
		free(bytes);
		return false;
	}
	if (end)
		shared_hold(end);
	*q = (struct peer_queued){ NULL, m };
	*l->tail = q;
	l->tail = &q->next;
	l->queued += size_of(&m);
	peer_link_pump(l);
	return true;
}

/* The first message is the one that is being sent. false: there is none. */
static bool begin(struct peer_link *l)
{
	char why[200];
	while (!l->is_sending && l->first) {
		if (!peer_frames_begin(&l->sending, &l->first->message, why, sizeof(why))) {
			l->is_sending = true;
			break;
		}
		log_job(l->first->message.job, LOG_ERROR, "LinkMessage", "not sent: %s", why);
		l->lost++;
		drop_first(l);
	}
	return l->is_sending;
}

/* Sends one frame, a shorter one where there is little room. false: there is none, or no memory; the stream's next
 * turn goes on. */
static bool send_frame(struct peer_link *l, struct peer_carried *c)
{
	const size_t room = l->stream.room(l->stream.ctx);
	if (room <= FRAME_ROOM)
		return false;
	if (c->n > room - FRAME_ROOM) {
		c->rest += c->n - (room - FRAME_ROOM);
		c->n = room - FRAME_ROOM;
	}
	const struct peer_message m = { .kind = PEER_CARRIED, .carried = *c };
	return peer_link_say(l, &m) == ST_OK;
}

void peer_link_pump(struct peer_link *l)
{
	struct peer_carried c;
	while (begin(l)) {
		if (!peer_frames_next(&l->sending, &c)) {
			drop_first(l);
			continue;
		}
		if (!send_frame(l, &c))
			return;
		peer_frames_sent(&l->sending, &c);
	}
}

enum status peer_link_say(struct peer_link *l, const struct peer_message *m)
{
	Gacc__Internal__V1__PeerMessage *pb = peer_message_make(m);
	enum status st = pb ? l->stream.send(l->stream.ctx, pb) : ST_NO_MEMORY;
	free(pb);
	return st;
}

void peer_link_beat(struct peer_link *l, const struct member_beat *b, int64_t now_ns)
{
	const struct peer_message m = { .kind = PEER_BEAT, .beat = *b };
	if (now_ns - l->said_ns < PEER_LINK_BEAT_NS)
		return;
	if (!peer_link_say(l, &m))
		l->said_ns = now_ns;
	peer_link_pump(l); /* what found no memory */
}

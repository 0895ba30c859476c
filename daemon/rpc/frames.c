/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP/2 frame counter behind guard.c: which streams are open, how much gRPC keeps for each, and which frames are
 * useless. No I/O and no locks of its own; runs on gRPC's threads. */
#include "rpc/frames.h"

#include <stdlib.h>
#include <string.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };

#define END_STREAM 1
#define ACK 1
#define END_HEADERS 4
#define ENHANCE_YOUR_CALM 11
#define PREFACE_BYTES 24
#define SMALL_DATA 256 /* below, the place in gRPC's list of what has come counts: PIECE_BYTES */
#define PIECE_BYTES 128
#define RESET_COST 10 /* a call is made and ended for it */
#define SETTING_BYTES 6
#define PING_COST 4 /* an answer each */
/* gRPC's limit for headers is one for each frame; headers within it need none */
#define CONTINUATION_COST 100
#define EARNED_BY_DATA 8   /* clients open windows, and ping to measure them, as answers come */
#define EARNING_BYTES 4096 /* one more for so many of them */
#define KEPT_PER_BYTE 2	   /* of headers: Huffman codes, and what each header costs */

struct frame {
	uint8_t kind, flags;
	uint32_t id, length;
};

void frames_init(struct frames *f, unsigned max_streams, int64_t now_ns)
{
	*f = (struct frames){ .max_streams = max_streams, .preface = PREFACE_BYTES, .began_ns = now_ns };
}

void frames_fini(struct frames *f)
{
	free(f->stream);
	*f = (struct frames){ 0 };
}

/* ---- streams ---- */

/* Place of the first stream whose id is not less. */
static unsigned place(const struct frames *f, uint32_t id)
{
	unsigned low = 0, high = f->n_streams;
	while (low < high) {
		unsigned middle = (low + high) / 2;
		if (f->stream[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct frames_stream *find(const struct frames *f, uint32_t id)
{
	unsigned at = place(f, id);
	return at < f->n_streams && f->stream[at].id == id ? &f->stream[at] : NULL;
}

static void close_stream(struct frames *f, uint32_t id)
{
	struct frames_stream *s = find(f, id);
	if (!s)
		return;
	f->bytes -= s->bytes;
	f->n_streams--;
	memmove(s, s + 1, (size_t)(f->stream + f->n_streams - s) * sizeof(*s));
}

/* gRPC takes ids in rising order and ignores others. */
static const char *open_stream(struct frames *f, uint32_t id)
{
	if (id % 2 == 0 || id <= f->last)
		return NULL;
	if (f->n_streams >= f->max_streams)
		return "more calls at a time than SETTINGS_MAX_CONCURRENT_STREAMS says";
	if (f->n_streams == f->room) {
		unsigned room = f->room ? 2 * f->room : 8;
		struct frames_stream *all = realloc(f->stream, room * sizeof(*all));
		if (!all)
			return "out of memory";
		f->stream = all;
		f->room = room;
	}
	f->last = id;
	f->begun++;
	f->stream[f->n_streams++] = (struct frames_stream){ id, FRAMES_CALL_BYTES };
	f->bytes += FRAMES_CALL_BYTES;
	return NULL;
}

/* gRPC keeps so many more bytes for this stream. */
static void keep(struct frames *f, uint32_t id, uint32_t bytes)
{
	struct frames_stream *s = find(f, id);
	if (!s)
		return;
	s->bytes += bytes;
	f->bytes += bytes;
}

/* ---- received ---- */

static const char *on_headers(struct frames *f, const struct frame *frame, int64_t now_ns)
{
	if (!f->in_block) {
		f->block = 0;
		f->block_ns = now_ns;
	}
	f->in_block = !(frame->flags & END_HEADERS);
	if (frame->length > FRAMES_BLOCK_MAX - f->block)
		return "headers of more than 32 KiB";
	f->block += frame->length;
	if (!f->acknowledged) {
		f->early += frame->length;
		if (f->begun > FRAMES_EARLY_CALLS || f->early > FRAMES_EARLY_BYTES)
			return "more than 100 calls, or 16 KiB of headers, before gaccd's SETTINGS are acknowledged";
	}
	keep(f, frame->id, KEPT_PER_BYTE * frame->length);
	return NULL;
}

static const char *on_received(struct frames *f, const struct frame *frame, int64_t now_ns)
{
	const char *why;
	f->frames++;
	switch (frame->kind) {
	case HEADERS:
		why = open_stream(f, frame->id);
		return why ? why : on_headers(f, frame, now_ns);
	case CONTINUATION:
		f->idle += CONTINUATION_COST;
		return on_headers(f, frame, now_ns);
	case DATA:
		f->idle += frame->length == 0 && !(frame->flags & END_STREAM);
		if (frame->length < SMALL_DATA)
			keep(f, frame->id, PIECE_BYTES);
		return NULL;
	case RST_STREAM:
		close_stream(f, frame->id);
		f->idle += RESET_COST;
		return NULL;
	case SETTINGS:
		if (frame->flags & ACK)
			f->acknowledged = true;
		f->idle += 1 + frame->length / SETTING_BYTES;
		return NULL;
	case PING:
		f->idle += PING_COST;
		return NULL;
	default:
		f->idle++;
		return NULL;
	}
}

static const char *too_late(const struct frames *f, int64_t now_ns)
{
	if (!f->acknowledged && now_ns - f->began_ns > FRAMES_WHOLE_S * NS_PER_S)
		return "SETTINGS that are not acknowledged after 30 s";
	if (f->in_block && now_ns - f->block_ns > FRAMES_WHOLE_S * NS_PER_S)
		return "headers that are not complete after 30 s";
	return NULL;
}

/* ---- sent ---- */

/* A server that ends its side before the client has ended the other resets the stream as well. */
static void on_sent(struct frames *f, const struct frame *frame)
{
	if (frame->kind == DATA)
		f->idle -= EARNED_BY_DATA + frame->length / EARNING_BYTES;
	if (frame->kind == RST_STREAM || ((frame->kind == DATA || frame->kind == HEADERS) && frame->flags & END_STREAM))
		close_stream(f, frame->id);
}

/* ---- both ---- */

static uint32_t number(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Bytes that were used of n > 0; *whole when with them a frame has begun. */
static size_t take(struct frames_side *side, const uint8_t *data, size_t n, struct frame *frame, bool *whole)
{
	*whole = false;
	if (side->left > 0) {
		size_t k = n < side->left ? n : side->left;
		if (side->left <= sizeof(side->code)) /* whole if it is all of the payload */
			memcpy(side->code + sizeof(side->code) - side->left, data, k);
		side->left -= (uint32_t)k;
		return k;
	}
	size_t k = sizeof(side->head) - side->have < n ? sizeof(side->head) - side->have : n;
	memcpy(side->head + side->have, data, k);
	side->have += (uint32_t)k;
	if (side->have < sizeof(side->head))
		return k;
	const uint8_t *head = side->head;
	*frame = (struct frame){ head[3], head[4], number(head + 5) & INT32_MAX, number(head) >> 8 };
	side->left = frame->length;
	side->have = 0;
	*whole = true;
	return k;
}

const char *frames_received(struct frames *f, const void *data, size_t n, int64_t now_ns)
{
	const uint8_t *at = data, *end = at + n;
	size_t skip = n < f->preface ? n : f->preface;
	f->preface -= (uint32_t)skip;
	at += skip;
	const char *why = NULL;
	while (at < end && !why) {
		struct frame frame;
		bool whole;
		at += take(&f->in, at, (size_t)(end - at), &frame, &whole);
		if (whole)
			why = on_received(f, &frame, now_ns);
	}
	return why ? why : too_late(f, now_ns);
}

void frames_sent(struct frames *f, const void *data, size_t n)
{
	const uint8_t *at = data, *end = at + n;
	while (at < end) {
		struct frame frame;
		bool whole, reset = f->out.left > 0 && f->out.head[3] == RST_STREAM;
		at += take(&f->out, at, (size_t)(end - at), &frame, &whole);
		if (whole)
			on_sent(f, &frame);
		else if (reset && f->out.left == 0 && number(f->out.code) == ENHANCE_YOUR_CALM)
			f->throttled++;
	}
}

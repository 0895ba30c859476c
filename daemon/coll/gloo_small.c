/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of few bytes over Gloo: one message to each part and one from it. For coll_gloo.c and gloo_join.c; on the
 * communication thread, expect also on the threads that join.
 *
 * Gloo asks the receiver before it sends, which is a round trip, unless the receive is posted already. So the receive
 * of the next message is always posted: by the join, and then by each operation ahead of its own messages. Behind them
 * it could reach a part that has all it needs and has left, whose closed socket would answer with a reset, and a reset
 * throws away what that part has sent and nobody has read yet. Turns are counted, not numbered by the operation: other
 * operations may lie between. */
#include "coll/gloo_impl.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct gloo_small) == 64, "what follows is aligned as a cache line");

/* ---- messages ---- */

static size_t message_bytes(const struct gloo_member *m)
{
	return (sizeof(struct gloo_small) + m->base.small + 63) / 64 * 64;
}

static struct gloo_small *message_of(const struct gloo_member *m, uint32_t s, uint64_t turn)
{
	return (struct gloo_small *)(m->small_in + (turn % GLOO_SMALL_TURNS * m->base.n_parts + s) * message_bytes(m));
}

bool gloo_small_make(struct gloo_member *m)
{
	if (!m->base.small || m->base.n_parts == 1)
		return true;
	/* zeros: a message may be longer than what is in it */
	const size_t n = message_bytes(m);
	m->small_in = aligned_alloc(64, GLOO_SMALL_TURNS * m->base.n_parts * n);
	m->small_out = aligned_alloc(64, n);
	if (!m->small_in || !m->small_out)
		return false;
	memset(m->small_out, 0, n);
	m->small_words = shim_buffer_new(m->context, m->small_out, n);
	bool made = m->small_words != NULL;
	for (uint32_t s = 0; s < m->base.n_parts && made; s++)
		for (uint64_t turn = 0; turn < GLOO_SMALL_TURNS && s != m->base.part; turn++) {
			m->peer[s].small[turn] = shim_buffer_new(m->context, message_of(m, s, turn), n);
			made = made && m->peer[s].small[turn];
		}
	return made;
}

void gloo_small_free(struct gloo_member *m)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		for (uint64_t turn = 0; turn < GLOO_SMALL_TURNS; turn++)
			shim_buffer_free(m->peer[s].small[turn]);
	shim_buffer_free(m->small_words);
	free(m->small_in);
	free(m->small_out);
}

enum shim_result gloo_small_expect(struct gloo_member *m, uint32_t s, uint64_t turn)
{
	return m->small_in
		       ? shim_recv(m->peer[s].small[turn % GLOO_SMALL_TURNS], s, GLOO_SLOT_SMALL, 0, message_bytes(m))
		       : SHIM_DONE;
}

/* Of a message from part s: the same to all others, who get the same bytes. */
static uint64_t digest_of(const struct gloo_member *m, const struct gloo_small *x, uint32_t s)
{
	const uint64_t both[] = { gloo_digest(m, &x->shape, sizeof(x->shape)), gloo_digest(m, x + 1, x->shape.piece) };
	return gloo_digest_of(m, gloo_digest(m, both, sizeof(both)), s, COLL_MAX_PARTS, 0);
}

/* ---- the operation ---- */

static void write_message(struct gloo_member *m, const struct coll_sum_small *x)
{
	struct gloo_small *out = (struct gloo_small *)m->small_out;
	out->shape = (struct gloo_shape){ GLOO_SUM_SMALL, x->n, x->element, m->begun };
	memcpy(out + 1, x->in, x->n);
	out->digest = digest_of(m, out, m->base.part);
}

static enum status send_all(struct gloo_member *m)
{
	for (uint32_t i = 0; i + 1 < m->base.n_parts; i++)
		if (shim_send(m->small_words, gloo_other(m, i), GLOO_SLOT_SMALL, 0, message_bytes(m)))
			return gloo_cut(m, gloo_other(m, i));
	return ST_OK;
}

static enum status expect_next(struct gloo_member *m)
{
	for (uint32_t i = 0; i + 1 < m->base.n_parts; i++)
		if (gloo_small_expect(m, gloo_other(m, i), m->n_small))
			return gloo_cut(m, gloo_other(m, i));
	return ST_OK;
}

static enum status take(struct gloo_member *m, uint32_t s, uint64_t turn, const void **out)
{
	const struct gloo_small *own = (const struct gloo_small *)m->small_out, *x = message_of(m, s, turn);
	enum status st = gloo_wait(m, s, m->peer[s].small[turn % GLOO_SMALL_TURNS], shim_wait_recv);
	if (st != ST_OK)
		return st;
	if (memcmp(&x->shape, &own->shape, sizeof(x->shape)))
		return gloo_break(m, GLOO_FAILED, ST_INVALID_ARGUMENT, gloo_bit(s),
				  "the call differs from another part's in its bytes or element");
	if (x->digest != digest_of(m, x, s))
		return gloo_break(m, GLOO_FAILED, ST_CHECKSUM, gloo_bit(s),
				  "bytes from another part were changed on the way");
	gloo_count_piece(m);
	*out = x + 1;
	return ST_OK;
}

/* They have been, as a rule: the others had posted their receives. */
static enum status wait_until_sent(struct gloo_member *m)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++)
		st = gloo_wait(m, gloo_other(m, i), m->small_words, shim_wait_send);
	return st;
}

static enum status sum(struct gloo_member *m, const struct coll_sum_small *x, const void *const *source)
{
	const struct coll_piece all = { .from = 0, .n = x->n };
	enum status st = gloo_status(m);
	if (st != ST_OK)
		return st;
	st = x->sum(x->arg, &all, source, m->base.n_parts);
	return st == ST_OK ? ST_OK : gloo_callback_failed(m, st);
}

enum status gloo_sum_small(struct coll *base, const struct coll_sum_small *x)
{
	struct gloo_member *m = (struct gloo_member *)base;
	const void *source[COLL_MAX_PARTS];
	enum status st = gloo_count_begin(m);
	const uint64_t turn = m->n_small++;
	source[base->part] = x->in;
	if (st == ST_OK && base->n_parts > 1) {
		write_message(m, x);
		st = expect_next(m);
	}
	if (st == ST_OK && base->n_parts > 1)
		st = send_all(m);
	for (uint32_t i = 0; i + 1 < base->n_parts && st == ST_OK; i++)
		st = take(m, gloo_other(m, i), turn, &source[gloo_other(m, i)]);
	if (st == ST_OK)
		st = wait_until_sent(m);
	if (st == ST_OK)
		st = sum(m, x, source);
	return gloo_finish(m, st);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a coordinator asks for a portion of norms, and which answers it takes: the table of norms_fetch.h. For
 * edge/hosted_norms.c. Pure; one thread. */
#include "control/norms_fetch.h"

static enum norms_move ask(struct norms_fetch *f, int64_t now_ns)
{
	f->asked_ns = now_ns;
	return NORMS_ASK;
}

static enum norms_move end(struct norms_fetch *f, enum norms_move how)
{
	f->asking = false;
	return how;
}

void norms_fetch_begin(struct norms_fetch *f, int64_t now_ns)
{
	*f = (struct norms_fetch){ .asking = true, .number = f->number + 1, .begun_ns = now_ns, .heard_ns = now_ns };
	ask(f, now_ns);
}

enum norms_move norms_fetch_take(struct norms_fetch *f, uint64_t number, uint64_t first, uint64_t n, uint64_t total,
				 int64_t now_ns)
{
	if (!f->asking || number != f->number)
		return NORMS_NOTHING;
	if (!n)
		return end(f, NORMS_FAILED);
	if (first != f->have || (f->total && total != f->total))
		return NORMS_NOTHING;
	f->have += n;
	f->total = total;
	f->heard_ns = now_ns;
	return f->have == total ? end(f, NORMS_DONE) : ask(f, now_ns);
}

enum norms_move norms_fetch_tick(struct norms_fetch *f, int64_t now_ns)
{
	if (!f->asking)
		return NORMS_NOTHING;
	if (now_ns - f->heard_ns >= NORMS_SILENT_NS || now_ns - f->begun_ns >= NORMS_LONGEST_NS)
		return end(f, NORMS_FAILED);
	return now_ns - f->asked_ns >= NORMS_AGAIN_NS ? ask(f, now_ns) : NORMS_NOTHING;
}

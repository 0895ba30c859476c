/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the tensor sets that the nodes of parts send to the journal, without copying them, and answers. For links; the
 * journal's thread writes. Loop thread. */
#include "edge/hosted_tensors.h"

#include "cluster/tensors_message.h"
#include "edge/hosted.h"

#include <string.h>

static void answer(struct hosted *h, uint32_t part, enum status st)
{
	const struct tensors_kept k = { .job_id = h->id, .epoch = coord_epoch(h->coord), .part = part, .status = st };
	size_t n = 0;
	void *bytes = tensors_kept_pack(&k, &n);
	h->part[part].asks = false;
	links_send_down(h->d, h->part[part].node, LINK_KEPT, h->id, part, bytes, n, NULL);
}

static void answer_all(struct hosted *h, enum status st)
{
	for (uint32_t i = 0; i < h->n_parts; i++)
		if (h->part[i].asks)
			answer(h, i, st);
}

static void on_durable(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	h->tensors_noted = false;
	h->tensors_durable |= st == ST_OK;
	if (!h->tensors_durable) {
		shared_drop(h->tensors);
		h->tensors = NULL;
	}
	hosted_drop(h);
	answer_all(h, st);
}

static void keep(struct hosted *h, struct shared *set)
{
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { h->id, { set->data, set->n } } };
	enum status st = persist_put_shared(h->d->persist, &r, set, on_durable, h);
	h->tensors_noted = st == ST_OK;
	if (st) {
		answer_all(h, st);
		return;
	}
	shared_drop(h->tensors);
	h->tensors = shared_hold(set); /* its checkpoints have it */
	hosted_hold(h);
}

/* Each part's ranks register the tensors, and all parts must have the same. */
static bool is_same(const struct shared *a, const struct shared *b)
{
	return a == b || (a->n == b->n && !memcmp(a->data, b->data, a->n));
}

static void take(struct hosted *h, uint32_t part, struct shared *set)
{
	if (h->tensors && !is_same(h->tensors, set)) {
		answer(h, part, ST_LAYOUT_MISMATCH);
		return;
	}
	h->part[part].asks = true;
	if (h->tensors_durable)
		answer(h, part, ST_OK); /* that of another part, or the answer to the first was lost */
	else if (!h->tensors_noted)
		keep(h, set);
}

void hosted_take_tensors(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_of_message(d, m);
	struct part_tensor_set t;
	struct shared *set;
	char why[200];
	if (!h)
		return;
	enum status st = tensor_set_unpack(m->bytes, m->n, m->end, &t, &set, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return; /* it is sent again */
	if (t.job_id == h->id && t.part == m->part && t.epoch == coord_epoch(h->coord))
		take(h, t.part, set);
	shared_drop(set);
}

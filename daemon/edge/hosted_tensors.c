/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the tensor sets that the nodes of parts send to the journal, without copying them, and answers. For links; the
 * journal's thread writes. Loop thread. */
#include "edge/hosted_tensors.h"

#include "cluster/tensors_message.h"
#include "edge/hosted.h"

static void answer(struct hosted *h, enum status st)
{
	const struct tensors_kept k = { .job_id = h->id, .epoch = coord_epoch(h->coord), .status = st };
	size_t n = 0;
	void *bytes = tensors_kept_pack(&k, &n);
	links_send(h->d, LINK_KEPT, h->id, k.part, bytes, n);
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
	if (h->coord)
		answer(h, st);
}

static void keep(struct hosted *h, struct shared *set)
{
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { h->id, { set->data, set->n } } };
	enum status st = persist_put_shared(h->d->persist, &r, set, on_durable, h);
	h->tensors_noted = st == ST_OK;
	if (st) {
		answer(h, st);
		return;
	}
	shared_drop(h->tensors);
	h->tensors = shared_hold(set); /* its checkpoints have it */
	hosted_hold(h);
}

void hosted_take_tensors(struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_find(d, m->job);
	struct part_tensor_set t;
	struct shared *set;
	char why[200];
	if (!h || !h->coord)
		return; /* it is over */
	enum status st = tensor_set_unpack(m->bytes, m->n, m->end, &t, &set, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st)
		return; /* it is sent again */
	if (t.job_id == h->id && t.epoch == coord_epoch(h->coord) && !h->tensors_noted) {
		if (h->tensors_durable)
			answer(h, ST_OK); /* the answer to the first was lost */
		else
			keep(h, set);
	}
	shared_drop(set);
}

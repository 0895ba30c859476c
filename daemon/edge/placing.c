/* SPDX-License-Identifier: Apache-2.0 */
/* Places the parts of jobs that are coordinated here: makes the message, sends it over the link, repeats it until it is
 * answered, and sends its end. For Submit, the queue, the recovery after a restart, and the tick. Loop thread. */
#include "edge/placing.h"

#include "base/log.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "edge/hosted_nodes.h"
#include "edge/links.h"
#include "edge/node_facts.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (INT64_C(1000) * 1000000) /* a placement that nobody has answered is repeated */
#define FAR_AGAIN_NS                                                                                                   \
	(INT64_C(30) * 1000000000) /* over a link to another machine, which loses nothing while it lives               \
				    */

_Static_assert(JOB_HISTORY <= PLACEMENT_MAX_WINDOWS, "all that a part keeps goes with its placement");

/* ---- what it will say ---- */

static void forget_windows(struct hosted_place *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(p->window[i].counted);
	p->n_windows -= n;
	memmove(p->window, p->window + n, p->n_windows * sizeof(*p->window));
}

/* Windows follow each other: where one cannot be read, those before it are not told. */
bool placing_note_window(struct hosted *h, const struct decided *k)
{
	struct hosted_place *p = &h->place;
	if (!p->window && !(p->window = calloc(PLACEMENT_MAX_WINDOWS, sizeof(*p->window))))
		return false;
	if (p->n_windows && p->window[p->n_windows - 1].commit.window + 1 != k->commit.window)
		forget_windows(p, p->n_windows);
	if (p->n_windows == PLACEMENT_MAX_WINDOWS)
		forget_windows(p, 1);
	p->window[p->n_windows++] = *k;
	return true;
}

bool placing_note_tensors(struct hosted *h, const void *packed, size_t n)
{
	void *copy = malloc(n + 1);
	if (!copy)
		return false;
	h->tensors = shared_new(memcpy(copy, packed, n), n);
	if (!h->tensors)
		free(copy);
	return h->tensors != NULL;
}

bool placing_note_restore(struct hosted *h, const struct part_restore *r)
{
	struct part_restore *copy = malloc(h->n_parts * sizeof(*copy) + r->n_path);
	if (!copy)
		return false;
	memcpy(copy, r, h->n_parts * sizeof(*copy));
	const char *path = memcpy(copy + h->n_parts, r->path, r->n_path);
	for (uint32_t i = 0; i < h->n_parts; i++)
		copy[i].path = path;
	free(h->place.restore);
	h->place.restore = copy;
	return true;
}

static void forget_all(struct hosted_place *p)
{
	if (p->window)
		forget_windows(p, p->n_windows);
	free(p->window);
	free(p->restore);
	p->window = NULL;
	p->restore = NULL;
}

/* ---- the message ---- */

static char *mended(const char *text)
{
	char *copy = strdup(text);
	if (copy)
		utf8_repair(copy);
	return copy;
}

/* The last windows with the bits of these ranks alone, in one block. NULL: no memory. */
static struct decided *windows_of(const struct hosted *h, const struct part_ranks *ranks)
{
	const struct hosted_place *w = &h->place;
	const uint32_t max_micro_size = h->spec->max_micro_size;
	const size_t n_words = control_words(ranks->n, max_micro_size);
	struct decided *out = malloc(w->n_windows * (sizeof(*out) + n_words * sizeof(*out->counted)) + 1);
	uint64_t *bits = out ? (uint64_t *)(out + w->n_windows) : NULL;
	for (uint32_t i = 0; out && i < w->n_windows; i++, bits += n_words) {
		out[i] = (struct decided){ w->window[i].commit, bits, (uint32_t)n_words };
		part_pick_bits(ranks, max_micro_size, w->window[i].counted, bits);
	}
	return out;
}

static void *pack(const struct hosted *h, struct placement *p, size_t *out_n)
{
	const struct specification *s = h->text;
	void *spec = s->field ? NULL : specification_pack(s, &p->spec.n);
	p->spec.data = spec;
	if (s->field)
		p->spec = (struct placement_bytes){ s->field + s->at, s->n_field - s->at };
	void *bytes = p->spec.data ? placement_pack(p, out_n) : NULL;
	free(spec);
	return bytes;
}

void *placing_pack(const struct hosted *h, uint32_t part, size_t *out_n)
{
	const struct hosted_place *w = &h->place;
	const struct part_ranks *ranks = coord_part_ranks(h->coord, part);
	char name[NODE_NAME_MAX + 1];
	hosted_node_name(h, part, name);
	char *user = mended(h->user), *node = mended(h->part[part].node ? name : h->d->node.conf->node.name);
	struct decided *window = h->n_parts > 1 ? windows_of(h, ranks) : w->window;
	struct placement p = { .job_id = h->id,
			       .epoch = coord_epoch(h->coord),
			       .term = h->d->term,
			       .uid = h->uid,
			       .part = part,
			       .n_parts = h->n_parts,
			       .ranks = h->spec->ranks,
			       .max_micro_size = h->spec->max_micro_size,
			       .begin = h->spec->restores ? PLACEMENT_RESTORE : PLACEMENT_NEW,
			       .user = user,
			       .node = node,
			       .rank = ranks->rank,
			       .n_ranks = ranks->n,
			       .window = window,
			       .n_windows = w->n_windows,
			       .tensors = h->tensors,
			       .begun = h->params_durable,
			       .restore = h->params_durable || !w->restore ? NULL : &w->restore[part] };
	memcpy(p.uuid, h->uuid, sizeof(p.uuid));
	void *bytes = user && node && (window || !w->n_windows) ? pack(h, &p, out_n) : NULL;
	if (window != w->window)
		free(window);
	free(user);
	free(node);
	return bytes;
}

static void send_one(struct hosted *h, uint32_t part, struct now now)
{
	struct hosted_part *p = &h->part[part];
	size_t n = 0;
	void *bytes = placing_pack(h, part, &n);
	p->wanted = true;
	bool sent = links_send_down(h->d, p->node, LINK_PLACEMENT, h->id, part, bytes, n, h->tensors);
	p->sent_ns = sent || !p->node ? now.mono_ns : 0;
	if (p->sent_ns && !p->unanswered_ns)
		p->unanswered_ns = now.mono_ns;
}

void placing_send(struct hosted *h, struct now now)
{
	for (uint32_t i = 0; i < h->n_parts; i++)
		send_one(h, i, now);
}

/* A node that is not linked is asked when it is; one with many parts is asked for some of them at a time. */
static bool is_due(const struct hosted *h, uint32_t part, struct now now)
{
	const struct hosted_part *p = &h->part[part];
	const int64_t again = p->node ? FAR_AGAIN_NS : AGAIN_NS;
	return p->wanted && !p->answered && (!p->sent_ns || now.mono_ns - p->sent_ns >= again) &&
	       links_have_room(h->d, p->node);
}

void placing_tick(struct hosted *h, struct now now)
{
	if (coord_phase(h->coord) >= COORD_ENDING)
		return;
	for (uint32_t i = 0; i < h->n_parts; i++)
		if (is_due(h, i, now))
			send_one(h, i, now);
}

void placing_linked(struct hosted *h, uint32_t part)
{
	h->part[part].answered = false;
	h->part[part].sent_ns = h->part[part].unanswered_ns = 0;
	if (is_due(h, part, daemon_now(h->d)))
		send_one(h, part, daemon_now(h->d));
}

#define LATE_NS (INT64_C(2) * 1000000000)

bool placing_is_late(const struct hosted *h, struct now now, char *why, size_t n_why)
{
	char name[NODE_NAME_MAX + 1], text[NODE_NAME_MAX + 80];
	uint32_t late = h->n_parts;
	int64_t since_ns = now.mono_ns - LATE_NS;
	for (uint32_t i = 0; i < h->n_parts; i++) {
		const struct hosted_part *p = &h->part[i];
		if (!p->wanted || p->answered || !p->unanswered_ns || p->unanswered_ns > since_ns)
			continue;
		since_ns = p->unanswered_ns - 1;
		late = i;
	}
	if (late == h->n_parts)
		return false;
	hosted_node_name(h, late, name);
	snprintf(text, sizeof(text), "node %s has not answered its placement for %lld s", name,
		 (long long)((now.mono_ns - h->part[late].unanswered_ns) / 1000000000));
	hosted_part_text(h, late, text, why, n_why);
	return true;
}

/* ---- answers ---- */

static bool all_answered(const struct hosted *h)
{
	uint32_t i = 0;
	while (i < h->n_parts && h->part[i].answered)
		i++;
	return i == h->n_parts;
}

void placing_answered(struct hosted *h, uint32_t part)
{
	if (h->part[part].answered)
		return;
	free(h->part[part].refusal);
	h->part[part].refusal = NULL;
	h->part[part].answered = true;
	h->part[part].unanswered_ns = 0;
	if (all_answered(h) && hosted_parts_here(h) == h->n_parts)
		forget_all(&h->place); /* a node elsewhere may come back without them */
}

/* Other parts have acknowledged pushes, and the part's memory may be there: the node is asked again. */
static void refused_far(struct hosted *h, uint32_t part, const char *why)
{
	struct hosted_part *p = &h->part[part];
	char name[NODE_NAME_MAX + 1];
	hosted_node_name(h, part, name);
	free(p->refusal);
	if (asprintf(&p->refusal, "node %s does not take it: %s", name, why) < 0)
		p->refusal = NULL;
}

void placing_refused(struct hosted *h, uint32_t part, enum status st, const char *why)
{
	if (h->part[part].node && h->params_durable) {
		refused_far(h, part, why);
		return;
	}
	char text[PLACED_TEXT + 16];
	h->part[part].answered = true;
	if (h->place.refused)
		return; /* it is repeated, or another one has been refused */
	hosted_part_text(h, part, why, text, sizeof(text));
	log_job(h->id, LOG_NOTICE, "PlacementRefused", "%s", text); /* what follows from it is said then */
	h->place.refused = st;
	h->place.refused_part = part;
	free(h->place.why);
	h->place.why = strdup(why);
}

void placing_drop(struct hosted *h)
{
	struct drop drop = { .job_id = h->id, .epoch = coord_epoch(h->coord) };
	node_uuid_halves(h->uuid, &drop.uuid_high, &drop.uuid_low);
	forget_all(&h->place);
	for (drop.part = 0; drop.part < h->n_parts; drop.part++) {
		size_t n = 0;
		if (!h->part[drop.part].wanted)
			continue;
		h->part[drop.part].wanted = false;
		void *bytes = drop_pack(&drop, &n);
		links_send_down(h->d, h->part[drop.part].node, LINK_DROP, h->id, drop.part, bytes, n, NULL);
	}
}

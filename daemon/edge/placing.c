/* SPDX-License-Identifier: Apache-2.0 */
/* Places the parts of jobs that are coordinated here: makes the message, sends it over the link, repeats it until it is
 * answered, and sends its end. For Submit, the queue, the recovery after a restart, and the tick. Loop thread. */
#include "edge/placing.h"

#include "base/log.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "edge/links.h"
#include "proto/utf8.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (INT64_C(1000) * 1000000) /* a placement that nobody has answered is repeated */

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
	struct part_restore *copy = malloc(sizeof(*copy) + r->n_path);
	if (!copy)
		return false;
	*copy = *r;
	copy->path = memcpy(copy + 1, r->path, r->n_path);
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

/* A job has one part, with all of its ranks. */
static uint32_t *all_ranks(uint32_t n)
{
	uint32_t *rank = malloc(n * sizeof(*rank));
	for (uint32_t i = 0; rank && i < n; i++)
		rank[i] = i;
	return rank;
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

void *placing_pack(const struct hosted *h, size_t *out_n)
{
	const struct hosted_place *w = &h->place;
	char *user = mended(h->user), *node = mended(h->d->node.conf->node.name);
	uint32_t *rank = all_ranks(h->spec->ranks);
	struct placement p = { .job_id = h->id,
			       .epoch = coord_epoch(h->coord),
			       .term = h->d->term,
			       .uid = h->uid,
			       .n_parts = 1,
			       .ranks = h->spec->ranks,
			       .max_micro_size = h->spec->max_micro_size,
			       .begin = h->spec->restores ? PLACEMENT_RESTORE : PLACEMENT_NEW,
			       .user = user,
			       .node = node,
			       .rank = rank,
			       .n_ranks = h->spec->ranks,
			       .window = w->window,
			       .n_windows = w->n_windows,
			       .tensors = h->tensors,
			       .begun = h->params_durable,
			       .restore = h->params_durable ? NULL : w->restore };
	memcpy(p.uuid, h->uuid, sizeof(p.uuid));
	void *bytes = user && node && rank ? pack(h, &p, out_n) : NULL;
	free(user);
	free(node);
	free(rank);
	return bytes;
}

void placing_send(struct hosted *h, struct now now)
{
	size_t n = 0;
	void *bytes = placing_pack(h, &n);
	h->place.wanted = true;
	h->place.sent_ns = now.mono_ns;
	links_send_shared(h->d, LINK_PLACEMENT, h->id, 0, bytes, n, h->tensors);
}

void placing_tick(struct hosted *h, struct now now)
{
	const struct hosted_place *p = &h->place;
	if (p->wanted && !p->answered && now.mono_ns - p->sent_ns >= AGAIN_NS && coord_phase(h->coord) < COORD_ENDING)
		placing_send(h, now);
}

/* ---- answers ---- */

void placing_answered(struct hosted *h)
{
	if (h->place.answered)
		return;
	h->place.answered = true;
	forget_all(&h->place);
}

void placing_refused(struct hosted *h, enum status st, const char *why)
{
	if (h->place.refused)
		return;						   /* it is repeated */
	log_job(h->id, LOG_NOTICE, "PlacementRefused", "%s", why); /* what follows from it is said then */
	h->place.answered = true;
	h->place.refused = st;
	free(h->place.why);
	h->place.why = strdup(why);
}

void placing_drop(struct hosted *h)
{
	const struct drop drop = { .job_id = h->id, .epoch = coord_epoch(h->coord) };
	size_t n = 0;
	forget_all(&h->place);
	if (!h->place.wanted)
		return;
	h->place.wanted = false;
	void *bytes = drop_pack(&drop, &n);
	links_send(h->d, LINK_DROP, h->id, 0, bytes, n);
}

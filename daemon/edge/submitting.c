/* SPDX-License-Identifier: Apache-2.0 */
/* The submitters of new jobs, until theirs is durable and has its memory. For Submit, the queue, and a part that has
 * been placed. Loop thread. */
#include "edge/submitting.h"

#include <stdlib.h>

/* A caller that waits for a new job: the one that submitted it is first, then those that meant the same job. */
struct submit_waiter {
	struct submit_waiter *next;
	submitted_fn *cb;
	void *arg;
	int64_t by_ns;
};

bool submitting_join(struct pending_submit *p, submitted_fn *cb, void *arg, int64_t by_ns)
{
	struct submit_waiter *w = malloc(sizeof(*w));
	if (!w)
		return false;
	*w = (struct submit_waiter){ NULL, cb, arg, by_ns };
	*p->waiter_tail = w;
	p->waiter_tail = &w->next;
	return true;
}

struct pending_submit *submitting_new(struct daemon *d, struct hosted *h, submitted_fn *cb, void *arg, int64_t by_ns)
{
	struct pending_submit *p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct pending_submit){ .next = d->submitting, .h = h, .waiter_tail = &p->waiter };
	if (!submitting_join(p, cb, arg, by_ns)) {
		free(p);
		return NULL;
	}
	d->submitting = p;
	return p;
}

/* Answers all callers that wait. */
void submitting_end(struct daemon *d, struct pending_submit *p, enum status st, const char *why, const char *field)
{
	struct pending_submit **at = &d->submitting;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	bool existed = p->existed;
	for (struct submit_waiter *w = p->waiter, *next; w; w = next) {
		next = w->next;
		w->cb(w->arg, st ? NULL : p->h, existed, st, why, field);
		existed = true;
		free(w);
	}
	free(p);
}

static struct pending_submit *pending_of(const struct hosted *h)
{
	struct pending_submit *p = h->d->submitting;
	while (p && p->h != h)
		p = p->next;
	return p;
}

bool submitting_take_late(struct hosted *h, int64_t now_ns, submitted_fn **cb, void **arg)
{
	struct pending_submit *p = pending_of(h);
	struct submit_waiter **at = p ? &p->waiter : NULL, *w;
	while (at && *at && (*at)->by_ns > now_ns)
		at = &(*at)->next;
	if (!at || !*at)
		return false;
	w = *at;
	*cb = w->cb;
	*arg = w->arg;
	p->existed |= w == p->waiter;
	*at = w->next;
	if (!w->next)
		p->waiter_tail = at;
	free(w);
	return true;
}

void submitting_done(struct hosted *h, enum status st, const char *why)
{
	struct pending_submit *p = pending_of(h);
	if (!p)
		return;
	bool not_its_checkpoint = !h->spec->restores || st == ST_RESOURCE_EXHAUSTED;
	submitting_end(h->d, p, st, why,
		       !st || st == ST_ENGINE_FAILED ? NULL
		       : not_its_checkpoint	     ? "tensors"
						     : "restore_from");
	if (st)
		coord_end(h->coord, st, why, daemon_now(h->d));
}

struct hosted *submitting_pending(const struct daemon *d, size_t n)
{
	for (const struct pending_submit *p = d->submitting; p; p = p->next)
		if (!hosted_find(d, p->h->id) && n-- == 0)
			return p->h;
	return NULL;
}

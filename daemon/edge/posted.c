/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are delivered when the handler that posted them has returned, in the order in which they were posted.
 * Loop thread. */
#include "edge/daemon.h"

#include <stdlib.h>

static void run_posted(uv_idle_t *h)
{
	struct daemon *d = h->data;
	struct posted *p = d->posted;
	d->posted = NULL;
	d->posted_tail = &d->posted;
	uv_idle_stop(h);
	while (p) {
		struct posted *next = p->next;
		p->run(p);
		p = next;
	}
}

void daemon_post(struct daemon *d, struct posted *p, void (*run)(struct posted *))
{
	p->next = NULL;
	p->run = run;
	*d->posted_tail = p;
	d->posted_tail = &p->next;
	uv_idle_start(&d->idle, run_posted);
}

void daemon_drop_posted(struct daemon *d)
{
	uv_idle_stop(&d->idle);
	while (d->posted) {
		struct posted *p = d->posted;
		d->posted = p->next;
		if (p != &d->link_post && p != &d->exchange_post)
			free(p);
	}
}

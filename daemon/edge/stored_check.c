/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the descriptors that no part has taken at a start: whether one of them is needed still, and drops those that
 * nobody needs. For daemon.c. Loop thread. */
#include "edge/stored_check.h"

#include "base/log.h"
#include "edge/hosted.h"
#include "edge/part_record.h"
#include "runtime/stored.h"

#include <unistd.h>

/* Whose memory this is. */
struct owner {
	const struct hosted *h;	 /* NULL: the job is not coordinated here */
	const struct part *part; /* NULL: there is none */
	bool is_aside;
};

static struct owner owner_of(const struct daemon *d, const struct fdstore_fd *s)
{
	uint32_t number = 0;
	const uint64_t id = stored_job(s, &number, NULL);
	struct owner o = { .h = hosted_find(d, id), .part = part_find(&d->node, id, number) };
	o.is_aside = o.h ? o.h->aside : part_record_find(d, id, number) != NULL;
	return o;
}

/* It runs, and has not taken its memory: something was short just now, which the next start may have. */
static bool is_wanted(const struct daemon *d, const struct fdstore_fd *s)
{
	const struct owner o = owner_of(d, s);
	const struct part *p = o.part;
	bool has_none = !p || (!p->mem.n && !p->tensors.due);
	if (s->fd < 0 || !has_none)
		return false;
	if (!o.h)
		return p && p->away && p->begun;
	return o.h->coord && coord_phase(o.h->coord) < COORD_ENDING && o.h->params_durable;
}

enum status stored_check_taken(const struct daemon *d)
{
	for (size_t i = 0; i < d->node.n_stored; i++)
		if (is_wanted(d, &d->node.stored[i])) {
			log_error("a job cannot take its memory (%s) back: gaccd starts again, as it would be lost",
				  d->node.stored[i].name);
			return ST_NO_MEMORY;
		}
	return ST_OK;
}

static void drop(struct daemon *d, struct fdstore_fd *s, const struct owner *o)
{
	bool known = o->h || o->part;
	log_line(known ? LOG_INFO : LOG_NOTICE, LOG_NO_FIELDS, "dropping stored memory %s: %s", s->name,
		 !known			      ? "its job is no longer in the journal"
		 : o->h && hosted_ended(o->h) ? "its job is over"
					      : "its job begins anew");
	fdstore_remove(d->node.fdstore, s->name);
	close(s->fd);
	s->fd = -1;
}

void stored_drop_strangers(struct daemon *d)
{
	for (size_t i = 0; i < d->node.n_stored; i++) {
		struct fdstore_fd *s = &d->node.stored[i];
		const struct owner o = owner_of(d, s);
		if (s->fd >= 0 && !o.is_aside && !(o.part && o.part->tensors.due))
			drop(d, s, &o);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose records cannot be read: shown, kept, and ended when somebody cancels them. */
#include "edge/live_aside.h"

#include "base/log.h"
#include "edge/live_saving.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status live_aside_new(struct daemon *d, const struct journal_job *j, struct prepared *p, struct live_job **out)
{
	Gacc__V1__JobSpec *pb = p->pb; /* its name at least can be shown, or nothing */
	if (!pb) {
		p->n = 0; /* its bytes are no message: they must not be sent as one */
		if ((pb = malloc(sizeof(*pb))))
			gacc__v1__job_spec__init(pb);
	}
	p->pb = pb;
	struct specification *text = pb ? specification_new(p) : NULL;
	if (text && strlen(pb->name) < sizeof(text->spec.name))
		strcpy(text->spec.name, pb->name);
	*out = live_make(d, j->id, j->uid, j->user, text, LIVE_EVENTS);
	return *out ? ST_OK : ST_NO_MEMORY;
}

/* It is its user's memory, and it stays in node.stored until the job is given up. */
static void count_memory(struct live_job *l)
{
	l->kept_bytes = stored_bytes(&l->d->node, l->id, &l->admission.stored);
	l->admission.descriptors = l->admission.stored;
	l->d->node.host_bytes += l->kept_bytes;
}

enum status live_set_aside(struct live_job *l, const char *record, const char *why)
{
	char *reason;
	if (asprintf(&reason,
		     "set aside: gaccd %s cannot read its record %s in the journal: %s. Its records and its memory are "
		     "kept: start a gaccd that knows that form and this journal's schema, or give it up: gaccctl "
		     "cancel %llu",
		     GACC_VERSION, record, why, (unsigned long long)l->id) < 0)
		return ST_NO_MEMORY;
	log_job(l->id, LOG_ERROR, "SetAside", "%s", reason);
	free(l->end.reason);
	l->end.reason = reason;
	l->end.state = JOB_FAILED;
	l->ended_unix_ns = daemon_now(l->d).unix_ns;
	live_drop_machines(l);
	saving_free(l);
	l->aside = l->end.settled = true; /* nothing is written of it */
	count_memory(l);
	return ST_OK;
}

static void drop_memory(struct live_job *l)
{
	stored_release(&l->d->node, l->id, l->uid);
	l->d->node.host_bytes -= l->kept_bytes;
	l->kept_bytes = l->admission.stored = l->admission.descriptors = 0;
}

static void on_given_up(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	live_drop(l);
	if (st && st != ST_JOB_ENDED) {
		l->giving_up = false; /* it can be tried again */
		return;
	}
	l->aside = false;
	drop_memory(l);
}

void live_aside_give_up(struct live_job *l, const char *reason)
{
	char *text;
	if (l->giving_up || asprintf(&text, "%s; it had been %s", reason, l->end.reason) < 0)
		return;
	l->ended_unix_ns = daemon_now(l->d).unix_ns;
	struct journal_record r = {
		.kind = JOURNAL_END,
		.end = { .job = l->id, .state = JOB_FAILED, .reason = text, .unix_ns = l->ended_unix_ns }
	};
	if (persist_put(l->d->persist, &r, on_given_up, l)) {
		free(text);
		return;
	}
	live_hold(l);
	l->giving_up = true;
	free(l->end.reason);
	l->end.reason = text;
}

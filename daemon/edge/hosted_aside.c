/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose records cannot be read: they are shown as failed and kept with their memory until somebody cancels them.
 * For the recovery after a restart (hosted_recover.c) and for Cancel. Loop thread. */
#include "edge/hosted_aside.h"

#include "base/log.h"
#include "cluster/placed_message.h"
#include "edge/checkpoints.h"
#include "edge/hosted_life.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status hosted_aside_new(struct daemon *d, const struct journal_job *j, struct prepared *p, struct hosted **out)
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
	*out = hosted_make(d, j->id, j->uid, j->user, text, HOSTED_EVENTS);
	return *out ? ST_OK : ST_NO_MEMORY;
}

/* The memory counts for the job's user, and stays in node.stored until the job is given up. */
static void count_memory(struct hosted *h)
{
	h->kept_bytes = stored_bytes(&h->d->node, h->id, &h->admission.stored);
	h->admission.descriptors = h->admission.stored;
	h->d->node.host_bytes += h->kept_bytes;
}

enum status hosted_set_aside(struct hosted *h, const char *record, const char *why)
{
	char *reason;
	if (asprintf(&reason,
		     "set aside: gaccd %s cannot read its record %s in the journal: %s. Its records and its memory are "
		     "kept: start a gaccd that knows that form and this journal's schema, or give it up: gaccctl "
		     "cancel %llu",
		     GACC_VERSION, record, why, (unsigned long long)h->id) < 0)
		return ST_NO_MEMORY;
	log_job(h->id, LOG_ERROR, "SetAside", "%s", reason);
	free(h->end.reason);
	h->end.reason = reason;
	h->end.state = JOB_FAILED;
	h->ended_unix_ns = daemon_now(h->d).unix_ns;
	hosted_drop_machines(h);
	saving_free(h);
	h->aside = h->end.settled = true; /* no record of it is written */
	count_memory(h);
	return ST_OK;
}

enum status hosted_aside_refused(struct hosted *h)
{
	static const struct {
		const char *field, *record;
	} parts[] = { { "Placement.tensors: ", "TENSORS" }, { "Placement.spec: ", "JOB" } };
	char why[PLACED_TEXT];
	snprintf(why, sizeof(why), "%s", h->place.why ? h->place.why : "");
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (!strncmp(why, parts[i].field, strlen(parts[i].field)))
			return hosted_set_aside(h, parts[i].record, why + strlen(parts[i].field));
	return hosted_set_aside(h, "JOB", why);
}

static void drop_memory(struct hosted *h)
{
	stored_release(&h->d->node, h->id, STORED_ALL, h->uid);
	h->d->node.host_bytes -= h->kept_bytes;
	h->kept_bytes = h->admission.stored = h->admission.descriptors = 0;
}

static void on_given_up(void *arg, enum status st)
{
	struct hosted *h = arg;
	daemon_check_store(st);
	hosted_drop(h);
	if (st && st != ST_JOB_ENDED) {
		h->giving_up = false; /* it can be tried again */
		return;
	}
	h->aside = false;
	drop_memory(h);
}

void hosted_aside_give_up(struct hosted *h, const char *reason)
{
	char *text;
	if (h->giving_up || asprintf(&text, "%s; it had been %s", reason, h->end.reason) < 0)
		return;
	h->ended_unix_ns = daemon_now(h->d).unix_ns;
	struct journal_record r = {
		.kind = JOURNAL_END,
		.end = { .job = h->id, .state = JOB_FAILED, .reason = text, .unix_ns = h->ended_unix_ns }
	};
	if (persist_put(h->d->persist, &r, on_given_up, h)) {
		free(text);
		return;
	}
	hosted_hold(h);
	h->giving_up = true;
	free(h->end.reason);
	h->end.reason = text;
}

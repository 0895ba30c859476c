/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: looks for an earlier job of the same request, checks the new one, makes it durable, allocates its memory
 * and answers all callers that meant it. For the methods Submit and Attach. Loop thread. */
#include "edge/hosted_submit.h"

#include "control/queue.h"
#include "edge/checkpoints.h"
#include "edge/disk_watch.h"
#include "edge/hosted_life.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_queue.h"
#include "edge/starter.h"
#include "edge/restoring.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hosted_submit_give_up(struct daemon *d)
{
	while (d->submitting) {
		struct hosted *h = d->submitting->h;
		bool durable = hosted_find(d, h->id) != NULL;
		submitting_end(d, d->submitting, ST_UNAVAILABLE, "gaccd is stopping", NULL);
		if (!durable)
			hosted_free(h);
	}
}

static void on_job_durable(void *arg, enum status st)
{
	struct pending_submit *p = arg;
	struct hosted *h = p->h;
	daemon_check_store(st);
	if (!st && hosted_add(h->d, h))
		st = ST_NO_MEMORY;
	if (st) {
		submitting_end(h->d, p, st, status_info(st)->text, NULL);
		hosted_free(h);
		return;
	}
	hosted_event(h, false, "Submitted", -1, "the job is registered");
	if (h->spec->optim.type != OPTIM_CLIENT && h->spec->optim.lr == 0)
		hosted_event(h, true, "NoLearningRate", -1, "optimizer.lr is 0: no step changes the parameters");
	if (h->admission.queued) {
		h->d->n_queued++;
		h->d->queue_told_ns = 0; /* its submitter is told its place */
		hosted_queue_run(h->d, daemon_now(h->d));
		submitting_done(h, ST_OK, NULL);
	} else {
		restoring_place(h, daemon_now(h->d)); /* the node's word answers: a job that does not fit is refused */
	}
}

/* A request id belongs to the user who sent it: the same 16 bytes of another user mean another job. */
static bool is_request(const struct hosted *h, const struct submit *s)
{
	return h->uid == s->uid && !memcmp(h->request_id, s->request_id, 16);
}

static struct hosted *find_request(const struct daemon *d, const struct submit *s)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (is_request(d->job[i], s))
			return d->job[i];
	return NULL;
}

static struct hosted *find_name(const struct daemon *d, const char *name, uint32_t uid)
{
	for (uint32_t i = d->n_jobs; i-- > 0;)
		if (!hosted_is_over(d->job[i]) && d->job[i]->uid == uid && !strcmp(d->job[i]->spec->name, name))
			return d->job[i];
	return NULL;
}

/* Also of a specification that is refused: a job of that name is looked for first. */
static const char *name_of(const struct submit *s)
{
	return s->prepared->pb ? s->prepared->pb->name : "";
}

/* Two ranks that create their job may call at the same moment, and so may a caller that tries again. */
static struct pending_submit *find_pending(const struct daemon *d, const struct submit *s)
{
	struct pending_submit *p = d->submitting;
	while (p && !is_request(p->h, s) &&
	       !(s->by_name && p->h->uid == s->uid && !strcmp(p->h->spec->name, name_of(s))))
		p = p->next;
	return p;
}

static bool answer_existing(struct daemon *d, const struct submit *s)
{
	struct pending_submit *p = find_pending(d, s);
	struct hosted *h = p ? p->h : find_request(d, s);
	if (!h && s->by_name)
		h = find_name(d, name_of(s), s->uid);
	if (!h)
		return false;
	if (memcmp(h->text->sum, s->prepared->sum, sizeof(h->text->sum)))
		s->cb(s->arg, NULL, true, ST_ALREADY_EXISTS,
		      "a job with this name or request id exists with another specification", "spec");
	else if (!p)
		s->cb(s->arg, h, true, ST_OK, NULL, NULL);
	else if (!submitting_join(p, s->cb, s->arg, s->by_ns))
		s->cb(s->arg, NULL, true, ST_NO_MEMORY, status_info(ST_NO_MEMORY)->text, NULL);
	return true;
}

/* Not part of the specification's check: a job of an older gaccd may have such a name, and must not be lost for that.
 */
static enum status check_name(const char *name, const char **field, char *why, size_t n_why)
{
	uint64_t id;
	if (!hosted_name_is_id(name, &id))
		return ST_OK;
	*field = "name";
	snprintf(why, n_why, "name \"%s\" would be taken for the id of a job: give it a letter", name);
	return ST_INVALID_SPEC;
}

/* Other nodes see for themselves whether they may launch for this user (parts_arriving.c). */
static enum status check_launch(const struct hosted *h, const struct submit *s, char *why, size_t n_why)
{
	if (s->local)
		return hosted_parts_here(h) ? starter_check(s->uid, s->user, why, n_why) : ST_OK;
	snprintf(why, n_why,
		 "launch: daemon needs a caller whose user id is known: on gaccd's unix socket, or on that of a node "
		 "which has a certificate");
	return ST_PERMISSION_DENIED;
}

/* Makes a new job that may be admitted; *field and why: the error for its submitter. */
static enum status make(struct daemon *d, const struct submit *s, struct hosted **out, const char **field, char *why,
			size_t n_why)
{
	struct prepared *p = s->prepared;
	if (d->away) {
		snprintf(why, n_why,
			 "jobs are made by the coordinator of the cluster, %.200s: submit the job first, then attach "
			 "to it",
			 d->node.conf->cluster.coordinator);
		return ST_NOT_SUPPORTED;
	}
	enum status st = p->status ? ST_OK : disk_watch_admit(d, "a new job", p->n, why, n_why);
	if (!st && !p->status)
		st = hosted_nodes_check(d, &p->spec, field, why, n_why);
	if (st)
		return st;
	st = hosted_new(d, d->last_job + 1, s->uid, s->user, p, out);
	if (st) {
		*field = p->field;
		snprintf(why, n_why, "%s", p->why);
		return st;
	}
	struct hosted *h = *out;
	part_random16(NULL, h->uuid); /* its directories may be named after it */
	st = check_name(h->spec->name, field, why, n_why);
	if (!st && h->spec->launch_mode == LAUNCH_DAEMON)
		st = check_launch(h, s, why, n_why);
	if (!st)
		st = saving_check_dirs(h, field, why, n_why);
	return st ? st : hosted_queue_admit(h, why, n_why);
}

static enum status put(struct hosted *h, const struct submit *s, struct pending_submit *p)
{
	struct journal_record r = { .kind = JOURNAL_JOB,
				    .job = { .id = h->id,
					     .uid = h->uid,
					     .user = h->user,
					     .created_unix_ns = h->created_unix_ns,
					     .spec = { s->prepared->bytes, s->prepared->n } } };
	memcpy(r.job.uuid, h->uuid, 16);
	memcpy(r.job.request_id, h->request_id, 16);
	return persist_put(h->d->persist, &r, on_job_durable, p);
}

void hosted_submit(struct daemon *d, const struct submit *s)
{
	char why[QUEUE_WHY] = "";
	const char *field = NULL;
	struct hosted *h = NULL;
	struct pending_submit *p = NULL;
	if (answer_existing(d, s))
		return;
	enum status st = make(d, s, &h, &field, why, sizeof(why));
	if (!st) {
		memcpy(h->request_id, s->request_id, 16);
		h->created_unix_ns = daemon_now(d).unix_ns;
		h->submitted_here = true;
		p = submitting_new(d, h, s->cb, s->arg, s->by_ns);
		st = p ? ST_OK : ST_NO_MEMORY;
	}
	if (st) {
		s->cb(s->arg, NULL, false, st, why[0] ? why : status_info(st)->text, field);
		hosted_free(h);
		return;
	}
	st = put(h, s, p);
	if (st) {
		submitting_end(d, p, st, status_info(st)->text, NULL);
		hosted_free(h);
	} else {
		d->last_job = h->id; /* a refused job takes no id */
	}
}

/* ---- for the rows of methods with a specification ---- */

void *prepare_spec(const Gacc__V1__JobSpec *spec)
{
	return spec ? prepared_new(spec) : NULL;
}

void discard_spec(void *prepared)
{
	prepared_free(prepared);
}

/* Jobs that nobody needs may hold the room, such as those that all ranks have left; ending them does not help a job
 * that can never fit. */
const char *submit_hint_full(const char *why)
{
	if (why && (strstr(why, DISK_WATCH_FULL) || strstr(why, DISK_WATCH_NO_ROOM)))
		return "delete what is not needed on that disk; jobs that run go on: gaccctl describe node";
	return why && strstr(why, QUEUE_NEVER)
		       ? "raise the limit, or make the job smaller: slots_per_rank: 1, fewer ranks, smaller tensors"
		       : "see gaccctl jobs, and end what is not needed: gaccctl cancel JOB; or wait, or raise the "
			 "limit";
}

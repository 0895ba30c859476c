/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: looks for an earlier one, checks the job, makes it durable, allocates its memory, answers. */
#include "edge/live_job.h"

#include "control/queue.h"
#include "edge/disk_watch.h"
#include "edge/live_saving.h"
#include "gacc/v1/common.pb-c.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who waits for a new job: the caller that made it, then those that meant the same one. */
struct submit_waiter {
	struct submit_waiter *next;
	void (*cb)(void *arg, struct live_job *, bool existed, enum status, const char *why, const char *field);
	void *arg;
};

/* A job that is not durable yet, or whose memory is not there yet. */
struct pending_submit {
	struct pending_submit *next;
	struct live_job *l;
	struct submit_waiter *waiter, **waiter_tail;
};

static bool pending_join(struct pending_submit *p, const struct submit *s)
{
	struct submit_waiter *w = malloc(sizeof(*w));
	if (!w)
		return false;
	*w = (struct submit_waiter){ NULL, s->cb, s->arg };
	*p->waiter_tail = w;
	p->waiter_tail = &w->next;
	return true;
}

static struct pending_submit *pending_new(struct daemon *d, struct live_job *l, const struct submit *s)
{
	struct pending_submit *p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct pending_submit){ .next = d->submitting, .l = l, .waiter_tail = &p->waiter };
	if (!pending_join(p, s)) {
		free(p);
		return NULL;
	}
	d->submitting = p;
	return p;
}

/* Answers all who wait. */
static void pending_end(struct daemon *d, struct pending_submit *p, enum status st, const char *why, const char *field)
{
	struct pending_submit **at = &d->submitting;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	bool existed = false;
	for (struct submit_waiter *w = p->waiter, *next; w; w = next) {
		next = w->next;
		w->cb(w->arg, st ? NULL : p->l, existed, st, why, field);
		existed = true;
		free(w);
	}
	free(p);
}

void live_submit_give_up(struct daemon *d)
{
	while (d->submitting) {
		struct live_job *l = d->submitting->l;
		bool durable = live_find(d, l->id) != NULL;
		pending_end(d, d->submitting, ST_UNAVAILABLE, "gaccd is stopping", NULL);
		if (!durable)
			live_free(l);
	}
}

void live_submit_done(struct live_job *l, enum status st, const char *why)
{
	struct pending_submit *p = l->d->submitting;
	while (p && p->l != l)
		p = p->next;
	if (!p)
		return;
	bool not_its_checkpoint = !l->spec->restores || st == ST_RESOURCE_EXHAUSTED;
	pending_end(l->d, p, st, why,
		    !st || st == ST_ENGINE_FAILED ? NULL
		    : not_its_checkpoint	  ? "tensors"
						  : "restore_from");
	if (st)
		coord_end(l->coord, st, why, daemon_now(l->d));
}

static void on_job_durable(void *arg, enum status st)
{
	struct pending_submit *p = arg;
	struct live_job *l = p->l;
	live_check_store(st);
	if (!st && live_add(l->d, l))
		st = ST_NO_MEMORY;
	if (st) {
		pending_end(l->d, p, st, status_info(st)->text, NULL);
		live_free(l);
		return;
	}
	live_event(l, false, "Submitted", -1, "the job is registered");
	if (l->spec->optim.type != OPTIM_CLIENT && l->spec->optim.lr == 0)
		live_event(l, true, "NoLearningRate", -1, "optimizer.lr is 0: no step changes the parameters");
	if (l->admission.queued) {
		l->d->n_queued++;
		l->d->queue_told_ns = 0; /* its submitter is to hear its place */
		live_queue_run(l->d, daemon_now(l->d));
		live_submit_done(l, ST_OK, NULL);
	} else if (job_has_tensors(l->part->job) || l->spec->restores)
		job_allocate(l->part->job); /* its end answers: a job that does not fit is refused */
	else
		live_submit_done(l, ST_OK, NULL);
}

/* A request id belongs to the user who sent it: the same 16 bytes of another user mean another job. */
static bool is_request(const struct live_job *l, const struct submit *s)
{
	return l->uid == s->uid && !memcmp(l->request_id, s->request_id, 16);
}

static struct live_job *find_request(const struct daemon *d, const struct submit *s)
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (is_request(d->job[i], s))
			return d->job[i];
	return NULL;
}

static struct live_job *find_name(const struct daemon *d, const char *name, uint32_t uid)
{
	for (uint32_t i = d->n_jobs; i-- > 0;)
		if (!live_ended(d->job[i]) && d->job[i]->uid == uid && !strcmp(d->job[i]->spec->name, name))
			return d->job[i];
	return NULL;
}

struct live_job *live_pending(const struct daemon *d, size_t n)
{
	for (const struct pending_submit *p = d->submitting; p; p = p->next)
		if (!live_find(d, p->l->id) && n-- == 0)
			return p->l;
	return NULL;
}

/* Also of a specification that is refused: the job of its name comes first. */
static const char *name_of(const struct submit *s)
{
	return s->prepared->pb ? s->prepared->pb->name : "";
}

/* Two ranks that create their job come at the same moment, and so may a caller's second try. */
static struct pending_submit *find_pending(const struct daemon *d, const struct submit *s)
{
	struct pending_submit *p = d->submitting;
	while (p && !is_request(p->l, s) &&
	       !(s->by_name && p->l->uid == s->uid && !strcmp(p->l->spec->name, name_of(s))))
		p = p->next;
	return p;
}

static bool answer_existing(struct daemon *d, const struct submit *s)
{
	struct pending_submit *p = find_pending(d, s);
	struct live_job *l = p ? p->l : find_request(d, s);
	if (!l && s->by_name)
		l = find_name(d, name_of(s), s->uid);
	if (!l)
		return false;
	if (memcmp(l->text->sum, s->prepared->sum, sizeof(l->text->sum)))
		s->cb(s->arg, NULL, true, ST_ALREADY_EXISTS,
		      "a job with this name or request id exists with another specification", "spec");
	else if (!p)
		s->cb(s->arg, l, true, ST_OK, NULL, NULL);
	else if (!pending_join(p, s))
		s->cb(s->arg, NULL, true, ST_NO_MEMORY, status_info(ST_NO_MEMORY)->text, NULL);
	return true;
}

/* Not part of the specification's check: a job of an older gaccd may have such a name, and must not be lost for that.
 */
static enum status check_name(const char *name, const char **field, char *why, size_t n_why)
{
	uint64_t id;
	if (!live_name_is_id(name, &id))
		return ST_OK;
	*field = "name";
	snprintf(why, n_why, "name \"%s\" would be taken for the id of a job: give it a letter", name);
	return ST_INVALID_SPEC;
}

/* A new job that may come in; *field and why as for its submitter. */
static enum status make(struct daemon *d, const struct submit *s, struct live_job **out, const char **field, char *why,
			size_t n_why)
{
	struct prepared *p = s->prepared;
	enum status st = p->status ? ST_OK : disk_watch_admit(d, "a new job", p->n, why, n_why);
	if (st)
		return st;
	st = live_new(d, d->last_job + 1, s->uid, s->user, p, out);
	if (st) {
		*field = p->field;
		snprintf(why, n_why, "%s", p->why);
		return st;
	}
	struct live_job *l = *out;
	part_random16(NULL, l->uuid); /* its directories may be named after it */
	st = check_name(l->spec->name, field, why, n_why);
	if (!st && l->spec->launch_mode == LAUNCH_DAEMON)
		st = live_launch_check(s->uid, s->user, s->local, why, n_why);
	if (!st)
		st = saving_check_dirs(l, field, why, n_why);
	return st ? st : live_queue_admit(l, why, n_why);
}

static enum status put(struct live_job *l, const struct submit *s, struct pending_submit *p)
{
	struct journal_record r = { .kind = JOURNAL_JOB,
				    .job = { .id = l->id,
					     .uid = l->uid,
					     .user = l->user,
					     .created_unix_ns = l->created_unix_ns,
					     .spec = { s->prepared->bytes, s->prepared->n } } };
	memcpy(r.job.uuid, l->uuid, 16);
	memcpy(r.job.request_id, l->request_id, 16);
	return persist_put(l->d->persist, &r, on_job_durable, p);
}

void live_submit(struct daemon *d, const struct submit *s)
{
	char why[QUEUE_WHY] = "";
	const char *field = NULL;
	struct live_job *l = NULL;
	struct pending_submit *p = NULL;
	if (answer_existing(d, s))
		return;
	enum status st = make(d, s, &l, &field, why, sizeof(why));
	if (!st) {
		memcpy(l->request_id, s->request_id, 16);
		l->created_unix_ns = daemon_now(d).unix_ns;
		l->submitted_here = true;
		p = pending_new(d, l, s);
		st = p ? ST_OK : ST_NO_MEMORY;
	}
	if (st) {
		s->cb(s->arg, NULL, false, st, why[0] ? why : status_info(st)->text, field);
		live_free(l);
		return;
	}
	st = put(l, s, p);
	if (st) {
		pending_end(d, p, st, status_info(st)->text, NULL);
		live_free(l);
	} else {
		d->last_job = l->id; /* a refused job takes no id */
	}
}

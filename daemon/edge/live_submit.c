/* A new job: looked for, checked, made durable, given its memory; then its submitters are answered. */
#include "edge/live_job.h"

#include "control/queue.h"
#include "edge/convert.h"
#include "edge/live_saving.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"

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
	struct submit_waiter *w = malloc(sizeof *w);
	if (!w)
		return false;
	*w = (struct submit_waiter){ NULL, s->cb, s->arg };
	*p->waiter_tail = w;
	p->waiter_tail = &w->next;
	return true;
}

static struct pending_submit *pending_new(struct daemon *d, struct live_job *l, const struct submit *s)
{
	struct pending_submit *p = malloc(sizeof *p);
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
	pending_end(l->d, p, st, why, st && st != ST_ENGINE_FAILED ? "tensors" : NULL);
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
	if (l->queued) {
		l->d->n_queued++;
		l->d->queue_told_ns = 0; /* its submitter is to hear its place */
		live_queue_run(l->d, daemon_now(l->d));
		live_submit_done(l, ST_OK, NULL);
	} else if (job_has_tensors(l->job) || l->spec.restores)
		job_allocate(l->job); /* its end answers: a job that does not fit is refused */
	else
		live_submit_done(l, ST_OK, NULL);
}

static struct live_job *find_request(const struct daemon *d, const uint8_t id[16])
{
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (!memcmp(d->job[i]->request_id, id, 16))
			return d->job[i];
	return NULL;
}

static struct live_job *find_name(const struct daemon *d, const char *name, uint32_t uid)
{
	for (uint32_t i = d->n_jobs; i-- > 0;)
		if (!live_ended(d->job[i]) && d->job[i]->uid == uid && !strcmp(d->job[i]->spec.name, name))
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

/* Two ranks that create their job come at the same moment, and so may a caller's second try. */
static struct pending_submit *find_pending(const struct daemon *d, const struct submit *s)
{
	struct pending_submit *p = d->submitting;
	while (p && memcmp(p->l->request_id, s->request_id, 16) &&
	       !(s->by_name && p->l->uid == s->uid && !strcmp(p->l->spec.name, s->spec->name)))
		p = p->next;
	return p;
}

static bool answer_existing(struct daemon *d, const struct submit *s, const uint8_t sum[16])
{
	struct pending_submit *p = find_pending(d, s);
	struct live_job *l = p ? p->l : find_request(d, s->request_id);
	if (!l && s->by_name)
		l = find_name(d, s->spec->name, s->uid);
	if (!l)
		return false;
	if (memcmp(l->spec_sum, sum, sizeof l->spec_sum))
		s->cb(s->arg, NULL, true, ST_ALREADY_EXISTS, "a job with this name or request id exists with another specification",
		      "spec");
	else if (!p)
		s->cb(s->arg, l, true, ST_OK, NULL, NULL);
	else if (!pending_join(p, s))
		s->cb(s->arg, NULL, true, ST_NO_MEMORY, status_info(ST_NO_MEMORY)->text, NULL);
	return true;
}

void live_submit(struct daemon *d, const struct submit *s)
{
	char why[QUEUE_WHY] = "";
	const char *field = NULL;
	uint8_t sum[16];
	size_t n;
	void *bytes = bytes_pack(&s->spec->base, &n);
	struct live_job *l = NULL;
	enum status st = ST_NO_MEMORY;
	if (!bytes)
		goto fail;
	convert_spec_sum(bytes, n, sum);
	if (answer_existing(d, s, sum)) {
		free(bytes);
		return;
	}
	st = live_new(d, d->last_job + 1, bytes, n, s->uid, s->user, &l, &field, why, sizeof why);
	if (!st && s->spec->n_tensors)
		st = live_declare_spec_tensors(l, why, sizeof why);
	if (!st && l->spec.launch_mode == LAUNCH_DAEMON)
		st = live_launch_check(s->uid, s->user, s->local, why, sizeof why);
	if (!st)
		st = saving_check_dirs(l, &field, why, sizeof why);
	if (!st)
		st = live_queue_admit(l, why, sizeof why);
	if (st)
		goto fail;
	memcpy(l->request_id, s->request_id, 16);
	live_random16(NULL, l->uuid);
	l->created_unix_ns = daemon_now(d).unix_ns;
	l->submitted_here = true;
	struct pending_submit *p = pending_new(d, l, s);
	if (!p) {
		st = ST_NO_MEMORY;
		goto fail;
	}
	struct journal_record r = { .kind = JOURNAL_JOB,
				    .job = { .id = l->id, .uid = l->uid, .user = l->user,
					     .created_unix_ns = l->created_unix_ns, .spec = { bytes, n } } };
	memcpy(r.job.uuid, l->uuid, 16);
	memcpy(r.job.request_id, l->request_id, 16);
	st = persist_put(d->persist, &r, on_job_durable, p);
	free(bytes);
	if (st) {
		pending_end(d, p, st, status_info(st)->text, NULL);
		live_free(l);
	} else {
		d->last_job = l->id; /* a refused job takes no id */
	}
	return;
fail:
	s->cb(s->arg, NULL, false, st, why[0] ? why : status_info(st)->text, field);
	live_free(l);
	free(bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the ranks of parts whose job another gaccd coordinates: as that one orders, also after a restart, and until
 * the parts are gone; and tells it how they are. For links, the start and the tick. Loop thread. */
#include "edge/part_launch.h"

#include "base/log.h"
#include "control/spec_nodes.h"
#include "edge/links.h"
#include "gacc/v1/common.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (INT64_C(10000) * 1000000) /* news that were lost are replaced */
#define EVERY_NS (INT64_C(100) * 1000000)   /* between two of them, and the longer the more ranks there are */
#define RANK_NS (INT64_C(250) * 1000)

/* ---- users ---- */

enum status part_launch_check(const struct daemon *d, uint32_t uid, const char *user, char *why, size_t n_why)
{
	const struct conf *c = d->node.conf;
	if (!*c->tls.cert || uid >= c->cluster.relay_min_uid)
		return starter_check(uid, user, why, n_why);
	snprintf(why, n_why,
		 "uid %u is below cluster.relay_min_uid of node %.64s: it launches no ranks for it; submit as another "
		 "user, or lower cluster.relay_min_uid there",
		 uid, c->node.name);
	return ST_PERMISSION_DENIED;
}

/* ---- news ---- */

/* Whether it is known how the ranks are: not while a launcher is being replaced. */
static bool is_known(const struct starter *s)
{
	return s->done || (s->proc ? s->heard : !s->retry_ns);
}

static bool is_over(const struct starter *s)
{
	return s->done || (s->wish.want >= LAUNCH_WANT_DRAIN && !s->proc && !s->retry_ns);
}

static void send_news(struct part_launch *l, struct now now)
{
	const struct starter *s = &l->starter;
	struct launched is = { .job_id = s->job.id,
			       .epoch = l->epoch,
			       .incarnation = l->d->node.incarnation,
			       .number = ++l->number,
			       .term = l->term,
			       .order = l->order,
			       .part = l->part,
			       .first = s->first,
			       .n_ranks = s->n_ranks,
			       .over = is_over(s),
			       .launcher_pid = s->proc ? launch_proc_pid(s->proc) : 0,
			       .summary = s->summary,
			       .rank = s->rank,
			       .tail = s->tail,
			       .n_tail = s->n_tail };
	size_t n = 0;
	if (s->allowed > is.summary.allowed)
		is.summary.allowed = s->allowed;
	snprintf(is.failure, sizeof(is.failure), "%s", l->failure);
	void *bytes = launched_pack(&is, &n);
	l->news = !bytes;
	l->sent_ns = now.mono_ns;
	links_send(l->d, LINK_LAUNCHED, s->job.id, l->part, bytes, n);
}

static void send_if_due(struct part_launch *l, struct now now)
{
	const int64_t every = EVERY_NS + l->starter.n_ranks * RANK_NS;
	const int64_t wait = l->news ? every : AGAIN_NS;
	if (is_known(&l->starter) && (!l->sent_ns || now.mono_ns - l->sent_ns >= wait))
		send_news(l, now);
}

/* ---- the starter's ports ---- */

static struct part *part_of(const struct part_launch *l)
{
	struct part *p = part_find(&l->d->node, l->starter.job.id, l->part);
	return p && p->away && !p->dropped && !memcmp(p->uuid, l->uuid, sizeof(l->uuid)) ? p : NULL;
}

static const Gacc__V1__JobSpec *spec_of(const void *owner)
{
	return ((const struct part_launch *)owner)->spec;
}

static bool is_ended(const void *owner)
{
	const struct part_launch *l = owner;
	const struct part *p = part_of(l);
	return l->starter.wish.want >= LAUNCH_WANT_DRAIN || !p || job_ended(p->job);
}

static void on_event(void *owner, bool warning, const char *reason, int64_t rank, const char *text)
{
	const struct part_launch *l = owner;
	struct part *p = part_of(l);
	if (p)
		p->ports.event(p, warning, reason, rank, text);
	else
		log_job(l->starter.job.id, warning ? LOG_WARN : LOG_NOTICE, reason, "%s", text);
}

static void on_changed(void *owner)
{
	struct part_launch *l = owner;
	l->news = true;
	starter_gave_up(&l->starter, l->failure, sizeof(l->failure));
	send_if_due(l, daemon_now(l->d));
}

static const struct starter_ports ports = {
	.spec = spec_of, .ended = is_ended, .event = on_event, .changed = on_changed
};

/* ---- made and freed ---- */

static struct part_launch *find(const struct daemon *d, uint64_t job)
{
	struct part_launch *l = d->part_launch;
	while (l && l->starter.job.id != job)
		l = l->next;
	return l;
}

static Gacc__V1__JobSpec *unpack_spec(const struct specification *text)
{
	size_t n = 0;
	void *bytes = specification_pack(text, &n);
	Gacc__V1__JobSpec *spec = bytes ? gacc__v1__job_spec__unpack(NULL, n, bytes) : NULL;
	free(bytes);
	for (size_t i = 0; spec && i < spec->n_tensors; i++)
		gacc__v1__tensor_spec__free_unpacked(spec->tensors[i], NULL);
	if (spec)
		spec->n_tensors = 0;
	return spec;
}

static void part_launch_free(struct part_launch *l)
{
	struct part_launch **at = &l->d->part_launch;
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	starter_fini(&l->starter);
	gacc__v1__job_spec__free_unpacked(l->spec, NULL);
	specification_drop(l->text);
	free(l->rank);
	free(l);
}

/* For the first part of its job here; NULL: no memory, or it is not one whose ranks are launched here. */
static struct part_launch *part_launch_new(struct daemon *d, const struct part *p)
{
	uint32_t first = 0;
	const uint32_t n = spec_ranks_on(&p->text->spec, d->node.conf->node.name, &first);
	if (p->text->spec.launch_mode != LAUNCH_DAEMON || !n)
		return NULL;
	struct part_launch *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->rank = calloc(n, sizeof(*l->rank));
	l->spec = l->rank ? unpack_spec(p->text) : NULL;
	if (!l->spec) {
		free(l->rank);
		free(l);
		return NULL;
	}
	for (uint32_t i = 0; i < n; i++)
		l->rank[i].exit_status = LAUNCH_NO_STATUS;
	l->d = d;
	l->epoch = job_part(p->job)->epoch;
	l->part = p->number;
	l->text = specification_hold(p->text);
	memcpy(l->uuid, p->uuid, sizeof(l->uuid));
	const struct starter_job job = { .id = p->id, .uid = p->uid, .uuid = l->uuid, .spec = &l->text->spec };
	starter_init(&l->starter, d, &job, first, n, l->rank, &ports, l);
	l->next = d->part_launch;
	return d->part_launch = l;
}

void part_launch_free_all(struct daemon *d)
{
	while (d->part_launch)
		part_launch_free(d->part_launch);
}

enum status part_launch_recover(struct daemon *d)
{
	for (uint32_t i = 0; i < d->node.n_parts; i++) {
		struct part *p = d->node.part[i];
		if (!p->away || p != part_first(&d->node, p->id) || p->text->spec.launch_mode != LAUNCH_DAEMON)
			continue;
		struct part_launch *l = part_launch_new(d, p);
		if (!l)
			return ST_NO_MEMORY;
		starter_open(&l->starter, false); /* where there is none, the coordinator says what is to be done */
	}
	return ST_OK;
}

/* ---- orders ---- */

/* A launcher is started for what needs one, if only to end what a dead one has left. */
static void see_to_launcher(struct part_launch *l)
{
	struct starter *s = &l->starter;
	const struct part *p = part_of(l);
	if (s->proc || s->retry_ns || s->done || s->wish.want == LAUNCH_WANT_NOTHING)
		return;
	if (s->wish.want >= LAUNCH_WANT_DRAIN) {
		s->done = !starter_left_traces(s);
		if (!s->done)
			starter_open(s, true);
		return;
	}
	if (!p || part_launch_check(l->d, s->job.uid, p->user, l->failure, sizeof(l->failure)))
		return;
	l->failure[0] = '\0';
	starter_open(s, true);
}

static void obey(struct part_launch *l, const struct launch_wanted *w)
{
	l->term = w->term;
	l->order = w->number;
	starter_wish(&l->starter, &w->wish);
	see_to_launcher(l);
}

/* The job is over, and nothing of it is here any more. */
static void answer_without_part(struct daemon *d, const struct launch_wanted *w)
{
	struct launched is = { .job_id = w->job_id,
			       .epoch = w->epoch,
			       .incarnation = d->node.incarnation,
			       .number = UINT64_MAX,
			       .term = w->term,
			       .order = w->number,
			       .part = w->part,
			       .first = w->wish.first,
			       .n_ranks = w->wish.n_ranks,
			       .over = true };
	struct launch_rank *rank = calloc(is.n_ranks, sizeof(*rank));
	size_t n = 0;
	is.rank = rank;
	void *bytes = rank ? launched_pack(&is, &n) : NULL;
	links_send(d, LINK_LAUNCHED, w->job_id, w->part, bytes, n);
	free(rank);
}

/* Whether the order is about the ranks that this node has of the job, and not from an earlier coordinator. */
static bool is_ours(const struct part_launch *l, const struct link_message *m, const struct launch_wanted *w, char *why,
		    size_t n_why)
{
	const struct starter *s = &l->starter;
	if (w->part == l->part && w->wish.first == s->first && w->wish.n_ranks == s->n_ranks)
		return w->epoch == l->epoch && w->term >= l->term;
	snprintf(why, n_why, "LaunchOrder has ranks %u to %u, and node %.64s has %u to %u of the job", w->wish.first,
		 w->wish.first + w->wish.n_ranks - 1, l->d->node.conf->node.name, s->first, s->first + s->n_ranks - 1);
	links_refuse(m, why);
	return false;
}

void part_launch_take(struct daemon *d, const struct link_message *m)
{
	struct launch_wanted w;
	char why[200];
	enum status st = launch_wanted_unpack(m->bytes, m->n, SPEC_MAX_RANKS, &w, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || !m->away || w.job_id != m->job || w.part != m->part)
		return;
	const struct part *p = part_find(&d->node, m->job, m->part);
	struct part_launch *l = find(d, m->job);
	if ((p && memcmp(p->uuid, w.uuid, sizeof(w.uuid)) != 0) || (l && memcmp(l->uuid, w.uuid, sizeof(w.uuid)) != 0))
		return; /* of another coordinator's job */
	if (!l && p && p->away && !p->dropped && p == part_first(&d->node, p->id))
		l = part_launch_new(d, p);
	if (!l) {
		if (!p && w.wish.want >= LAUNCH_WANT_DRAIN)
			answer_without_part(d, &w);
		return; /* else it is repeated until the part is there */
	}
	if (!is_ours(l, m, &w, why, sizeof(why)))
		return;
	if (w.term > l->term || w.number > l->order)
		obey(l, &w);
	l->news = true;
	send_if_due(l, daemon_now(d));
}

/* ---- time ---- */

/* Nobody else would end the ranks. */
static void end_without_part(struct part_launch *l)
{
	struct launch_wish w = l->starter.wish;
	w.want = LAUNCH_WANT_END;
	starter_wish(&l->starter, &w);
}

static void tick(struct part_launch *l, struct now now)
{
	struct starter *s = &l->starter;
	const bool was_done = s->done;
	const bool gone = !part_of(l);
	if (gone && s->wish.want != LAUNCH_WANT_END)
		end_without_part(l);
	see_to_launcher(l);
	starter_tick(s, now);
	if (s->done != was_done)
		on_changed(l);
	send_if_due(l, now);
	if (gone && s->done && !l->news)
		part_launch_free(l);
}

void part_launch_tick(struct daemon *d, struct now now)
{
	for (struct part_launch *l = d->part_launch, *next; l; l = next) {
		next = l->next;
		tick(l, now);
	}
}

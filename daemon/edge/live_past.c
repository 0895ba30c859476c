/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept of an ended job: its view, small in memory and whole in the journal. */
#include "edge/live_past.h"

#include "base/log.h"
#include "base/machine.h"
#include "cluster/view_record.h"
#include "edge/convert.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/utf8.h"
#include "rpc/pool.h"

#include <stdlib.h>
#include <string.h>

#define PAST_MAX_BYTES (64u << 10) /* of a view in memory; in a larger one the ranks are left out */
#define KEPT_BYTES (32u << 20)	   /* of freed memory: twice main.c's M_TOP_PAD */

/* ---- the record ---- */

static struct journal_bytes pack(const struct live_job *l, const Gacc__V1__Job *j, bool settled)
{
	const struct job_spec *s = l->spec;
	struct view_head h = { .settled = settled,
			       .ranks = s->ranks,
			       .micro_size = s->micro_size,
			       .max_micro_size = s->max_micro_size,
			       .launch_mode = s->launch_mode,
			       .optimizer = s->optim.type,
			       .grace_ns = s->launch.grace_ns };
	struct journal_bytes b = { NULL, 0 };
	memcpy(h.spec_sum, l->text->sum, sizeof(h.spec_sum));
	b.data = view_record_pack(&h, j, &b.n);
	return b;
}

/* Everything but processes and memory, which end with it. */
static Gacc__V1__Job *final_view(const struct live_job *l, struct now now)
{
	Gacc__V1__Job *j = live_view(l, VIEW_RANKS, now);
	if (j) {
		j->engine_pid = j->launcher_pid = 0;
		j->host_bytes = 0;
	}
	return j;
}

struct journal_bytes live_past_record(const struct live_job *l, struct now now)
{
	struct journal_bytes b = { NULL, 0 };
	Gacc__V1__Job *j = final_view(l, now);
	if (j) {
		b = pack(l, j, false);
		gacc__v1__job__free_unpacked(j, NULL);
	}
	return b;
}

void live_past_renew(struct live_job *l, struct now now)
{
	struct journal_bytes b = live_past_record(l, now);
	struct journal_record r = { .kind = JOURNAL_VIEW, .view = { l->id, b } };
	if (b.data)
		persist_put(l->d->persist, &r, NULL, NULL); /* if it fails, the one of END stays */
	free((void *)b.data);
}

static void free_ranks(Gacc__V1__Job *j)
{
	for (size_t i = 0; i < j->n_ranks; i++)
		gacc__v1__rank_status__free_unpacked(j->ranks[i], NULL);
	free(j->ranks);
	j->ranks = NULL;
	j->n_ranks = 0;
}

/* In memory: all but the ranks, then the ranks, which together are the message, too. So who wants no ranks unpacks
 * none: a list of 200 jobs of 1000 ranks would take the loop 60 ms. */
static bool keep_in_memory(struct live_job *l, const Gacc__V1__Job *j, bool with_ranks)
{
	Gacc__V1__Job head = *j, ranks = GACC__V1__JOB__INIT;
	head.n_ranks = 0;
	head.ranks = NULL;
	ranks.n_ranks = with_ranks ? j->n_ranks : 0;
	ranks.ranks = j->ranks;
	size_t n_head = gacc__v1__job__get_packed_size(&head), n = n_head + gacc__v1__job__get_packed_size(&ranks);
	uint8_t *view = malloc(n + 1);
	if (!view)
		return false;
	gacc__v1__job__pack(&head, view);
	gacc__v1__job__pack(&ranks, view + n_head);
	free(l->end.view);
	l->end.view = view;
	l->end.n_head = n_head;
	l->end.n_view = n;
	l->end.whole = with_ranks;
	return true;
}

/* Without the ranks if they are many. */
static bool keep_small(struct live_job *l, const Gacc__V1__Job *j)
{
	return keep_in_memory(l, j, gacc__v1__job__get_packed_size(j) <= PAST_MAX_BYTES);
}

static bool keep(struct live_job *l, Gacc__V1__Job *j)
{
	struct journal_bytes b = pack(l, j, true);
	struct journal_record r = { .kind = JOURNAL_VIEW, .view = { l->id, b } };
	bool done = b.data && !persist_put(l->d->persist, &r, NULL, NULL) && keep_small(l, j);
	free((void *)b.data);
	return done;
}

/* What a job of its size has allocated in many small pieces is given back to the machine, which takes time. */
struct dropped {
	struct rpc_work work;
	Gacc__V1__JobSpec *spec;
	struct shared *packed;
	struct tensor_set tensors;
};

static void drop_it(struct rpc_work *w)
{
	struct dropped *d = (struct dropped *)w;
	gacc__v1__job_spec__free_unpacked(d->spec, NULL);
	shared_drop(d->packed);
	tensor_set_fini(&d->tensors);
	machine_memory_trim(KEPT_BYTES);
}

static void on_dropped(struct rpc_work *w)
{
	free(w);
}

static void drop_spec(struct live_job *l)
{
	if (!l->text->pb)
		return;
	struct dropped *w = calloc(1, sizeof(*w));
	struct shared *packed = l->part ? l->part->tensors.packed : NULL;
	Gacc__V1__JobSpec *pb = specification_strip(l->text);
	if (w) {
		w->spec = pb;
		w->packed = packed;
		if (l->part)
			job_give_tensors(l->part->job, &w->tensors);
		rpc_pool_put(l->d->node.pool, &w->work, l->uid, drop_it, on_dropped);
	} else {
		gacc__v1__job_spec__free_unpacked(pb, NULL);
		shared_drop(packed);
	}
	if (l->part) {
		l->part->tensors.packed = NULL;
		part_tensors_gone(l->part);
	}
}

bool live_past_keep(struct live_job *l, struct now now)
{
	Gacc__V1__Job *j = final_view(l, now);
	bool kept = j && keep(l, j);
	if (j)
		gacc__v1__job__free_unpacked(j, NULL);
	if (kept)
		drop_spec(l);
	l->end.settled |= kept;
	return kept;
}

/* ---- after a restart ---- */

/* NULL: there is none, or it cannot be read, for the reason in `why`. */
static Gacc__V1__Job *unpack(const struct journal_bytes *b, struct view_head *h, char *why, size_t n_why)
{
	Gacc__V1__Job *j = NULL;
	*why = '\0';
	return b->n && !view_record_read(b->data, b->n, h, &j, why, n_why) ? j : NULL;
}

static bool take_head(struct live_job *l, const struct view_head *h, const char *name)
{
	struct job_spec *s = &l->text->spec;
	if (strlen(name) >= sizeof(s->name))
		return false;
	*s = (struct job_spec){ .ranks = h->ranks,
				.micro_size = h->micro_size,
				.max_micro_size = h->max_micro_size,
				.launch_mode = h->launch_mode,
				.launch = { .grace_ns = h->grace_ns },
				.optim = { .type = h->optimizer } };
	strcpy(s->name, name);
	memcpy(l->text->sum, h->spec_sum, sizeof(l->text->sum));
	l->end.settled = h->settled;
	return true;
}

enum status live_past_new(struct daemon *d, const struct journal_job *b, struct live_job **out)
{
	struct view_head h;
	char why[200];
	Gacc__V1__Job *j = unpack(&b->view, &h, why, sizeof(why));
	struct live_job *l = j ? live_make(d, b->id, b->uid, b->user, specification_new(NULL), LIVE_PAST_EVENTS) : NULL;
	enum status st = j && !l ? ST_NO_MEMORY : ST_MALFORMED;
	if (*why)
		log_job(b->id, LOG_WARN, "ViewUnreadable", "what was kept of this ended job cannot be read: %s", why);
	if (l && j->spec && take_head(l, &h, j->spec->name))
		st = (h.settled ? keep_small(l, j) : keep_in_memory(l, j, true)) ? ST_OK : ST_NO_MEMORY;
	if (!st) {
		l->end.step = j->applied_step;
		if (j->last) { /* of the rest the window's record tells */
			l->end.commit.window = j->last->window;
			l->end.commit.params_digest = j->last->params_digest;
		}
		*out = l;
	} else {
		live_free(l);
	}
	if (j)
		gacc__v1__job__free_unpacked(j, NULL);
	return st;
}

/* Replaces a text of a message. */
static bool set_text(char **text, const char *to)
{
	char *copy = strdup(to);
	if (!copy)
		return false;
	utf8_repair(copy);
	if (*text != protobuf_c_empty_string)
		free(*text);
	*text = copy;
	return true;
}

/* The last window was being written when the view was made. */
static bool add_last_window(const struct live_job *l, Gacc__V1__Job *j)
{
	const struct commit *k = &l->end.commit;
	if (!k->outcome || j->window >= l->end.window)
		return true;
	Gacc__V1__StepResult *last = malloc(sizeof(*last));
	if (!last)
		return false;
	gacc__v1__step_result__init(last);
	convert_step(k, last);
	if (j->last)
		gacc__v1__step_result__free_unpacked(j->last, NULL);
	j->last = last;
	j->window = l->end.window;
	j->applied_step = l->end.step;
	j->micro_size = k->next_micro_size;
	j->loss_scale = k->next.scale.scale;
	if (j->counters)
		live_fill_counters(&k->next.counters, j->counters);
	return true;
}

static bool correct(const struct live_job *l, Gacc__V1__Job *j)
{
	j->state = (Gacc__V1__JobState)l->end.state;
	j->ended_unix_nanos = j->state_since_unix_nanos = l->ended_unix_ns;
	return set_text(&j->reason, l->end.reason) && add_last_window(l, j) && live_launch_fill(l, j);
}

/* ---- looking ---- */

/* Takes j, which may be NULL. */
static Gacc__V1__Job *complete(const struct live_job *l, Gacc__V1__Job *j, unsigned parts)
{
	if (!j)
		return NULL;
	if (!(parts & VIEW_RANKS))
		free_ranks(j);
	if (correct(l, j) && (!(parts & VIEW_EVENTS) || live_add_events(l, j)))
		return j;
	gacc__v1__job__free_unpacked(j, NULL);
	return NULL;
}

Gacc__V1__Job *live_past_view(const struct live_job *l, unsigned parts)
{
	size_t n = parts & VIEW_RANKS ? l->end.n_view : l->end.n_head;
	return complete(l, gacc__v1__job__unpack(NULL, n, l->end.view), parts);
}

enum status live_past_read(struct live_past_whole *w, const struct journal_job *b)
{
	struct view_head h;
	char why[200];
	w->job = unpack(&b->view, &h, why, sizeof(why));
	/* NULL, too, where it cannot be read: a job that was set aside */
	w->spec = gacc__v1__job_spec__unpack(NULL, b->spec.n, b->spec.data);
	return ST_OK;
}

void live_past_free(struct live_past_whole *w)
{
	if (w->job)
		gacc__v1__job__free_unpacked(w->job, NULL);
	if (w->spec)
		gacc__v1__job_spec__free_unpacked(w->spec, NULL);
	*w = (struct live_past_whole){ NULL, NULL };
}

Gacc__V1__Job *live_past_whole(const struct live_job *l, struct live_past_whole *w, unsigned parts)
{
	Gacc__V1__Job *j = NULL;
	if (l->end.whole || !w->job) {
		j = live_past_view(l, parts);
	} else {
		j = complete(l, w->job, parts);
		w->job = NULL;
	}
	if (!j || !w->spec)
		return j;
	if (j->spec)
		gacc__v1__job_spec__free_unpacked(j->spec, NULL);
	j->spec = w->spec;
	w->spec = NULL;
	return j;
}

/* ---- time ---- */

void live_past_tick(struct live_job *l, struct now now)
{
	bool old = now.unix_ns - l->ended_unix_ns > LIVE_COUNTED_NS;
	if (l->end.counted && old) {
		free(l->end.counted);
		l->end.counted = NULL;
	}
	if ((!l->end.settled || l->launch) && live_launch_over(l) && live_past_keep(l, now))
		live_launch_free(l);
}

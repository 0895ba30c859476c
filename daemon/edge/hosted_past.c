/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept of an ended job: its view, small in memory and whole in the journal, in place of its state machines
 * and its specification. For hosted_retire.c, for views, and for the start of gaccd. Loop thread; the journal's
 * record is unpacked on the journal's thread, the specification is freed in the pool. */
#include "edge/hosted_past.h"

#include "base/log.h"
#include "base/machine.h"
#include "edge/hosted_view.h"
#include "edge/launching.h"
#include "gacc/v1/job.pb-c.h"
#include "rpc/pool.h"

#include <stdlib.h>
#include <string.h>

#define PAST_MAX_BYTES (64u << 10) /* of a view in memory; in a larger one the ranks are left out */
#define KEPT_BYTES (32u << 20)	   /* of freed memory: twice main.c's M_TOP_PAD */

/* ---- the record ---- */

static struct journal_bytes pack(const struct hosted *h, const Gacc__V1__Job *j, bool settled)
{
	const struct job_spec *s = h->spec;
	struct view_head head = { .settled = settled,
				  .ranks = s->ranks,
				  .micro_size = s->micro_size,
				  .max_micro_size = s->max_micro_size,
				  .launch_mode = s->launch_mode,
				  .optimizer = s->optim.type,
				  .grace_ns = s->launch.grace_ns };
	struct journal_bytes b = { NULL, 0 };
	memcpy(head.spec_sum, h->text->sum, sizeof(head.spec_sum));
	b.data = view_record_pack(&head, j, &b.n);
	return b;
}

/* Everything but processes and memory, which end with it. */
static Gacc__V1__Job *final_view(const struct hosted *h, struct now now)
{
	Gacc__V1__Job *j = hosted_view(h, VIEW_RANKS, now);
	if (j) {
		j->engine_pid = j->launcher_pid = 0;
		j->host_bytes = 0;
	}
	return j;
}

struct journal_bytes hosted_past_record(const struct hosted *h, struct now now)
{
	struct journal_bytes b = { NULL, 0 };
	Gacc__V1__Job *j = final_view(h, now);
	if (j) {
		b = pack(h, j, false);
		gacc__v1__job__free_unpacked(j, NULL);
	}
	return b;
}

void hosted_past_renew(struct hosted *h, struct now now)
{
	struct journal_bytes b = hosted_past_record(h, now);
	struct journal_record r = { .kind = JOURNAL_VIEW, .view = { h->id, b } };
	if (b.data)
		persist_put(h->d->persist, &r, NULL, NULL); /* if it fails, the one of END stays */
	free((void *)b.data);
}

/* Packs all but the ranks, then the ranks; both together are the whole message. So a view without ranks unpacks none:
 * otherwise a list of 200 jobs of 1000 ranks would take the loop 60 ms. */
static bool keep_in_memory(struct hosted *h, const Gacc__V1__Job *j, bool with_ranks)
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
	free(h->end.view);
	h->end.view = view;
	h->end.n_head = n_head;
	h->end.n_view = n;
	h->end.whole = with_ranks;
	return true;
}

/* Without the ranks if they are many. */
static bool keep_small(struct hosted *h, const Gacc__V1__Job *j)
{
	return keep_in_memory(h, j, gacc__v1__job__get_packed_size(j) <= PAST_MAX_BYTES);
}

static bool keep(struct hosted *h, Gacc__V1__Job *j)
{
	struct journal_bytes b = pack(h, j, true);
	struct journal_record r = { .kind = JOURNAL_VIEW, .view = { h->id, b } };
	bool done = b.data && !persist_put(h->d->persist, &r, NULL, NULL) && keep_small(h, j);
	free((void *)b.data);
	return done;
}

/* What a large job has allocated in many small pieces. The pool gives it back to the machine, because that takes
 * time. */
struct dropped {
	struct rpc_work work;
	Gacc__V1__JobSpec *spec;
};

static void drop_it(struct rpc_work *w)
{
	struct dropped *d = (struct dropped *)w;
	gacc__v1__job_spec__free_unpacked(d->spec, NULL);
	machine_memory_trim(KEPT_BYTES);
}

static void on_dropped(struct rpc_work *w)
{
	free(w);
}

static void drop_spec(struct hosted *h)
{
	if (!h->text->pb)
		return;
	struct dropped *w = calloc(1, sizeof(*w));
	Gacc__V1__JobSpec *pb = specification_strip(h->text);
	if (w) {
		w->spec = pb;
		rpc_pool_put(h->d->node.pool, &w->work, h->uid, drop_it, on_dropped);
	} else {
		gacc__v1__job_spec__free_unpacked(pb, NULL);
	}
}

bool hosted_past_keep(struct hosted *h, struct now now)
{
	Gacc__V1__Job *j = final_view(h, now);
	bool kept = j && keep(h, j);
	if (j)
		gacc__v1__job__free_unpacked(j, NULL);
	if (kept)
		drop_spec(h);
	h->end.settled |= kept;
	return kept;
}

/* ---- after a restart ---- */

static bool take_head(struct hosted *h, const struct view_head *head, const char *name)
{
	struct job_spec *s = &h->text->spec;
	if (strlen(name) >= sizeof(s->name))
		return false;
	*s = (struct job_spec){ .ranks = head->ranks,
				.micro_size = head->micro_size,
				.max_micro_size = head->max_micro_size,
				.launch_mode = head->launch_mode,
				.launch = { .grace_ns = head->grace_ns },
				.optim = { .type = head->optimizer } };
	strcpy(s->name, name);
	memcpy(h->text->sum, head->spec_sum, sizeof(h->text->sum));
	h->end.settled = head->settled;
	return true;
}

enum status hosted_past_new(struct daemon *d, const struct journal_job *b, struct hosted **out)
{
	struct view_head head;
	char why[200];
	Gacc__V1__Job *j = hosted_past_unpack(&b->view, &head, why, sizeof(why));
	struct hosted *h =
		j ? hosted_make(d, b->id, b->uid, b->user, specification_new(NULL), HOSTED_PAST_EVENTS) : NULL;
	enum status st = j && !h ? ST_NO_MEMORY : ST_MALFORMED;
	if (*why)
		log_job(b->id, LOG_WARN, "ViewUnreadable", "what was kept of this ended job cannot be read: %s", why);
	if (h && j->spec && take_head(h, &head, j->spec->name))
		st = (head.settled ? keep_small(h, j) : keep_in_memory(h, j, true)) ? ST_OK : ST_NO_MEMORY;
	if (!st) {
		h->end.step = j->applied_step;
		if (j->last) { /* the rest is in the window's record */
			h->end.commit.window = j->last->window;
			h->end.commit.params_digest = j->last->params_digest;
		}
		*out = h;
	} else {
		hosted_unmake(h);
	}
	if (j)
		gacc__v1__job__free_unpacked(j, NULL);
	return st;
}

/* ---- time ---- */

void hosted_past_tick(struct hosted *h, struct now now)
{
	bool old = now.unix_ns - h->ended_unix_ns > HOSTED_COUNTED_NS;
	if (h->end.counted && old) {
		free(h->end.counted);
		h->end.counted = NULL;
	}
	if ((!h->end.settled || h->launch) && launching_over(h) && hosted_past_keep(h, now))
		launching_free(h);
}

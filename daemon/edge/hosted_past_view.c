/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a job that is over: from what is left of it in memory, completed with what the journal has. For views and the
 * methods. Loop thread; the journal's record is unpacked on the journal's thread. */
#include "edge/hosted_past.h"

#include "cluster/view_record.h"
#include "edge/convert.h"
#include "edge/hosted_view.h"
#include "edge/launching.h"
#include "gacc/v1/job.pb-c.h"
#include "proto/utf8.h"

#include <stdlib.h>
#include <string.h>

Gacc__V1__Job *hosted_past_unpack(const struct journal_bytes *b, struct view_head *head, char *why, size_t n_why)
{
	Gacc__V1__Job *j = NULL;
	*why = '\0';
	return b->n && !view_record_read(b->data, b->n, head, &j, why, n_why) ? j : NULL;
}

/* ---- what has become known since ---- */

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
static bool add_last_window(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct commit *k = &h->end.commit;
	if (!k->outcome || j->window >= h->end.window)
		return true;
	Gacc__V1__StepResult *last = malloc(sizeof(*last));
	if (!last)
		return false;
	gacc__v1__step_result__init(last);
	convert_step(k, last);
	if (j->last)
		gacc__v1__step_result__free_unpacked(j->last, NULL);
	j->last = last;
	j->window = h->end.window;
	j->applied_step = h->end.step;
	j->micro_size = k->next_micro_size;
	j->loss_scale = k->next.scale.scale;
	if (j->counters)
		convert_counters(&k->next.counters, j->counters);
	return true;
}

static bool correct(const struct hosted *h, Gacc__V1__Job *j)
{
	j->state = (Gacc__V1__JobState)h->end.state;
	j->ended_unix_nanos = j->state_since_unix_nanos = h->ended_unix_ns;
	return set_text(&j->reason, h->end.reason) && add_last_window(h, j) && launching_fill(h, j);
}

/* ---- looking ---- */

static void free_ranks(Gacc__V1__Job *j)
{
	for (size_t i = 0; i < j->n_ranks; i++)
		gacc__v1__rank_status__free_unpacked(j->ranks[i], NULL);
	free(j->ranks);
	j->ranks = NULL;
	j->n_ranks = 0;
}

/* Takes j, which may be NULL. */
static Gacc__V1__Job *complete(const struct hosted *h, Gacc__V1__Job *j, unsigned parts)
{
	if (!j)
		return NULL;
	if (!(parts & VIEW_RANKS))
		free_ranks(j);
	if (correct(h, j) && (!(parts & VIEW_EVENTS) || hosted_add_events(h, j)))
		return j;
	gacc__v1__job__free_unpacked(j, NULL);
	return NULL;
}

Gacc__V1__Job *hosted_past_view(const struct hosted *h, unsigned parts)
{
	size_t n = parts & VIEW_RANKS ? h->end.n_view : h->end.n_head;
	return complete(h, gacc__v1__job__unpack(NULL, n, h->end.view), parts);
}

enum status hosted_past_read(struct hosted_past_whole *w, const struct journal_job *b)
{
	struct view_head head;
	char why[200];
	w->job = hosted_past_unpack(&b->view, &head, why, sizeof(why));
	/* NULL, too, where it cannot be read: a job that was set aside */
	w->spec = gacc__v1__job_spec__unpack(NULL, b->spec.n, b->spec.data);
	return ST_OK;
}

void hosted_past_free(struct hosted_past_whole *w)
{
	if (w->job)
		gacc__v1__job__free_unpacked(w->job, NULL);
	if (w->spec)
		gacc__v1__job_spec__free_unpacked(w->spec, NULL);
	*w = (struct hosted_past_whole){ NULL, NULL };
}

Gacc__V1__Job *hosted_past_whole(const struct hosted *h, struct hosted_past_whole *w, unsigned parts)
{
	Gacc__V1__Job *j = NULL;
	if (h->end.whole || !w->job) {
		j = hosted_past_view(h, parts);
	} else {
		j = complete(h, w->job, parts);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the norms of tensors out of the engine's control segment with the vote that brought them, and sends them to
 * the coordinator in portions, as it asks for them. For the part's ports, the links and the tick. Loop thread. */
#include "edge/part_norms.h"

#include "cluster/norms_message.h"
#include "edge/part_record.h"
#include "runtime/part.h"

#include <stdio.h>
#include <stdlib.h>

/* Whether the record in force says that they have been left with this vote. */
static bool are_left(const struct part *p, const struct control_page *page, const struct report *r)
{
	struct control_state state;
	bool corrupt;
	if (control_state_init(&state, p->spec->ranks, p->spec->max_micro_size))
		return false;
	bool yes = control_page_read(page, &state, &corrupt) && state.r.prepared_norms && state.r.window == r->window &&
		   state.r.prepared_term == r->vote_term && state.r.prepared_attempt == r->vote_attempt;
	control_state_fini(&state);
	return yes;
}

static struct part_norms_kept *copy(const struct part *p, const struct control_page *page, const struct report *r)
{
	const struct arena *a = job_arena(p->job);
	const struct tensor_norm *row = control_page_norms(page);
	const uint64_t n = a->n_tensors;
	struct part_norms_kept *k = malloc(sizeof(*k) + 2 * n * sizeof(double));
	if (!k)
		return NULL;
	*k = (struct part_norms_kept){ .window = r->window,
				       .term = r->vote_term,
				       .attempt = r->vote_attempt,
				       .wanted_ns = node_now().mono_ns,
				       .n = n,
				       .grad = (double *)(k + 1),
				       .param = (double *)(k + 1) + n };
	for (uint64_t i = 0; i < n; i++) {
		const struct tensor_norm *of = &row[a->tensor[i].alias >= 0 ? (uint64_t)a->tensor[i].alias : i];
		k->grad[i] = of->grad_sumsq;
		k->param[i] = of->param_sumsq;
	}
	return k;
}

static bool is_of(const struct part_norms_kept *k, uint64_t window, uint64_t term, uint64_t attempt)
{
	return k && k->window == window && k->term == term && k->attempt == attempt;
}

void part_norms_keep(struct part *p, const struct report *r)
{
	struct control_page page;
	if (p->number || r->phase != WINDOW_PREPARED || r->vote_status || !job_norms_asked(p->job) ||
	    is_of(p->norms, r->window, r->vote_term, r->vote_attempt))
		return;
	free(p->norms);
	p->norms = part_control_page(p, &page) && are_left(p, &page, r) ? copy(p, &page, r) : NULL;
}

void part_norms_tick(struct part *p, struct now now)
{
	if (!p->norms || now.mono_ns - p->norms->wanted_ns < PART_NORMS_KEPT_NS)
		return;
	free(p->norms);
	p->norms = NULL;
}

static void say(struct daemon *d, const struct part_norms *to)
{
	size_t n = 0;
	void *bytes = norms_pack(to, &n);
	links_send(d, LINK_NORMS, to->job_id, to->part, bytes, n);
}

static void refuse(struct daemon *d, struct part_norms *to, enum status st)
{
	to->status = st;
	say(d, to);
}

static void answer(struct part *p, const struct norms_ask *a, struct part_norms *to)
{
	struct part_norms_kept *k = p->norms;
	if (!is_of(k, a->window, a->term, a->attempt) || a->first >= k->n) {
		snprintf(to->text, sizeof(to->text), "the engine has left no norms of window %llu; ask again",
			 (unsigned long long)a->window);
		refuse(daemon_of_node(p->node), to, ST_ATTEMPT_FAILED);
		return;
	}
	k->wanted_ns = node_now().mono_ns;
	to->first = a->first;
	to->total = k->n;
	to->n = k->n - a->first < NORMS_PORTION ? (uint32_t)(k->n - a->first) : NORMS_PORTION;
	to->grad = k->grad + a->first;
	to->param = k->param + a->first;
	say(daemon_of_node(p->node), to);
}

void part_take_norms_ask(struct daemon *d, const struct link_message *m)
{
	struct part *p = part_find(&d->node, m->job, m->part);
	struct norms_ask a;
	char why[200];
	enum status st = norms_ask_unpack(m->bytes, m->n, &a, why, sizeof(why));
	if (st == ST_VERSION_SKEW)
		links_refuse(m, why);
	if (st || a.job_id != m->job || a.part != m->part)
		return; /* asked again */
	struct part_norms to = { .job_id = a.job_id, .epoch = a.epoch, .number = a.number, .part = a.part };
	if (p && a.epoch == job_epoch(p->job) && part_record_is_of(p->uuid, a.uuid_high, a.uuid_low)) {
		answer(p, &a, &to);
		return;
	}
	snprintf(to.text, sizeof(to.text), "node %.80s does not have part %u", d->node.conf->node.name, a.part);
	refuse(d, &to, ST_JOB_NOT_FOUND);
}

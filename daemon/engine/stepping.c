/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which ranges of the arena a step leaves out, and computes the scalars of the others. For update.c and
 * daemon/cuda/update.c; no I/O, no lock. */
#include "engine/stepping.h"

#include <stdlib.h>
#include <string.h>

struct place {
	uint64_t start, tensor;
};

static int by_start(const void *a, const void *b)
{
	const uint64_t x = ((const struct place *)a)->start, y = ((const struct place *)b)->start;
	return (x > y) - (x < y);
}

/* The tensor of a range is the last one that begins at or before it. */
static enum status find_tensors(struct stepping *s)
{
	const struct plan *p = s->plan;
	const struct plan_tensor *t = plan_tensors(p);
	struct place *place = calloc(p->n_tensors + 1, sizeof(*place));
	uint64_t n = 0, at = 0;
	s->tensor = calloc(p->n_ranges, sizeof(*s->tensor));
	if (!place || !s->tensor) {
		free(place);
		return ST_NO_MEMORY;
	}
	for (uint64_t i = 0; i < p->n_tensors; i++)
		if (t[i].alias < 0)
			place[n++] = (struct place){ t[i].start, i };
	qsort(place, n, sizeof(*place), by_start);
	for (uint64_t i = 0; i < p->n_ranges; i++) {
		while (at + 1 < n && place[at + 1].start <= plan_ranges(p)[i].start)
			at++;
		s->tensor[i] = place[at].tensor;
	}
	free(place);
	return ST_OK;
}

static const struct optim_group *group_of(const struct stepping *s, uint64_t range)
{
	return &plan_optim_groups(s->plan)[plan_ranges(s->plan)[range].optim_group];
}

enum status stepping_init(struct stepping *s, const struct plan *p, const struct control_page *page)
{
	*s = (struct stepping){ .plan = p, .touched = touched_view(p, page) };
	enum status st = s->touched.plan ? find_tensors(s) : ST_OK;
	s->n_scalars = s->tensor ? p->n_ranges : p->n_optim_groups;
	s->left_out = calloc(p->n_ranges, sizeof(*s->left_out));
	s->scalars = calloc(s->n_scalars, sizeof(*s->scalars));
	if (st || !s->left_out || !s->scalars) {
		stepping_fini(s);
		return ST_NO_MEMORY;
	}
	for (uint64_t i = 0; i < p->n_ranges; i++)
		s->left_out[i] = group_of(s, i)->frozen;
	return ST_OK;
}

void stepping_fini(struct stepping *s)
{
	free(s->tensor);
	free(s->left_out);
	free(s->scalars);
	*s = (struct stepping){ .plan = NULL };
}

static void fill(const struct stepping *s, const struct control_record *r, const struct optim_group *g, uint64_t t,
		 struct kernel_update *out)
{
	optim_step(&s->plan->optim, g, t, r->commit_lr, r->commit_scale, r->commit_clip_value, out);
}

/* Neighbours mostly have the same group and the same step: their powers are not computed again. */
static void fill_ranges(struct stepping *s, const struct control_record *r)
{
	const uint32_t half = touched_half(s->plan, r);
	const struct optim_group *before = NULL;
	uint64_t t_before = 0, of = 0;
	for (uint64_t i = 0; i < s->plan->n_ranges; i++) {
		const struct optim_group *g = group_of(s, i);
		s->left_out[i] = g->frozen || !touched_has(&s->touched, half, s->tensor[i]);
		if (s->left_out[i])
			continue;
		const uint64_t t = touched_step(&s->touched, r->commit_applied_step, s->tensor[i]);
		if (g == before && t == t_before)
			s->scalars[i] = s->scalars[of];
		else
			fill(s, r, g, t, &s->scalars[i]);
		before = g;
		t_before = t;
		of = i;
	}
}

void stepping_begin(struct stepping *s, const struct control_record *r)
{
	if (s->tensor) {
		fill_ranges(s, r);
		return;
	}
	for (uint64_t i = 0; i < s->plan->n_optim_groups; i++)
		fill(s, r, &plan_optim_groups(s->plan)[i], r->commit_applied_step, &s->scalars[i]);
}

float stepping_lr(const struct stepping *s, uint64_t range, double lr, double trust)
{
	return (float)(lr * group_of(s, range)->lr_scale * trust);
}

double stepping_trust(const struct stepping *s, uint64_t range, double param_sumsq, double direction_sumsq)
{
	return s->left_out[range] ? 1 : optim_trust_ratio(group_of(s, range), param_sumsq, direction_sumsq);
}

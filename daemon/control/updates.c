/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a job that change while it runs: checks a change, keeps the pending ones in order, says which values hold
 * in a window. For the coordinator, and for checkpoints and restoring from them. Pure; loop thread. */
#include "control/updates.h"

#include "base/array.h"
#include "engine/commit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void updates_fini(struct updates *u)
{
	if (!u)
		return;
	free(u->item);
	*u = (struct updates){ .n = 0 };
}

struct values values_of(const struct job_spec *s)
{
	return (struct values){ s->micro_size, s->optim.lr, s->clip_norm, s->clip_value };
}

void update_apply(struct values *v, const struct update *u)
{
	if (u->set & VALUE_MICRO_SIZE)
		v->micro_size = u->to.micro_size;
	if (u->set & VALUE_LR)
		v->lr = u->to.lr;
	if (u->set & VALUE_CLIP_NORM)
		v->clip_norm = u->to.clip_norm;
	if (u->set & VALUE_CLIP_VALUE)
		v->clip_value = u->to.clip_value;
}

#define CHECK(name, ok, ...)                                                                                           \
	do {                                                                                                           \
		if (!(ok)) {                                                                                           \
			*field = (name);                                                                               \
			snprintf(why, n_why, __VA_ARGS__);                                                             \
			return ST_INVALID_ARGUMENT;                                                                    \
		}                                                                                                      \
	} while (0)

static bool is_amount(double v)
{
	return isfinite(v) && v >= 0;
}

enum status update_check(const struct update *u, const struct job_spec *s, const char **field, char *why, size_t n_why)
{
	const struct values *v = &u->to;
	CHECK("values", u->set, "values is empty: set micro_size, lr, clip_norm or clip_value");
	CHECK("values.micro_size",
	      !(u->set & VALUE_MICRO_SIZE) || (v->micro_size >= 1 && v->micro_size <= s->max_micro_size),
	      "micro_size is %u, must be 1..%u (max_micro_size of the job)", v->micro_size, s->max_micro_size);
	CHECK("values.lr", !(u->set & VALUE_LR) || s->optim.type != OPTIM_CLIENT,
	      "the trainers apply the steps of this job (optimizer client): it has no lr here");
	CHECK("values.lr", !(u->set & VALUE_LR) || commit_is_lr(v->lr), "lr is %g, must be 0..%g", v->lr, COMMIT_MAX);
	CHECK("values.clip_norm", !(u->set & VALUE_CLIP_NORM) || is_amount(v->clip_norm),
	      "clip_norm is %g, must be finite and >= 0 (0: off)", v->clip_norm);
	CHECK("values.clip_value", !(u->set & VALUE_CLIP_VALUE) || commit_is_limit(v->clip_value),
	      "clip_value is %g, must be 0 (off) or %g..%g, where f32 is normal", v->clip_value, COMMIT_MIN,
	      COMMIT_MAX);
	return ST_OK;
}

enum status updates_reserve(struct updates *u)
{
	struct update *item = array_grow(u->item, u->n, &u->capacity, sizeof(*item));
	if (!item)
		return ST_NO_MEMORY;
	u->item = item;
	return ST_OK;
}

enum status updates_put(struct updates *u, const struct update *add)
{
	enum status st = updates_reserve(u);
	if (st)
		return st;
	uint32_t at = u->n++;
	for (; at && u->item[at - 1].window > add->window; at--)
		u->item[at] = u->item[at - 1];
	u->item[at] = *add;
	return ST_OK;
}

struct values updates_at(const struct updates *u, struct values now, uint64_t window)
{
	for (uint32_t i = 0; i < u->n && u->item[i].window <= window; i++)
		update_apply(&now, &u->item[i]);
	return now;
}

struct values updates_take(struct updates *u, struct values now, uint64_t window)
{
	uint32_t k = 0;
	now = updates_at(u, now, window);
	while (k < u->n && u->item[k].window <= window)
		k++;
	u->n -= k;
	if (u->n)
		memmove(u->item, u->item + k, u->n * sizeof(*u->item));
	return now;
}

/* The values in which a and b differ, as VALUE_* bits. */
static uint32_t difference(const struct values *a, const struct values *b)
{
	return (a->micro_size != b->micro_size ? VALUE_MICRO_SIZE : 0) | (a->lr != b->lr ? VALUE_LR : 0) |
	       (a->clip_norm != b->clip_norm ? VALUE_CLIP_NORM : 0) |
	       (a->clip_value != b->clip_value ? VALUE_CLIP_VALUE : 0);
}

uint32_t updates_beyond_spec(const struct updates *u, struct values now, const struct job_spec *spec, uint64_t window,
			     struct update out[UPDATES_MAX_PENDING + 1])
{
	struct values first = values_of(spec), there = updates_at(u, now, window);
	uint32_t n = 0, set = difference(&first, &there);
	if (set)
		out[n++] = (struct update){ window, set, there };
	for (uint32_t i = 0; i < u->n && n <= UPDATES_MAX_PENDING; i++)
		if (u->item[i].window > window)
			out[n++] = u->item[i];
	return n;
}

bool updates_ascend(const struct update *list, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (list[i].window < list[i - 1].window)
			return false;
	return true;
}

uint32_t updates_inherit(struct update *list, uint32_t *n, const struct job_spec *was, const struct job_spec *is)
{
	struct values a = values_of(was), b = values_of(is);
	uint32_t other = difference(&a, &b), taken = 0, kept = 0;
	for (uint32_t i = 0; i < *n; i++) {
		taken |= list[i].set & other;
		list[i].set &= ~other;
		if (list[i].set)
			list[kept++] = list[i];
	}
	*n = kept;
	return taken;
}

void update_describe(const struct update *u, struct values from, char *text, size_t n)
{
	const struct {
		const char *name;
		double from, to;
	} all[] = { { "micro_size", from.micro_size, u->to.micro_size },
		    { "lr", from.lr, u->to.lr },
		    { "clip_norm", from.clip_norm, u->to.clip_norm },
		    { "clip_value", from.clip_value, u->to.clip_value } };
	int at = 0;
	text[0] = '\0';
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (u->set & 1u << i && at < (int)n)
			at += snprintf(text + at, n - (size_t)at, "%s%s %g -> %g", at ? ", " : "", all[i].name,
				       all[i].from, all[i].to);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which micro-batches of the open window this rank still owes, for
 * gacc_next. Pure bookkeeping; the job's thread. */
#include "lib/window.h"

#include <stdlib.h>

static bool contains(const uint32_t *set, size_t n, uint32_t v)
{
	for (size_t i = 0; i < n; i++)
		if (set[i] == v)
			return true;
	return false;
}

static bool ascending_below(const uint32_t *v, size_t n, uint32_t limit)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] >= limit || (i > 0 && v[i] <= v[i - 1]))
			return false;
	return true;
}

static enum status reserve(struct window *w, size_t n)
{
	uint32_t *p;

	if (n <= w->room)
		return ST_OK;
	p = realloc(w->missing, n * sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	w->missing = p;
	w->room = n;
	return ST_OK;
}

static void open_at(struct window *w, uint64_t number, uint64_t applied_step, uint32_t micro_size, double loss_scale)
{
	w->number = number;
	w->applied_step = applied_step;
	w->micro_size = micro_size;
	w->loss_scale = loss_scale > 0 ? loss_scale : 1;
	w->n_missing = 0;
	w->at = 0;
}

enum status window_begin(struct window *w, uint64_t number, uint64_t applied_step, uint32_t micro_size,
			 double loss_scale)
{
	enum status st = reserve(w, micro_size);

	if (st)
		return st;
	open_at(w, number, applied_step, micro_size, loss_scale);
	for (uint32_t i = 0; i < micro_size; i++)
		w->missing[w->n_missing++] = i;
	return ST_OK;
}

enum status window_resume(struct window *w, uint64_t number, uint64_t applied_step, uint32_t micro_size,
			  double loss_scale, const uint32_t *missing, size_t n, const uint32_t *queued, size_t n_queued)
{
	enum status st;

	if (!ascending_below(missing, n, micro_size))
		return ST_MALFORMED;
	st = reserve(w, n);
	if (st)
		return st;
	open_at(w, number, applied_step, micro_size, loss_scale);
	for (size_t i = 0; i < n; i++)
		if (!contains(queued, n_queued, missing[i]))
			w->missing[w->n_missing++] = missing[i];
	return ST_OK;
}

bool window_next(const struct window *w, uint32_t *out_micro, bool *out_last)
{
	if (w->at >= w->n_missing)
		return false;
	*out_micro = w->missing[w->at];
	*out_last = w->at + 1 == w->n_missing;
	return true;
}

void window_pushed(struct window *w, uint32_t micro)
{
	while (w->at < w->n_missing && w->missing[w->at] <= micro)
		w->at++;
}

void window_give_up(struct window *w)
{
	w->at = w->n_missing;
}

void window_fini(struct window *w)
{
	free(w->missing);
	*w = (struct window){ 0 };
}

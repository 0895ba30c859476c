/* SPDX-License-Identifier: Apache-2.0 */
/* Takes what the ranks of a job log, checks it against the job's bounds and windows and its user's share of the
 * recorder, and hands it to that at each tick. For methods_scalars.c and the views. Loop thread. */
#include "edge/hosted_scalars.h"

#include "gacc/v1/job.pb-c.h"
#include "runtime/recorder.h"
#include "runtime/scalars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELL_NS 60000000000 /* at least between two events about refused values */

/* While a commit is on its way to the parts, and after a restart of this gaccd until all have said where they are, some
 * may have opened the next window already, and their ranks log for it. */
static uint64_t newest_window(const struct hosted *h)
{
	return hosted_window(h) + (coord_phase(h->coord) == COORD_COMMIT);
}

static enum status check_place(const struct hosted *h, uint64_t window, uint32_t rank, size_t n, char *why,
			       size_t n_why)
{
	uint64_t open = newest_window(h);
	if (rank >= h->spec->ranks) {
		snprintf(why, n_why, "rank is %u, and the job has %u ranks", rank, h->spec->ranks);
		return ST_INVALID_ARGUMENT;
	}
	if (n > SCALARS_NAMES) {
		snprintf(why, n_why, "%zu values at once, and a job may have %d names", n, SCALARS_NAMES);
		return ST_INVALID_ARGUMENT;
	}
	if (window > open) {
		snprintf(why, n_why, "window %llu is not open yet: %llu is", (unsigned long long)window,
			 (unsigned long long)open);
		return ST_NOT_CURRENT_WINDOW;
	}
	if (window + SCALARS_WINDOWS > open)
		return ST_OK;
	snprintf(why, n_why, "window %llu is over for too long: %llu is open, and only the %d before it take values",
		 (unsigned long long)window, (unsigned long long)open, SCALARS_WINDOWS - 1);
	return ST_WINDOW_FORGOTTEN;
}

/* Names that are new count one by one: the first that is too many refuses them all. */
static enum status check_names(const struct scalars *s, Gacc__V1__Scalar *const *v, size_t n, char *why, size_t n_why)
{
	struct scalars *trial = malloc(sizeof(*trial));
	enum status st = trial ? ST_OK : ST_NO_MEMORY;
	if (trial) {
		*trial = *s;
		trial->n_waiting = 0; /* only its names matter */
	}
	for (size_t i = 0; i < n && !st; i++) {
		st = scalars_check(trial, v[i]->name, why, n_why);
		if (!st)
			scalars_put(trial, 0, 0, v[i]->name, 0);
	}
	free(trial);
	return st;
}

static size_t places(const struct scalars *s, uint64_t window, Gacc__V1__Scalar *const *v, size_t n)
{
	size_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += scalars_takes_place(s, window, v[i]->name);
	return all;
}

/* The table has a place for each name and each window that takes values, so it is full only when windows end faster
 * than the recorder takes them. */
static enum status make_room(struct hosted *h, uint64_t window, Gacc__V1__Scalar *const *v, size_t n, char *why,
			     size_t n_why)
{
	struct scalars *s = h->scalars;
	const size_t want = places(s, window, v, n);
	if (s->n_waiting + want > SCALARS_WAITING)
		hosted_scalars_write(h);
	if (s->n_waiting + want <= SCALARS_WAITING)
		return ST_OK;
	s->refused += n;
	snprintf(
		why, n_why,
		"the disk of gaccd's history is too slow: %u values of this job wait for it, and %zu of all your jobs; "
		"none of these %zu is kept",
		s->n_waiting, RECORDER_USER_SCALARS - recorder_scalars_room(h->d->recorder, h->uid), n);
	return ST_RESOURCE_EXHAUSTED;
}

enum status hosted_scalars_put(struct hosted *h, uint64_t window, uint32_t rank, Gacc__V1__Scalar *const *v, size_t n,
			       char *why, size_t n_why)
{
	enum status st = check_place(h, window, rank, n, why, n_why);
	if (st)
		return st;
	if (!h->scalars)
		h->scalars = calloc(1, sizeof(*h->scalars));
	st = h->scalars ? check_names(h->scalars, v, n, why, n_why) : ST_NO_MEMORY;
	if (!st)
		st = make_room(h, window, v, n, why, n_why);
	for (size_t i = 0; i < n && !st; i++)
		scalars_put(h->scalars, window, rank, v[i]->name, v[i]->value);
	return st;
}

static void write_one(void *arg, const struct history_scalar *v)
{
	const struct hosted *h = arg;
	struct history_scalar row = *v;
	row.job = h->id;
	recorder_put_scalar(h->d->recorder, h->uid, &row);
}

void hosted_scalars_write(struct hosted *h)
{
	struct recorder *r = h->d->recorder;
	if (!h->scalars)
		return;
	if (recorder_scalars_room(r, h->uid) < h->scalars->n_waiting)
		recorder_flush(r);
	scalars_take(h->scalars, recorder_scalars_room(r, h->uid), write_one, h);
}

void hosted_scalars_end(struct hosted *h)
{
	if (h->scalars)
		/* once for each job: the share may be exceeded */
		scalars_take(h->scalars, SCALARS_WAITING, write_one, h);
	free(h->scalars);
	h->scalars = NULL;
}

void hosted_scalars_tick(struct hosted *h, struct now now)
{
	struct scalars *s = h->scalars;
	char text[200];
	hosted_scalars_write(h);
	if (!s || !s->refused || (s->told_ns && now.mono_ns - s->told_ns < TELL_NS))
		return;
	snprintf(text, sizeof(text),
		 "%llu values that ranks have logged were refused: the disk of gaccd's history is too slow for the "
		 "jobs of uid %u",
		 (unsigned long long)s->refused, h->uid);
	hosted_event(h, true, "ScalarsRefused", -1, text);
	s->refused = 0;
	s->told_ns = now.mono_ns;
}

bool scalars_message(const struct history_scalar *v, size_t n, Gacc__V1__Scalar ***out, size_t *out_n)
{
	*out = calloc(n + 1, sizeof(**out));
	for (size_t i = 0; *out && i < n; i++) {
		Gacc__V1__Scalar *m = malloc(sizeof(*m));
		if (!m)
			return false;
		gacc__v1__scalar__init(m);
		(*out)[(*out_n)++] = m;
		m->value = v[i].value;
		m->rank = v[i].rank;
		m->window = v[i].window;
		m->name = strdup(v[i].name);
		if (!m->name)
			return false;
	}
	return *out != NULL;
}

bool hosted_scalars_fill(const struct hosted *h, Gacc__V1__Job *j)
{
	return !h->scalars || scalars_message(h->scalars->newest, h->scalars->n_names, &j->scalars, &j->n_scalars);
}

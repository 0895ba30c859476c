/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the values that trainers log until they are written: a table of names, and one of values by name and window.
 * For edge's hosted_scalars.c. Pure. */
#include "runtime/scalars.h"

#include "proto/utf8.h"

#include <stdio.h>
#include <string.h>

static uint32_t find(const struct scalars *s, const char *name)
{
	uint32_t i = 0;
	while (i < s->n_names && strcmp(s->newest[i].name, name) != 0)
		i++;
	return i;
}

static bool is_shown_as_it_is(const char *name)
{
	char escape[UTF8_ESCAPE_MAX];
	const char *end = name + strlen(name);
	while (name < end) {
		if (!utf8_length(name, end))
			return false;
		name += utf8_escape(name, end, UTF8_TEXT, escape);
		if (*escape)
			return false;
	}
	return true;
}

enum status scalars_check(const struct scalars *s, const char *name, char *why, size_t n_why)
{
	size_t n = strlen(name);
	if (!n || n >= HISTORY_SCALAR_NAME || !is_shown_as_it_is(name)) {
		snprintf(why, n_why, "a name has 1 to %d bytes of printable UTF-8, and this one has %zu",
			 HISTORY_SCALAR_NAME - 1, n);
		return ST_INVALID_ARGUMENT;
	}
	if (find(s, name) < SCALARS_NAMES)
		return ST_OK;
	snprintf(why, n_why, "\"%s\" would be one more than the %d names that a job may have: log fewer", name,
		 SCALARS_NAMES);
	return ST_INVALID_ARGUMENT;
}

/* Is this value of less account than one of that rank and window? */
static bool is_behind(uint64_t window, uint32_t rank, uint64_t its_window, uint32_t its_rank)
{
	return window < its_window || (window == its_window && rank > its_rank);
}

static void note_newest(struct scalars *s, uint32_t i, uint64_t window, uint32_t rank, double value)
{
	struct history_scalar *to = &s->newest[i];
	if (is_behind(window, rank, to->window, to->rank))
		return;
	to->window = window;
	to->rank = rank;
	to->value = value;
}

static uint32_t find_waiting(const struct scalars *s, uint64_t window, uint32_t name)
{
	uint32_t i = 0;
	while (i < s->n_waiting && !(s->waiting[i].name == name && s->waiting[i].window == window))
		i++;
	return i;
}

bool scalars_takes_place(const struct scalars *s, uint64_t window, const char *name)
{
	return find_waiting(s, window, find(s, name)) == s->n_waiting;
}

bool scalars_put(struct scalars *s, uint64_t window, uint32_t rank, const char *name, double value)
{
	uint32_t at = find(s, name), i = find_waiting(s, window, at);
	if (i == SCALARS_WAITING)
		return false;
	if (at == s->n_names) {
		s->newest[at] = (struct history_scalar){ .rank = UINT32_MAX };
		snprintf(s->newest[at].name, sizeof(s->newest[at].name), "%s", name);
		s->n_names++;
	}
	note_newest(s, at, window, rank, value);
	if (i < s->n_waiting && rank > s->waiting[i].rank)
		return true;
	s->n_waiting += i == s->n_waiting;
	s->waiting[i].window = window;
	s->waiting[i].name = at;
	s->waiting[i].rank = rank;
	s->waiting[i].value = value;
	return true;
}

void scalars_take(struct scalars *s, size_t most, void (*fn)(void *arg, const struct history_scalar *), void *arg)
{
	const uint32_t n = most < s->n_waiting ? (uint32_t)most : s->n_waiting;
	for (uint32_t i = 0; i < n; i++) {
		struct history_scalar v = s->newest[s->waiting[i].name];
		v.window = s->waiting[i].window;
		v.rank = s->waiting[i].rank;
		v.value = s->waiting[i].value;
		fn(arg, &v);
	}
	s->n_waiting -= n;
	memmove(s->waiting, s->waiting + n, s->n_waiting * sizeof(s->waiting[0]));
}

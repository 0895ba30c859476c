/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the shares of an optimizer state together again from the names in their files, so that they can be read by a job
 * whose parts have other shares, or none. For snapshot_restore.c, on the engine's main thread; no I/O. */
#include "engine/snapshot_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number as it is written, without signs, spaces or zeros before it; NULL: there is none. */
static const char *read_number(const char *at, uint64_t *out)
{
	char *end;
	if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9'))
		return NULL;
	*out = strtoull(at, &end, 10);
	return end;
}

bool snapshot_slice_of(const char *name, size_t *n_name, struct snapshot_slice *out)
{
	const char *open = strrchr(name, '['), *at = open ? read_number(open + 1, &out->from) : NULL;
	*n_name = strlen(name);
	at = at && *at == ':' ? read_number(at + 1, &out->end) : NULL;
	if (!at || strcmp(at, "]") != 0)
		return false;
	*n_name = (size_t)(open - name);
	return true;
}

/* ---- all of them together ---- */

static int by_name(const void *a, const void *b, void *list)
{
	const struct snapshot_entry *e = ((const struct snapshot_list *)list)->entry;
	return strcmp(e[*(const uint64_t *)a].safe.name, e[*(const uint64_t *)b].safe.name);
}

enum status snapshot_cover_init(struct snapshot_cover *c, const struct snapshot_list *whole)
{
	*c = (struct snapshot_cover){ .whole = whole,
				      .by_name = calloc(whole->n + 1, sizeof(*c->by_name)),
				      .have = calloc(whole->n + 1, sizeof(*c->have)) };
	if (!c->by_name || !c->have) {
		snapshot_cover_fini(c);
		return ST_NO_MEMORY;
	}
	for (uint64_t i = 0; i < whole->n; i++)
		c->by_name[i] = i;
	qsort_r(c->by_name, whole->n, sizeof(*c->by_name), by_name, (void *)whole);
	return ST_OK;
}

void snapshot_cover_fini(struct snapshot_cover *c)
{
	free(c->by_name);
	free(c->have);
	*c = (struct snapshot_cover){ .whole = NULL };
}

/* The entry with the name that the first n bytes are; NULL: none. */
static const struct snapshot_entry *find(const struct snapshot_cover *c, const char *name, size_t n)
{
	uint64_t low = 0, high = c->whole->n;
	while (low < high) {
		const uint64_t mid = low + (high - low) / 2;
		const struct snapshot_entry *e = &c->whole->entry[c->by_name[mid]];
		const int order = strncmp(name, e->safe.name, n);
		if (!order && !e->safe.name[n])
			return e;
		if (order > 0)
			low = mid + 1;
		else
			high = mid; /* also where the entry's name goes on */
	}
	return NULL;
}

static uint64_t elements(const struct safe_tensor *t)
{
	uint64_t n = 1;
	for (int i = 0; i < t->n_dims; i++)
		n *= t->shape[i];
	return n;
}

static bool is_whole(const struct safe_tensor *t, const struct safe_tensor *want)
{
	return t->n_dims == want->n_dims && !memcmp(t->shape, want->shape, (size_t)t->n_dims * sizeof(*t->shape));
}

enum status snapshot_cover_add(struct snapshot_cover *c, const char *file, const struct safe_tensor *t,
			       uint64_t *out_entry, uint64_t *out_from, char *why, size_t n_why)
{
	struct snapshot_slice s = { 0, 0 };
	size_t n_name;
	const bool sliced = snapshot_slice_of(t->name, &n_name, &s);
	const struct snapshot_entry *e = find(c, t->name, n_name);
	if (!e || t->dtype != e->safe.dtype ||
	    (sliced ? t->n_dims != 1 || s.end < s.from || t->shape[0] != s.end - s.from : !is_whole(t, &e->safe))) {
		snprintf(why, n_why, "%s: \"%.120s\" is no part of the job's state, or has another shape or dtype",
			 file, t->name);
		return ST_LAYOUT_MISMATCH;
	}
	const uint64_t i = (uint64_t)(e - c->whole->entry), all = elements(&e->safe);
	if (!sliced)
		s.end = all;
	if (s.from != c->have[i] || s.end > all || s.end == s.from) {
		snprintf(why, n_why,
			 "%s: \"%.120s\" does not go on where the shares before it end, at element %" PRIu64, file,
			 t->name, c->have[i]);
		return ST_MALFORMED;
	}
	c->have[i] = s.end;
	*out_entry = i;
	*out_from = s.from;
	return ST_OK;
}

enum status snapshot_cover_end(const struct snapshot_cover *c, char *why, size_t n_why)
{
	for (uint64_t i = 0; i < c->whole->n; i++) {
		const struct safe_tensor *t = &c->whole->entry[i].safe;
		if (c->have[i] == elements(t))
			continue;
		snprintf(why, n_why,
			 "the files of all shares have %" PRIu64 " of the %" PRIu64 " elements of \"%.120s\"",
			 c->have[i], elements(t), t->name);
		return ST_MALFORMED;
	}
	return ST_OK;
}

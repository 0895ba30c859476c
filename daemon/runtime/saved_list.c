/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a job's checkpoints, in the order of ids: finds, adds and removes them, and cuts pages for
 * ListCheckpoints. For edge's checkpoints.c and checkpoints_disk.c. Loop thread. */
#include "runtime/saved_list.h"

#include "base/array.h"
#include "proto/utf8.h"

#include <stdlib.h>
#include <string.h>

struct saved *saved_find(const struct saved_list *s, uint64_t id)
{
	for (size_t i = s->n; i-- > 0;)
		if (s->saved[i].id == id)
			return &s->saved[i];
	return NULL;
}

struct saved *saved_add(struct saved_list *s, uint64_t id, const uint8_t request_id[16])
{
	struct saved *list = array_grow(s->saved, s->n, &s->capacity, sizeof(*list));
	if (!list)
		return NULL;
	s->saved = list;
	struct saved *k = &s->saved[s->n++];
	*k = (struct saved){ .id = id, .state = SAVED_WRITING };
	memcpy(k->request_id, request_id, 16);
	return k;
}

void saved_set_text(char **to, const char *text)
{
	free(*to);
	*to = strdup(text); /* NULL is shown as "" */
	if (*to)
		utf8_repair(*to);
}

void saved_remove(struct saved_list *s, uint64_t id)
{
	struct saved *k = saved_find(s, id);
	if (!k)
		return;
	free(k->path);
	free(k->message);
	memmove(k, k + 1, (size_t)(s->saved + --s->n - k) * sizeof(*k));
}

void saved_forget_failures(struct saved_list *s, uint64_t but)
{
	for (size_t i = s->n; i-- > 0;)
		if (s->saved[i].state == SAVED_FAILED && s->saved[i].id != but)
			saved_remove(s, s->saved[i].id);
}

/* How many have a smaller id. */
static size_t below(const struct saved_list *s, uint64_t id)
{
	size_t lo = 0, hi = s->n;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (s->saved[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

size_t saved_page(const struct saved_list *s, uint64_t before_id, uint32_t limit, size_t *out_n)
{
	size_t end = before_id ? below(s, before_id) : s->n;
	size_t n = limit && limit < SAVED_MAX_PAGE ? limit : SAVED_MAX_PAGE;
	*out_n = n < end ? n : end;
	return end - *out_n;
}

size_t saved_complete(const struct saved_list *s)
{
	size_t n = 0;
	for (size_t i = 0; i < s->n; i++)
		n += s->saved[i].state == SAVED_COMPLETE;
	return n;
}

const struct saved *saved_newest(const struct saved_list *l)
{
	for (size_t i = l->n; i-- > 0;)
		if (l->saved[i].state == SAVED_COMPLETE)
			return &l->saved[i];
	return NULL;
}

void saved_fini(struct saved_list *s)
{
	while (s->n)
		saved_remove(s, s->saved[s->n - 1].id);
	free(s->saved);
	*s = (struct saved_list){ .n = 0 };
}

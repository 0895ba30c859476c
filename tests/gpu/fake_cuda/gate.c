/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes windows of device memory with mprotect. There are few windows, hence a list. */
#include "gate.h"

#include <sys/mman.h>

static struct window *windows;
static unsigned users[MAX_DEVICES]; /* operations that run now */

void gate_refresh(void)
{
	for (struct window *w = windows; w; w = w->next) {
		int access = PROT_NONE;
		for (unsigned d = 0; d < MAX_DEVICES; d++)
			if (users[d])
				access |= w->access[d];
		if (access != w->now)
			mprotect(w->at, w->n, access);
		w->now = access;
	}
}

void gate_add(struct window *w)
{
	w->next = windows;
	windows = w;
	gate_refresh();
}

void gate_remove(struct window *w)
{
	struct window **at = &windows;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

void gate_open(unsigned devices)
{
	for (unsigned d = 0; d < MAX_DEVICES; d++)
		users[d] += devices >> d & 1;
	gate_refresh();
}

void gate_close(unsigned devices)
{
	for (unsigned d = 0; d < MAX_DEVICES; d++)
		users[d] -= devices >> d & 1;
	gate_refresh();
}

struct window *gate_find(const void *p)
{
	for (struct window *w = windows; w; w = w->next)
		if ((const char *)p >= w->at && (const char *)p < w->at + w->n)
			return w;
	return NULL;
}

bool gate_covers(const void *p, size_t n)
{
	const char *at = p, *end = at + n;
	if (end < at)
		return false;
	while (at < end) {
		struct window *w = gate_find(at);
		if (!w)
			return false;
		at = w->at + w->n;
	}
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reference-counted bytes that several parts of gaccd read and none changes; the last release frees them. Any thread.
 */
#ifndef GACC_BASE_SHARED_H
#define GACC_BASE_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

struct shared {
	atomic_uint holders;
	size_t n;
	void *data;
};

/* Takes `data`, from malloc; the caller is the first holder. NULL: no memory, and the data are still the caller's. */
static inline struct shared *shared_new(void *data, size_t n)
{
	struct shared *s = malloc(sizeof(*s));
	if (!s)
		return NULL;
	atomic_init(&s->holders, 1);
	s->n = n;
	s->data = data;
	return s;
}

static inline struct shared *shared_hold(struct shared *s)
{
	atomic_fetch_add(&s->holders, 1);
	return s;
}

static inline void shared_drop(struct shared *s) /* takes NULL */
{
	if (!s || atomic_fetch_sub(&s->holders, 1) != 1)
		return;
	free(s->data);
	free(s);
}

#endif

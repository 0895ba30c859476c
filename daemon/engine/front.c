/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how far an update of the own share has got, and lets one thread wait for it. For update.c, which moves the
 * front, and share_params.c, which gives away what lies before it; threads as front.h says. */
#include "engine/front.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define NOBODY UINT64_MAX

struct run {
	_Alignas(64) _Atomic uint64_t done; /* elements below it */
};

struct front {
	uint32_t n;
	uint64_t *bounds; /* [n + 1] */
	struct run *run;  /* [n] */
	/* what is waited for; NOBODY waits */
	_Atomic uint64_t wanted;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* the mutex */
	bool ended;
	struct arith_share share;
};

enum status front_new(struct front **out, uint32_t n, const uint64_t *bounds)
{
	struct front *f = calloc(1, sizeof(*f));
	if (!f)
		return ST_NO_MEMORY;
	pthread_mutex_init(&f->mutex, NULL);
	pthread_cond_init(&f->changed, NULL);
	f->n = n;
	f->bounds = calloc(n + 1, sizeof(*f->bounds));
	f->run = aligned_alloc(64, n * sizeof(*f->run));
	if (!f->bounds || !f->run) {
		front_free(f);
		return ST_NO_MEMORY;
	}
	for (uint32_t s = 0; s <= n; s++)
		f->bounds[s] = bounds[s];
	front_begin(f);
	*out = f;
	return ST_OK;
}

void front_free(struct front *f)
{
	if (!f)
		return;
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->mutex);
	free(f->bounds);
	free(f->run);
	free(f);
}

/* ---- who moves it ---- */

void front_begin(struct front *f)
{
	pthread_mutex_lock(&f->mutex);
	f->ended = false;
	for (uint32_t s = 0; s < f->n; s++)
		atomic_store(&f->run[s].done, f->bounds[s]);
	atomic_store(&f->wanted, NOBODY);
	pthread_mutex_unlock(&f->mutex);
}

static void wake(struct front *f)
{
	pthread_mutex_lock(&f->mutex);
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->mutex);
}

/* The store comes before the look at who waits, and who waits says so before it looks at the stores, in one order for
 * all: one of the two sees the other. Most calls wake nobody: they are many more than pieces. */
void front_reach(struct front *f, uint32_t run, uint64_t element)
{
	atomic_store(&f->run[run].done, element);
	const uint64_t wanted = atomic_load(&f->wanted);
	if (wanted != NOBODY && (element >= wanted || element == f->bounds[run + 1]))
		wake(f);
}

void front_end(struct front *f, const struct arith_share *share)
{
	pthread_mutex_lock(&f->mutex);
	f->share = *share;
	f->ended = true;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->mutex);
}

/* ---- who waits for it ---- */

static bool is_done(struct front *f, uint64_t element)
{
	for (uint32_t s = 0; s < f->n && f->bounds[s] < element; s++) {
		const uint64_t done = atomic_load(&f->run[s].done);
		if (done < element && done < f->bounds[s + 1])
			return false;
	}
	return true;
}

void front_wait(struct front *f, uint64_t element)
{
	if (is_done(f, element))
		return;
	pthread_mutex_lock(&f->mutex);
	atomic_store(&f->wanted, element);
	while (!f->ended && !is_done(f, element))
		pthread_cond_wait(&f->changed, &f->mutex);
	atomic_store(&f->wanted, NOBODY);
	pthread_mutex_unlock(&f->mutex);
}

struct arith_share front_wait_end(struct front *f)
{
	pthread_mutex_lock(&f->mutex);
	while (!f->ended)
		pthread_cond_wait(&f->changed, &f->mutex);
	const struct arith_share share = f->share;
	pthread_mutex_unlock(&f->mutex);
	return share;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's worker threads: a counter hands out the items of a piece of work. For the passes and updates of
 * arith_host.c and the copies of snapshot.c; called by one thread at a time, the engine's main thread. */
#include "engine/workers.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_ROUNDS 2000 /* some tens of microseconds: a sleeping thread takes as long to wake */

#define BEAT_NS (200 * INT64_C(1000000))

#define CLOSED (UINT32_C(1) << 31) /* no thread may begin: all items are given out */

struct workers {
	uint32_t n, n_started; /* threads; started ones, the caller not among them */
	int spin;
	pthread_t *thread;
	workers_fn *fn; /* the piece at hand, published by `inside` */
	void *arg;
	uint32_t n_items;
	_Atomic bool stop;
	_Alignas(64) _Atomic uint32_t piece; /* number of the piece; futex of the idle */
	_Atomic uint32_t asleep;
	_Alignas(64) _Atomic uint32_t next;   /* item */
	_Alignas(64) _Atomic uint32_t inside; /* threads that work on the piece, and CLOSED; futex of the caller */
	_Atomic uint32_t caller_asleep;
	workers_heartbeat *heartbeat;
	void *heartbeat_arg;
	int64_t beat_ns;		       /* the last one, or the turn's beginning; the caller */
	_Alignas(64) _Atomic bool has_stepped; /* since then; of any thread */
};

struct start {
	struct workers *w;
	uint32_t index;
};

#if defined(__x86_64__)
#include <xmmintrin.h>
static void relax(void)
{
	_mm_pause();
}
void workers_flush_subnormals(void)
{
	_mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ | DAZ */
}
#elif defined(__aarch64__)
static void relax(void)
{
	__asm__ volatile("yield");
}
void workers_flush_subnormals(void)
{
	uint64_t fpcr;
	__asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
	__asm__ volatile("msr fpcr, %0" : : "r"(fpcr | UINT64_C(1) << 24));
}
#else
#error "gacc runs on x86-64 and arm64"
#endif

/* For at most BEAT_NS if `beats`. */
static void futex_wait(_Atomic uint32_t *at, uint32_t value, bool beats)
{
	static const struct timespec most = { .tv_nsec = BEAT_NS };
	syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, beats ? &most : NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at)
{
	syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- heartbeats ---- */

void workers_set_heartbeat(struct workers *w, workers_heartbeat *fn, void *arg)
{
	w->heartbeat = fn;
	w->heartbeat_arg = arg;
	workers_begin_turn(w);
}

void workers_begin_turn(struct workers *w)
{
	w->beat_ns = clock_ns(CLOCK_MONOTONIC_COARSE);
	atomic_store_explicit(&w->has_stepped, false, memory_order_relaxed);
}

/* On the caller's thread, after each step: a clock that is fast to read, and good to some milliseconds. */
static void beat_if_due(struct workers *w)
{
	int64_t now = clock_ns(CLOCK_MONOTONIC_COARSE);
	if (now - w->beat_ns < BEAT_NS || !atomic_exchange(&w->has_stepped, false))
		return;
	w->beat_ns = now;
	w->heartbeat(w->heartbeat_arg);
}

void workers_note_step(struct workers *w, uint32_t worker)
{
	if (!w->heartbeat)
		return;
	if (!atomic_load_explicit(&w->has_stepped, memory_order_relaxed))
		atomic_store_explicit(&w->has_stepped, true, memory_order_relaxed);
	if (!worker)
		beat_if_due(w);
}

/* ---- waiting ---- */

/* Until *at is no longer `value`. The sleeper counts itself before it looks again, the waker changes *at before it
 * counts sleepers: one of the two sees the other. */
static void wait_change(struct workers *w, _Atomic uint32_t *at, uint32_t value, _Atomic uint32_t *sleepers)
{
	bool beats = sleepers == &w->caller_asleep && w->heartbeat;
	for (int i = 0; i < w->spin; i++) {
		if (atomic_load_explicit(at, memory_order_acquire) != value)
			return;
		relax();
	}
	atomic_fetch_add(sleepers, 1);
	while (atomic_load(at) == value) {
		futex_wait(at, value, beats);
		if (beats)
			beat_if_due(w);
	}
	atomic_fetch_sub(sleepers, 1);
}

static void work(struct workers *w, uint32_t worker)
{
	uint32_t item;
	while ((item = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->n_items) {
		w->fn(w->arg, item, worker);
		workers_note_step(w, worker);
	}
}

static bool enter(struct workers *w)
{
	uint32_t inside = atomic_load(&w->inside);
	while (!(inside & CLOSED))
		if (atomic_compare_exchange_weak(&w->inside, &inside, inside + 1))
			return true;
	return false;
}

static void leave(struct workers *w)
{
	if (atomic_fetch_sub(&w->inside, 1) == (CLOSED | 1) && atomic_load(&w->caller_asleep))
		futex_wake(&w->inside);
}

/* A thread that comes late finds the piece closed, or a newer one: the caller never waits for a thread that has no
 * CPU. */
static void *thread_main(void *arg)
{
	struct start s = *(struct start *)arg;
	struct workers *w = s.w;
	free(arg);
	workers_flush_subnormals();
	for (uint32_t seen = 0;;) {
		wait_change(w, &w->piece, seen, &w->asleep);
		seen = atomic_load(&w->piece);
		if (w->stop)
			return NULL;
		if (!enter(w))
			continue;
		work(w, s.index);
		leave(w);
	}
}

static bool start_thread(struct workers *w, uint32_t index)
{
	struct start *s = malloc(sizeof(*s));
	if (!s)
		return false;
	*s = (struct start){ w, index };
	int error = pthread_create(&w->thread[w->n_started], NULL, thread_main, s);
	if (error) {
		log_error("starting engine thread %u: %s", index, strerror(error));
		free(s);
		return false;
	}
	w->n_started++;
	return true;
}

enum status workers_new(struct workers **out, uint32_t n)
{
	struct workers *w = aligned_alloc(64, sizeof(*w));
	if (!w)
		return ST_NO_MEMORY;
	memset(w, 0, sizeof(*w));
	w->n = n;
	w->inside = CLOSED;
	w->spin = n <= (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) ? SPIN_ROUNDS : 0;
	w->thread = calloc(n, sizeof(*w->thread));
	if (!w->thread)
		goto fail;
	workers_flush_subnormals();
	for (uint32_t i = 1; i < n; i++)
		if (!start_thread(w, i))
			goto fail;
	*out = w;
	return ST_OK;
fail:
	workers_free(w);
	return ST_NO_MEMORY;
}

static void publish_piece(struct workers *w)
{
	atomic_fetch_add(&w->piece, 1);
	if (atomic_load(&w->asleep))
		futex_wake(&w->piece);
}

void workers_free(struct workers *w)
{
	if (!w)
		return;
	w->stop = true;
	publish_piece(w);
	for (uint32_t i = 0; i < w->n_started; i++)
		pthread_join(w->thread[i], NULL);
	free(w->thread);
	free(w);
}

void workers_run(struct workers *w, workers_fn *fn, void *arg, uint32_t n_items, bool alone)
{
	if (alone || w->n == 1 || n_items <= 1) {
		for (uint32_t i = 0; i < n_items; i++) {
			fn(arg, i, 0);
			workers_note_step(w, 0);
		}
		return;
	}
	w->fn = fn;
	w->arg = arg;
	w->n_items = n_items;
	atomic_store_explicit(&w->next, 0, memory_order_relaxed);
	atomic_store(&w->inside, 0);
	publish_piece(w);
	work(w, 0);
	atomic_fetch_or(&w->inside, CLOSED);
	for (uint32_t inside; (inside = atomic_load(&w->inside)) != CLOSED;)
		wait_change(w, &w->inside, inside, &w->caller_asleep);
}

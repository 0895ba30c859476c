/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the rows that say how far each rank is in the open window, and raises `told`. Written for push.c on
 * the engine's main thread; read by gaccd, which also raises `told`, on any thread. */
#include "engine/progress.h"

#include <string.h>
#include <time.h>

int64_t progress_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The time is 0 while the rest changes, and another one afterwards. */
void progress_park(struct status_rank *r, const struct progress_parked *p)
{
	if (atomic_load_explicit(&r->parked_since_mono_ns, memory_order_relaxed))
		atomic_store_explicit(&r->parked_since_mono_ns, 0, memory_order_relaxed);
	if (!p)
		return;
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&r->parked_micro, p->micro, memory_order_relaxed);
	atomic_store_explicit(&r->blocked_by, p->blocked_by, memory_order_relaxed);
	atomic_store_explicit(&r->parked_since_mono_ns, p->since_mono_ns, memory_order_release);
}

bool progress_parked(const struct status_rank *row, struct progress_parked *out)
{
	struct status_rank *r = (struct status_rank *)row; /* C11 loads take no pointer to const */
	for (;;) {
		out->since_mono_ns = atomic_load_explicit(&r->parked_since_mono_ns, memory_order_acquire);
		if (!out->since_mono_ns)
			return false;
		out->micro = atomic_load_explicit(&r->parked_micro, memory_order_relaxed);
		out->blocked_by = atomic_load_explicit(&r->blocked_by, memory_order_relaxed);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&r->parked_since_mono_ns, memory_order_relaxed) == out->since_mono_ns)
			return true;
	}
}

void progress_ready(struct status_rank *r, bool has_given_all)
{
	bool was = atomic_load_explicit(&r->ready_mono_ns, memory_order_relaxed);
	if (was != has_given_all)
		atomic_store_explicit(&r->ready_mono_ns, has_given_all ? progress_clock() : 0, memory_order_relaxed);
}

void progress_note_told(struct status_progress *p, uint64_t seq)
{
	uint64_t was = atomic_load_explicit(&p->told, memory_order_relaxed);
	while (was < seq &&
	       !atomic_compare_exchange_weak_explicit(&p->told, &was, seq, memory_order_release, memory_order_relaxed))
		;
}

void progress_note_gpu(struct status_progress *p, const char *name)
{
	memset(p->gpu, 0, sizeof(p->gpu));
	memcpy(p->gpu, name, strnlen(name, sizeof(p->gpu)));
}

void progress_gpu(const struct status_progress *p, char out[STATUS_GPU_BYTES + 1])
{
	memcpy(out, p->gpu, sizeof(p->gpu));
	out[sizeof(p->gpu)] = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a part on a device: which descriptors its engine has made, and whether the engines before are over. For
 * part_memory.c and part_engine.c; loop thread.
 *
 * gaccd never loads a driver. The first engine makes the memory (ENGINE_ALLOCATE), and what gaccd has of it are
 * descriptors, which it stores as those of the other segments and gives to each later engine. */
#include "base/log.h"
#include "engine/progress.h"
#include "host/process.h"
#include "runtime/engine_proc.h"
#include "runtime/part.h"

#include <stdio.h>
#include <unistd.h>

/* For an engine of an earlier gaccd to end; then its successor waits, for the device. */
#define AWAIT_NS (INT64_C(10) * 1000000000)

static int first_of(const struct part *p)
{
	return plan_host_segments(p->mem.plan);
}

uint32_t part_device_segments(const struct part *p)
{
	return p->mem.plan ? (uint32_t)(p->mem.n - first_of(p)) : 0;
}

bool part_device_missing(const struct part *p)
{
	for (int i = first_of(p); i < p->mem.n; i++)
		if (p->mem.segment[i].fd < 0)
			return true;
	return false;
}

/* ---- making ---- */

void part_device_take(void *part, const int *fds, int n)
{
	struct part *p = part;
	if (!p->mem.making && part_slots_take_fds(p, fds, n))
		return;
	for (int i = 0; i < n; i++)
		if (p->mem.making && p->mem.n_made < (int)part_device_segments(p))
			p->mem.segment[first_of(p) + p->mem.n_made++].fd = fds[i];
		else
			close(fds[i]);
}

static void drop_made(struct part *p)
{
	while (p->mem.n_made) {
		struct segment *s = &p->mem.segment[first_of(p) + --p->mem.n_made];
		close(s->fd);
		*s = SEGMENT_NONE;
	}
}

void part_device_on_answer(struct part *p, const struct engine_answer *a)
{
	struct part_made *made = &p->mem.made;
	const uint32_t want = part_device_segments(p);
	if (!p->mem.making || made->is_over)
		return;
	if (!a->status && a->n_device == want && p->mem.n_made < (int)want)
		return; /* the others follow */
	made->is_over = true;
	if (!a->status && a->n_device == want) {
		p->engine.others_are_over = true;
		return;
	}
	made->status = a->status ? (enum status)a->status : ST_INTERNAL;
	if (a->status)
		snprintf(made->why, sizeof(made->why), "%s", *a->text ? a->text : status_info(made->status)->text);
	else
		snprintf(made->why, sizeof(made->why), "the engine has made %u pieces of the device's memory, not %u",
			 a->n_device, want);
	drop_made(p);
	engine_proc_close(p->engine.proc); /* it ends by itself */
	p->engine.proc = NULL;
}

void part_device_on_engine_lost(struct part *p)
{
	if (p->mem.making && !p->mem.made.is_over)
		drop_made(p);
}

/* ---- engines before ---- */

static struct status_progress *progress_of(struct part *p)
{
	unsigned char *status = part_map(p, SEG_STATUS, 0, true);
	return status ? (struct status_progress *)(status + STATUS_PROGRESS_OFFSET) : NULL;
}

/* It is kept here, as the segment is about to be told of another one. */
static void find_earlier(struct part *p)
{
	const struct status_progress *s = progress_of(p);
	p->engine.earlier_pid = s ? atomic_load(&s->engine_pid) : 0;
	p->engine.earlier_start_time = s ? atomic_load(&s->engine_start_time) : 0;
}

static bool earlier_is_over(const struct part *p)
{
	return p->engine.earlier_pid && process_is_over(p->engine.earlier_pid, p->engine.earlier_start_time);
}

/* Asked again at each start: one that was not over in time may be over when its successor has failed. */
bool part_device_waits(struct part *p, struct now now)
{
	if (!part_device_segments(p) || p->engine.others_are_over || part_device_missing(p))
		return false;
	if (!p->engine.awaits_since_ns) {
		p->engine.awaits_since_ns = now.mono_ns;
		find_earlier(p);
	}
	p->engine.others_are_over = earlier_is_over(p);
	p->engine.awaits = !p->engine.others_are_over && now.mono_ns - p->engine.awaits_since_ns < AWAIT_NS;
	return p->engine.awaits;
}

void part_device_note(struct part *p, int64_t pid)
{
	struct status_progress *s = part_device_segments(p) ? progress_of(p) : NULL;
	if (!s)
		return;
	const bool known = pid && (p->engine.others_are_over || p->mem.making);
	atomic_store(&s->engine_pid, 0);
	atomic_store(&s->engine_start_time, known ? process_start_time(pid) : 0);
	atomic_store(&s->engine_pid, known ? pid : 0);
}

void part_device_gpu(struct part *p, char out[PART_GPU_BYTES])
{
	*out = 0;
	const struct status_progress *s = part_device_segments(p) && !part_device_missing(p) ? progress_of(p) : NULL;
	if (s)
		progress_gpu(s, out);
}

void part_device_on_engine_up(struct part *p)
{
	if (!part_device_segments(p) || p->engine.others_are_over)
		return;
	p->engine.others_are_over = true;
	part_device_note(p, engine_proc_pid(p->engine.proc));
}

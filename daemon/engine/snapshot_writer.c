/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a checkpoint's files: reads the memory chunk by chunk, each once. A thread of its own, which snapshot.c
 * starts for each checkpoint and joins at its end. */
#include "engine/snapshot_impl.h"

#include "engine/snapshot_files.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define WARM_CHUNKS 64u /* populated between two looks at the memory */

static void tell_moved(struct snapshot *s)
{
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->moved);
	pthread_mutex_unlock(&s->lock);
}

/* Frees the memory of a copy that is no longer needed; the rest is freed at the end. */
static void give_back(struct area *a, uint32_t i)
{
	if (a->staging)
		madvise(a->staging + (uint64_t)i * SNAPSHOT_CHUNK, SNAPSHOT_CHUNK, MADV_DONTNEED);
}

/* A chunk's bytes as they were at the beginning, good until the next call. */
static const unsigned char *take_chunk(struct snapshot *s, struct area *a, uint32_t i)
{
	int state = CHUNK_PENDING;
	if (atomic_compare_exchange_strong(&a->chunk[i], &state, CHUNK_TAKEN)) {
		snapshot_read_chunk(s, a, i, s->held);
		atomic_store(&a->chunk[i], CHUNK_DONE);
		tell_moved(s);
		give_back(a, i);
		return s->held;
	}
	while (atomic_load(&a->chunk[i]) == CHUNK_TAKEN) /* a worker copies it */
		sched_yield();
	memcpy(s->held, a->staging + (uint64_t)i * SNAPSHOT_CHUNK, snapshot_chunk_bytes(a, i));
	atomic_store(&a->chunk[i], CHUNK_DONE);
	give_back(a, i);
	return s->held;
}

static enum status flush_out(struct snapshot *s, struct checkpoint_writer *w)
{
	enum status st = s->n_out ? checkpoint_write(w, s->out, s->n_out, s->why, sizeof(s->why)) : ST_OK;
	s->n_out = 0;
	return st;
}

static enum status put_out(struct snapshot *s, struct checkpoint_writer *w, const unsigned char *data, size_t n)
{
	enum status st = ST_OK;
	while (n && !st) {
		size_t k = SNAPSHOT_OUT_BYTES - s->n_out < n ? SNAPSHOT_OUT_BYTES - s->n_out : n;
		memcpy(s->out + s->n_out, data, k);
		s->n_out += k;
		data += k;
		n -= k;
		if (s->n_out == SNAPSHOT_OUT_BYTES)
			st = flush_out(s, w);
	}
	return st;
}

/* All tensors of a section. They ascend in memory, so that each chunk is taken once. */
static enum status write_section(struct snapshot *s, struct checkpoint_writer *w, const struct snapshot_list *l,
				 uint32_t section)
{
	struct area *a = snapshot_area(s, l->section[section].role);
	if (!a)
		return ST_OK; /* nothing of this share has masters */
	const unsigned char *held = NULL;
	uint32_t have = UINT32_MAX;
	enum status st = ST_OK;
	for (uint64_t i = 0; i < l->n && !st; i++) {
		const struct snapshot_entry *e = &l->entry[i];
		uint64_t at = e->offset - a->start, end = at + (e->safe.end - e->safe.begin);
		for (; e->section == section && at < end && !st;) {
			uint32_t c = (uint32_t)(at / SNAPSHOT_CHUNK);
			if (atomic_load_explicit(&s->stop, memory_order_relaxed))
				return ST_CANCELLED;
			if (c != have)
				held = take_chunk(s, a, c);
			have = c;
			uint64_t inside = at % SNAPSHOT_CHUNK, n = snapshot_chunk_bytes(a, c) - inside;
			n = n < end - at ? n : end - at;
			st = put_out(s, w, held + inside, n);
			at += n;
		}
	}
	for (uint32_t c = 0; c < a->n_chunks; c++) /* chunks without tensors are not needed */
		atomic_compare_exchange_strong(&a->chunk[c], &(int){ CHUNK_PENDING }, CHUNK_DONE);
	tell_moved(s);
	return st;
}

/* steps: what stands before the list's tensors; NULL: nothing does. */
static enum status make_header(const struct snapshot_list *l, struct safe_tensor *steps, void **out, size_t *out_n,
			       char *why, size_t n_why)
{
	static const struct safe_pair format = { "format", "pt" }; /* what loaders of PyTorch models look for */
	struct safe_tensor *all = calloc(l->n + 1, sizeof(*all)), *t = steps ? all + 1 : all;
	if (!all)
		return ST_NO_MEMORY;
	if (steps)
		all[0] = *steps;
	for (uint64_t i = 0; i < l->n; i++)
		t[i] = l->entry[i].safe;
	enum status st = safetensors_header(all, l->n + !!steps, &format, 1, out, out_n);
	for (uint64_t i = 0; i < l->n && !st; i++)
		l->entry[i].safe = t[i];
	if (st == ST_RESOURCE_EXHAUSTED)
		snprintf(why, n_why,
			 "the names, shapes and places of %" PRIu64
			 " tensors take more than the 100 MB that a safetensors file has for them",
			 l->n);
	free(all);
	return st;
}

static enum status write_body(struct snapshot *s, struct checkpoint_writer *w, const struct snapshot_list *l,
			      const struct safe_tensor *steps, const void *header, size_t n_header)
{
	enum status st = checkpoint_reserve(w, n_header + l->entry[l->n - 1].safe.end, s->why, sizeof(s->why));
	if (!st)
		st = checkpoint_write(w, header, n_header, s->why, sizeof(s->why));
	if (!st && steps)
		st = checkpoint_write(w, s->steps, steps->end, s->why, sizeof(s->why));
	for (uint32_t i = 0; i < l->n_sections && !st; i++)
		st = write_section(s, w, l, i);
	return st ? st : flush_out(s, w);
}

static enum status close_file(struct snapshot *s, enum checkpoint_part part, struct checkpoint_writer *w,
			      enum status st)
{
	if (!st)
		return checkpoint_finish(w, &s->file[part], s->why, sizeof(s->why));
	checkpoint_abandon(w);
	return st;
}

static enum status write_arrays(struct snapshot *s, int dir_fd, enum checkpoint_part part)
{
	struct snapshot_list l = { .n = 0 };
	struct safe_tensor of_steps = snapshot_steps_tensor(s->m->plan->n_tensors);
	struct safe_tensor *steps = part == CHECKPOINT_OPTIMIZER && s->steps ? &of_steps : NULL;
	struct checkpoint_writer *w;
	void *header = NULL;
	size_t n_header;
	enum status st = snapshot_list_init(&l, s->m->plan, part, s->x,
					    part == CHECKPOINT_OPTIMIZER ? snapshot_span_own(s->m->plan)
									 : snapshot_span_all(s->m->plan));
	if (!st && l.n)
		st = make_header(&l, steps, &header, &n_header, s->why, sizeof(s->why));
	if (!st && l.n)
		st = checkpoint_create(dir_fd, part, &w, s->why, sizeof(s->why));
	if (!st && l.n)
		st = close_file(s, part, w, write_body(s, w, &l, steps, header, n_header));
	free(header);
	snapshot_list_fini(&l);
	return st;
}

static enum status write_window(struct snapshot *s, int dir_fd)
{
	struct safe_tensor t[WINDOW_TENSORS + 1];
	struct checkpoint_writer *w;
	void *header;
	size_t n_header;
	snapshot_window_tensors(t, s->ranks, s->micro_size);
	const uint64_t n = t[WINDOW_TENSORS - 1].end;
	t[WINDOW_TENSORS] = snapshot_touched_tensor(s->m->plan->n_tensors, n);
	enum status st = safetensors_header(t, WINDOW_TENSORS + !!s->touched, NULL, 0, &header, &n_header);
	if (st)
		return st;
	st = checkpoint_create(dir_fd, CHECKPOINT_WINDOW, &w, s->why, sizeof(s->why));
	if (!st) {
		st = checkpoint_write(w, header, n_header, s->why, sizeof(s->why));
		if (!st)
			st = checkpoint_write(w, s->window, n, s->why, sizeof(s->why));
		if (!st && s->touched)
			st = checkpoint_write(w, s->touched, t[WINDOW_TENSORS].end - n, s->why, sizeof(s->why));
		st = close_file(s, CHECKPOINT_WINDOW, w, st);
	}
	free(header);
	return st;
}

static enum status write_files(struct snapshot *s)
{
	int fd;
	enum status st = checkpoint_make_dir(s->path, &s->dir, &fd, s->why, sizeof(s->why));
	if (st)
		return st;
	if (s->with_model)
		st = write_arrays(s, fd, CHECKPOINT_MODEL);
	if (!st && s->with_state)
		st = write_arrays(s, fd, CHECKPOINT_OPTIMIZER);
	if (!st && s->inside_window)
		st = write_arrays(s, fd, CHECKPOINT_CARRY);
	if (!st && s->inside_window)
		st = write_window(s, fd);
	close(fd);
	if (st) {
		char ignored[256];
		checkpoint_remove(s->path, ignored, sizeof(ignored)); /* logged there; gaccd sweeps once more */
	}
	return st;
}

static bool warm_chunk(const struct snapshot *s, const struct area *a, uint32_t c)
{
	if (atomic_load_explicit(&s->stop, memory_order_relaxed))
		return false;
	if (atomic_load(&a->chunk[c]) != CHUNK_PENDING)
		return true;
	/* fails without memory, or on a kernel before 5.14 */
	return madvise(a->staging + (uint64_t)c * SNAPSHOT_CHUNK, SNAPSHOT_CHUNK, MADV_POPULATE_WRITE) == 0;
}

/* Reading far memory costs training nothing, and the disk is slower than the bus: what is copied aside now is not
 * there to be copied when the next update waits for it. */
static void copy_if_far(struct snapshot *s, struct area *a, uint32_t c)
{
	if (!s->arith->is_far)
		return;
	snapshot_stage_chunk(s, a, c);
	tell_moved(s);
}

/* The faults of new pages take several times as long as the copying. Until the next update there is mostly time for
 * them on this thread, for which training does not wait, and for far memory there is time for the copying, too. Other
 * processes take memory meanwhile, so the free memory is checked again and again. */
static void warm_staging(struct snapshot *s)
{
	const uint64_t batch = (uint64_t)WARM_CHUNKS * SNAPSHOT_CHUNK;
	uint64_t bytes = 0;
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_areas; i++)
		bytes += s->area[i].bytes;
	if (bytes + SNAPSHOT_MARGIN > s->available())
		return;
	for (uint32_t i = 0; i < s->n_areas; i++)
		for (uint32_t c = 0; c < s->area[i].n_chunks && s->area[i].staging; c++) {
			if (++n % WARM_CHUNKS == 0 && batch + SNAPSHOT_MARGIN > s->available())
				return;
			if (!warm_chunk(s, &s->area[i], c))
				return;
			atomic_store(&s->area[i].n_warm, c + 1);
			copy_if_far(s, &s->area[i], c);
		}
}

void *snapshot_writer(void *arg)
{
	struct snapshot *s = arg;
	pthread_setname_np(pthread_self(), "checkpoint");
	warm_staging(s);
	s->status = write_files(s);
	if (s->status && !s->why[0])
		snprintf(s->why, sizeof(s->why), "%s", status_info(s->status)->text);
	atomic_store(&s->finished, true);
	tell_moved(s);
	if (eventfd_write(s->fd, 1) < 0)
		log_error("telling the engine that a checkpoint is written: %s", strerror(errno));
	return NULL;
}

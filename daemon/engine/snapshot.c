/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of a checkpoint: its beginning and end, and the copies that let training go on meanwhile. For
 * saving.c, step.c and window.c; the engine's main thread, with the workers for the copies. */
#include "engine/snapshot_impl.h"

#include "engine/touched.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert((int)ENGINE_FILES == (int)CHECKPOINT_PARTS, "an answer names every file");
_Static_assert(ENGINE_SHARES == PLAN_MAX_PARTS, "of every part");
_Static_assert(ENGINE_SHARES == MANIFEST_MAX_PARTS, "of every part");

/* ---- life ---- */

static void protect(void *snapshot, enum segment_role role)
{
	snapshot_protect(snapshot, role);
}

enum status snapshot_new(struct snapshot **out, const struct memory *m, struct arith *arith, struct workers *workers,
			 uint64_t (*available)(void))
{
	struct snapshot *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->m = m;
	s->arith = arith;
	s->workers = workers;
	s->available = available;
	s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->fd < 0) {
		log_error("eventfd: %s", strerror(errno));
		free(s);
		return ST_IO_ERROR;
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->moved, NULL);
	arith->before_write = protect;
	arith->before_write_arg = s;
	*out = s;
	return ST_OK;
}

static void free_staging(struct area *a)
{
	if (a->staging)
		munmap(a->staging, (size_t)a->n_chunks * SNAPSHOT_CHUNK);
	a->staging = NULL;
}

static void forget(struct snapshot *s)
{
	for (uint32_t i = 0; i < s->n_areas; i++) {
		free_staging(&s->area[i]);
		free(s->area[i].chunk);
	}
	s->n_areas = 0;
	free(s->path);
	free(s->window);
	free(s->touched);
	free(s->steps);
	free(s->held);
	free(s->out);
	s->path = NULL;
	s->window = s->held = s->out = s->touched = NULL;
	s->steps = NULL;
}

void snapshot_free(struct snapshot *s)
{
	if (!s)
		return;
	s->arith->before_write = NULL;
	if (s->active) {
		atomic_store(&s->stop, true);
		pthread_join(s->thread, NULL);
	}
	forget(s);
	pthread_cond_destroy(&s->moved);
	pthread_mutex_destroy(&s->lock);
	close(s->fd);
	free(s);
}

int snapshot_fd(const struct snapshot *s)
{
	return s->fd;
}

/* ---- the beginning and the end ---- */

/* Reserves address space; pages that are not touched cost nothing. */
static unsigned char *map_staging(uint32_t n_chunks)
{
	void *p = mmap(NULL, (size_t)n_chunks * SNAPSHOT_CHUNK, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* The role's data from `offset` on, if the job has any; `start`: in the data of the whole arena. */
static bool add_area(struct snapshot *s, enum segment_role role, uint64_t offset, uint64_t start)
{
	const uint64_t all = plan_role_bytes(s->m->plan, role), bytes = all > offset ? all - offset : 0;
	uint32_t n = (uint32_t)((bytes + SNAPSHOT_CHUNK - 1) / SNAPSHOT_CHUNK);
	_Atomic int *chunk = bytes ? calloc(n, sizeof(*chunk)) : NULL;
	if (!bytes)
		return true;
	if (!chunk)
		return false;
	s->area[s->n_areas++] = (struct area){ role, offset, start, bytes, n, chunk, map_staging(n), 0 };
	return true;
}

/* Groups of 16-bit parameters lie behind those of f32 ones, which need no master. */
static uint64_t master_start(const struct plan *p)
{
	uint32_t g = 0;
	while (g < p->n_groups && p->group[g].param_dtype == DTYPE_F32)
		g++;
	return g < p->n_groups ? p->group[g].start : p->n_elements;
}

/* Of a role that has f32 values of this part's own elements, `from` on. */
static bool add_own(struct snapshot *s, enum segment_role role, uint64_t from)
{
	const struct snapshot_span own = snapshot_span_own(s->m->plan);
	const uint64_t first = from > own.from ? from : own.from;
	return add_area(s, role, (first - own.from) * sizeof(float), first * sizeof(float));
}

static bool add_areas(struct snapshot *s)
{
	return (!s->with_model || add_area(s, SEG_PARAMS, 0, 0)) &&
	       (!s->with_state || (add_own(s, SEG_MASTER, master_start(s->m->plan)) && add_own(s, SEG_STATE0, 0) &&
				   add_own(s, SEG_STATE1, 0))) &&
	       (!s->inside_window || add_area(s, s->x ? SEG_ACCUM1 : SEG_ACCUM0, 0, 0));
}

static bool capture_window(struct snapshot *s, const struct control_state *c)
{
	struct safe_tensor t[WINDOW_TENSORS];
	s->ranks = c->r.ranks;
	s->micro_size = c->r.micro_size;
	if (!s->inside_window)
		return true;
	s->window = malloc(snapshot_window_bytes(s->ranks, s->micro_size));
	if (!s->window)
		return false;
	snapshot_window_tensors(t, s->ranks, s->micro_size);
	snapshot_window_save(c, &s->m->page, t, s->window);
	return true;
}

static bool capture_touched(struct snapshot *s, const struct control_state *c)
{
	const struct touched t = touched_view(s->m->plan, &s->m->page);
	const uint64_t n = s->m->plan->n_tensors;
	if (!t.plan)
		return true;
	s->touched = malloc(t.n_bytes);
	s->steps = malloc(n * sizeof(*s->steps));
	if (!s->touched || !s->steps)
		return false;
	memcpy(s->touched, t.set[s->x], t.n_bytes);
	for (uint64_t i = 0; i < n; i++)
		s->steps[i] = c->r.applied_step - t.left_out[c->r.applied_step % 2][i];
	return true;
}

static enum status prepare(struct snapshot *s, const struct control_state *c, const char *path)
{
	s->path = strdup(path);
	s->held = malloc(SNAPSHOT_CHUNK);
	s->out = malloc(SNAPSHOT_OUT_BYTES);
	s->n_out = 0;
	s->status = ST_OK;
	s->why[0] = '\0';
	memset(s->file, 0, sizeof(s->file));
	atomic_store(&s->finished, false);
	if (!s->path || !s->held || !s->out || !add_areas(s) || !capture_window(s, c) || !capture_touched(s, c))
		return ST_NO_MEMORY;
	return ST_OK;
}

enum status snapshot_begin(struct snapshot *s, const struct control_state *c, const char *path,
			   struct snapshot_what what, char *why, size_t n_why)
{
	if (s->active) {
		snprintf(why, n_why, "a checkpoint is being written already");
		return ST_SLOT_BUSY;
	}
	s->x = c->r.x;
	s->with_model = what.model;
	s->with_state = what.state;
	s->inside_window = what.window && c->r.filled; /* a sum of nothing is not worth a file */
	enum status st = prepare(s, c, path);
	int error = st ? 0 : pthread_create(&s->thread, NULL, snapshot_writer, s);
	if (error) {
		log_error("starting the thread that writes checkpoints: %s", strerror(error));
		st = ST_NO_MEMORY;
	}
	if (st) {
		snprintf(why, n_why, "no memory to begin a checkpoint");
		forget(s);
	}
	s->active = !st;
	return st;
}

enum status snapshot_end(struct snapshot *s, struct engine_file out[ENGINE_FILES], struct engine_dir *out_dir,
			 char *why, size_t n_why)
{
	eventfd_t n;
	if (!s->active || !atomic_load(&s->finished))
		return ST_NOT_READY;
	pthread_join(s->thread, NULL);
	eventfd_read(s->fd, &n);
	for (int i = 0; i < ENGINE_FILES; i++) {
		out[i].bytes = s->file[i].bytes;
		memcpy(out[i].sha256, s->file[i].sha256, sizeof(out[i].sha256));
	}
	*out_dir = (struct engine_dir){ s->dir.dev, s->dir.ino };
	snprintf(why, n_why, "%s", s->why);
	forget(s);
	s->active = false;
	return s->status;
}

/* ---- copy before update ---- */

struct staging {
	const struct snapshot *s;
	struct area *area;
};

static void stage_chunk(void *arg, uint32_t item, uint32_t worker)
{
	const struct staging *now = arg;
	snapshot_stage_chunk(now->s, now->area, item);
}

/* Of the chunks from `first` on. */
static uint64_t pending_bytes(const struct area *a, uint32_t first)
{
	uint64_t n = 0;
	for (uint32_t i = first; i < a->n_chunks; i++)
		if (atomic_load(&a->chunk[i]) <= CHUNK_TAKEN)
			n += snapshot_chunk_bytes(a, i);
	return n;
}

static void wait_for_writer(struct snapshot *s, const struct area *a)
{
	pthread_mutex_lock(&s->lock);
	while (!atomic_load(&s->finished) && pending_bytes(a, 0)) {
		pthread_cond_wait(&s->moved, &s->lock);
		workers_note_step(s->workers, 0);
	}
	pthread_mutex_unlock(&s->lock);
}

void snapshot_protect(struct snapshot *s, enum segment_role role)
{
	struct area *a = s->active && !atomic_load(&s->finished) ? snapshot_area(s, role) : NULL;
	uint64_t bytes = a ? pending_bytes(a, 0) : 0, missing = a ? pending_bytes(a, atomic_load(&a->n_warm)) : 0;
	if (!bytes)
		return;
	if (a->staging && (!missing || missing + SNAPSHOT_MARGIN < s->available()))
		workers_run(s->workers, stage_chunk, &(struct staging){ s, a }, a->n_chunks, false);
	else
		log_job(s->m->plan->job_id, LOG_INFO, "CheckpointWaits",
			"no memory to copy %" PRIu64 " bytes aside: the step waits for the checkpoint", bytes);
	wait_for_writer(s, a);
}

#include "engine/snapshot.h"

#include "engine/snapshot_files.h"

#include "base/log.h"
#include "store/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define OUT_BYTES (4u << 20)            /* of one write */
#define WARM_CHUNKS 64u                 /* populated between two looks at the memory */
#define MEMORY_MARGIN (UINT64_C(256) << 20) /* left to the rest of the node when chunks are staged */

_Static_assert((int)ENGINE_FILES == (int)CHECKPOINT_PARTS, "an answer names every file");

enum chunk_state { CHUNK_PENDING, CHUNK_TAKEN, CHUNK_STAGED, CHUNK_DONE };

/* A role's memory, cut into chunks. */
struct area {
	enum segment_role role;
	const unsigned char *base;
	uint64_t bytes;
	uint32_t n_chunks;
	_Atomic int *chunk;      /* enum chunk_state of each */
	unsigned char *staging;  /* where chunks are staged, as in `base`; NULL: there is no room for it */
	_Atomic uint32_t n_warm; /* the first ones of `staging` have their memory, as long as they are PENDING */
};

struct snapshot {
	const struct memory *m;
	struct workers *workers;
	uint64_t (*available)(void);
	int fd;
	bool active;
	pthread_t thread;
	pthread_mutex_t lock;    /* for `moved` alone */
	pthread_cond_t moved;    /* the writer has taken a chunk, or has finished */
	_Atomic bool stop, finished;
	struct area area[SNAPSHOT_MAX_SECTIONS + 1];
	uint32_t n_areas;
	char *path;
	uint32_t x;
	bool inside_window;
	uint32_t ranks, micro_size;
	unsigned char *window;   /* data of CHECKPOINT_WINDOW */
	/* the writer's, until `finished` */
	unsigned char *held;     /* a chunk that it has taken */
	unsigned char *out;
	size_t n_out;
	enum status status;
	char why[sizeof(((struct engine_answer *)0)->text)];
	struct checkpoint_dir dir;
	struct checkpoint_file file[CHECKPOINT_PARTS];
};

/* --- life */

enum status snapshot_new(struct snapshot **out, const struct memory *m, struct workers *workers, uint64_t (*available)(void))
{
	struct snapshot *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->m = m;
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
	free(s->held);
	free(s->out);
	s->path = NULL;
	s->window = s->held = s->out = NULL;
}

void snapshot_free(struct snapshot *s)
{
	if (!s)
		return;
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

/* --- the writer */

static void tell_moved(struct snapshot *s)
{
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->moved);
	pthread_mutex_unlock(&s->lock);
}

static uint64_t chunk_bytes(const struct area *a, uint32_t i)
{
	uint64_t left = a->bytes - (uint64_t)i * SNAPSHOT_CHUNK;
	return left < SNAPSHOT_CHUNK ? left : SNAPSHOT_CHUNK;
}

/* The memory of a copy that is not needed any more; what is left goes at the end. */
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
		memcpy(s->held, a->base + (uint64_t)i * SNAPSHOT_CHUNK, chunk_bytes(a, i));
		atomic_store(&a->chunk[i], CHUNK_DONE);
		tell_moved(s);
		give_back(a, i);
		return s->held;
	}
	while (atomic_load(&a->chunk[i]) == CHUNK_TAKEN) /* a worker copies it */
		sched_yield();
	memcpy(s->held, a->staging + (uint64_t)i * SNAPSHOT_CHUNK, chunk_bytes(a, i));
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
		size_t k = OUT_BYTES - s->n_out < n ? OUT_BYTES - s->n_out : n;
		memcpy(s->out + s->n_out, data, k);
		s->n_out += k;
		data += k;
		n -= k;
		if (s->n_out == OUT_BYTES)
			st = flush_out(s, w);
	}
	return st;
}

static struct area *area_of(struct snapshot *s, enum segment_role role)
{
	for (uint32_t i = 0; i < s->n_areas; i++)
		if (s->area[i].role == role)
			return &s->area[i];
	return NULL;
}

/* All tensors of a section. They ascend in memory, so that each chunk is taken once. */
static enum status write_section(struct snapshot *s, struct checkpoint_writer *w, const struct snapshot_list *l,
				 uint32_t section)
{
	struct area *a = area_of(s, l->section[section].role);
	const unsigned char *held = NULL;
	uint32_t have = UINT32_MAX;
	enum status st = ST_OK;
	for (uint64_t i = 0; i < l->n && !st; i++) {
		const struct snapshot_entry *e = &l->entry[i];
		uint64_t at = (uint64_t)(e->live - a->base), end = at + (e->safe.end - e->safe.begin);
		for (; e->section == section && at < end && !st;) {
			uint32_t c = (uint32_t)(at / SNAPSHOT_CHUNK);
			if (atomic_load_explicit(&s->stop, memory_order_relaxed))
				return ST_CANCELLED;
			if (c != have)
				held = take_chunk(s, a, c);
			have = c;
			uint64_t inside = at % SNAPSHOT_CHUNK, n = chunk_bytes(a, c) - inside;
			n = n < end - at ? n : end - at;
			st = put_out(s, w, held + inside, n);
			at += n;
		}
	}
	for (uint32_t c = 0; c < a->n_chunks; c++) /* what holds no tensor is wanted no longer */
		atomic_compare_exchange_strong(&a->chunk[c], &(int){ CHUNK_PENDING }, CHUNK_DONE);
	tell_moved(s);
	return st;
}

static enum status make_header(const struct snapshot_list *l, void **out, size_t *out_n, char *why, size_t n_why)
{
	static const struct safe_pair format = { "format", "pt" }; /* what loaders of PyTorch models look for */
	struct safe_tensor *t = calloc(l->n + 1, sizeof(*t));
	if (!t)
		return ST_NO_MEMORY;
	for (uint64_t i = 0; i < l->n; i++)
		t[i] = l->entry[i].safe;
	enum status st = safetensors_header(t, l->n, &format, 1, out, out_n);
	for (uint64_t i = 0; i < l->n && !st; i++)
		l->entry[i].safe = t[i];
	if (st == ST_RESOURCE_EXHAUSTED)
		snprintf(why, n_why, "the names, shapes and places of %" PRIu64 " tensors take more than the 100 MB that a safetensors file has for them",
			 l->n);
	free(t);
	return st;
}

static enum status write_body(struct snapshot *s, struct checkpoint_writer *w, const struct snapshot_list *l,
			      const void *header, size_t n_header)
{
	enum status st = checkpoint_reserve(w, n_header + l->entry[l->n - 1].safe.end, s->why, sizeof(s->why));
	if (!st)
		st = checkpoint_write(w, header, n_header, s->why, sizeof(s->why));
	for (uint32_t i = 0; i < l->n_sections && !st; i++)
		st = write_section(s, w, l, i);
	return st ? st : flush_out(s, w);
}

static enum status close_file(struct snapshot *s, enum checkpoint_part part, struct checkpoint_writer *w, enum status st)
{
	if (!st)
		return checkpoint_finish(w, &s->file[part], s->why, sizeof(s->why));
	checkpoint_abandon(w);
	return st;
}

static enum status write_arrays(struct snapshot *s, int dir_fd, enum checkpoint_part part)
{
	struct snapshot_list l = { .n = 0 };
	struct checkpoint_writer *w;
	void *header = NULL;
	size_t n_header;
	enum status st = snapshot_list_init(&l, s->m, part, s->x);
	if (!st && l.n)
		st = make_header(&l, &header, &n_header, s->why, sizeof(s->why));
	if (!st && l.n)
		st = checkpoint_create(dir_fd, part, &w, s->why, sizeof(s->why));
	if (!st && l.n)
		st = close_file(s, part, w, write_body(s, w, &l, header, n_header));
	free(header);
	snapshot_list_fini(&l);
	return st;
}

static enum status write_window(struct snapshot *s, int dir_fd)
{
	struct safe_tensor t[WINDOW_TENSORS];
	struct checkpoint_writer *w;
	void *header;
	size_t n_header;
	snapshot_window_tensors(t, s->ranks, s->micro_size);
	enum status st = safetensors_header(t, WINDOW_TENSORS, NULL, 0, &header, &n_header);
	if (st)
		return st;
	st = checkpoint_create(dir_fd, CHECKPOINT_WINDOW, &w, s->why, sizeof(s->why));
	if (!st) {
		st = checkpoint_write(w, header, n_header, s->why, sizeof(s->why));
		if (!st)
			st = checkpoint_write(w, s->window, t[WINDOW_TENSORS - 1].end, s->why, sizeof(s->why));
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
	st = write_arrays(s, fd, CHECKPOINT_MODEL);
	if (!st)
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

/* The faults of new pages take several times as long as the copying. Until the next update there is mostly time for them here,
 * where nobody waits. Others take memory meanwhile, perhaps for the same reason: so we look again and again. */
static void warm_staging(struct snapshot *s)
{
	const uint64_t batch = (uint64_t)WARM_CHUNKS * SNAPSHOT_CHUNK;
	uint64_t bytes = 0;
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_areas; i++)
		bytes += s->area[i].bytes;
	if (bytes + MEMORY_MARGIN > s->available())
		return;
	for (uint32_t i = 0; i < s->n_areas; i++)
		for (uint32_t c = 0; c < s->area[i].n_chunks && s->area[i].staging; c++) {
			if (++n % WARM_CHUNKS == 0 && batch + MEMORY_MARGIN > s->available())
				return;
			if (!warm_chunk(s, &s->area[i], c))
				return;
			atomic_store(&s->area[i].n_warm, c + 1);
		}
}

static void *writer_main(void *arg)
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

/* --- the beginning and the end */

/* Address space; what is not touched costs nothing. */
static unsigned char *map_staging(uint32_t n_chunks)
{
	void *p = mmap(NULL, (size_t)n_chunks * SNAPSHOT_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static bool add_area(struct snapshot *s, enum segment_role role, const void *base, uint64_t bytes)
{
	uint32_t n = (uint32_t)((bytes + SNAPSHOT_CHUNK - 1) / SNAPSHOT_CHUNK);
	_Atomic int *chunk = base && bytes ? calloc(n, sizeof(*chunk)) : NULL;
	if (!base || !bytes)
		return true;
	if (!chunk)
		return false;
	s->area[s->n_areas++] = (struct area){ role, base, bytes, n, chunk, map_staging(n), 0 };
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

static bool add_areas(struct snapshot *s)
{
	const struct memory *m = s->m;
	const struct plan *p = m->plan;
	uint64_t n = p->n_elements, skip = master_start(p);
	return add_area(s, SEG_PARAMS, m->params, p->param_bytes) &&
	       add_area(s, SEG_MASTER, m->master ? m->master + skip : NULL, 4 * (n - skip)) &&
	       add_area(s, SEG_STATE0, m->state[0], 4 * n) && add_area(s, SEG_STATE1, m->state[1], 4 * n) &&
	       (!s->inside_window || add_area(s, s->x ? SEG_ACCUM1 : SEG_ACCUM0, m->accum[s->x],
					      n * dtype_size((enum dtype)p->acc_dtype)));
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

static enum status prepare(struct snapshot *s, const struct control_state *c, const char *path)
{
	s->path = strdup(path);
	s->held = malloc(SNAPSHOT_CHUNK);
	s->out = malloc(OUT_BYTES);
	s->n_out = 0;
	s->status = ST_OK;
	s->why[0] = '\0';
	memset(s->file, 0, sizeof(s->file));
	atomic_store(&s->finished, false);
	return s->path && s->held && s->out && add_areas(s) && capture_window(s, c) ? ST_OK : ST_NO_MEMORY;
}

enum status snapshot_begin(struct snapshot *s, const struct control_state *c, const char *path, bool inside_window, char *why,
			   size_t n_why)
{
	if (s->active) {
		snprintf(why, n_why, "a checkpoint is being written already");
		return ST_SLOT_BUSY;
	}
	s->x = c->r.x;
	s->inside_window = inside_window && c->r.filled; /* a sum of nothing is not worth a file */
	enum status st = prepare(s, c, path);
	int error = st ? 0 : pthread_create(&s->thread, NULL, writer_main, s);
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

enum status snapshot_end(struct snapshot *s, struct engine_file out[ENGINE_FILES], struct engine_dir *out_dir, char *why,
			 size_t n_why)
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

/* --- copy before update */

static void stage_chunk(void *arg, uint32_t item, uint32_t worker)
{
	struct area *a = arg;
	uint64_t at = (uint64_t)item * SNAPSHOT_CHUNK;
	int state = CHUNK_PENDING;
	if (!atomic_compare_exchange_strong(&a->chunk[item], &state, CHUNK_TAKEN))
		return;
	memcpy(a->staging + at, a->base + at, chunk_bytes(a, item));
	atomic_store(&a->chunk[item], CHUNK_STAGED);
}

/* Of the chunks from `first` on. */
static uint64_t pending_bytes(const struct area *a, uint32_t first)
{
	uint64_t n = 0;
	for (uint32_t i = first; i < a->n_chunks; i++)
		if (atomic_load(&a->chunk[i]) <= CHUNK_TAKEN)
			n += chunk_bytes(a, i);
	return n;
}

static void wait_for_writer(struct snapshot *s, const struct area *a)
{
	pthread_mutex_lock(&s->lock);
	while (!atomic_load(&s->finished) && pending_bytes(a, 0))
		pthread_cond_wait(&s->moved, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

void snapshot_protect(struct snapshot *s, enum segment_role role)
{
	struct area *a = s->active && !atomic_load(&s->finished) ? area_of(s, role) : NULL;
	uint64_t bytes = a ? pending_bytes(a, 0) : 0, missing = a ? pending_bytes(a, atomic_load(&a->n_warm)) : 0;
	if (!bytes)
		return;
	if (a->staging && (!missing || missing + MEMORY_MARGIN < s->available()))
		workers_run(s->workers, stage_chunk, a, a->n_chunks, false);
	else
		log_job(s->m->plan->job_id, LOG_INFO, "CheckpointWaits",
			"no memory to copy %" PRIu64 " bytes aside: the step waits for the checkpoint", bytes);
	wait_for_writer(s, a);
}

/* The memory of a job: allocate or adopt, look into, give back. */
#include "edge/live_job.h"

#include "base/log.h"
#include "control/queue.h"
#include "edge/engine_proc.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "engine/engine.h"
#include "proto/failpoint.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- names in the fd store ---- */

static void segment_name(const struct live_job *l, const struct plan_segment *w, char out[FDSTORE_MAX_NAME])
{
	snprintf(out, FDSTORE_MAX_NAME, "j%llu.r%u.%u.%d", (unsigned long long)l->id, w->role, w->index, LIVE_GENERATION);
}

static int take_stored(struct daemon *d, const char *name)
{
	for (size_t i = 0; i < d->n_stored; i++)
		if (d->stored[i].fd >= 0 && !strcmp(d->stored[i].name, name)) {
			int fd = d->stored[i].fd;
			d->stored[i].fd = -1;
			return fd;
		}
	return -1;
}

/* ---- the plan ---- */

static int make_plan_fd(const struct plan *p)
{
	int fd = memfd_create("gacc-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || write(fd, p, p->bytes) != (ssize_t)p->bytes ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
		log_error("cannot write the engine's plan: %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

static uint32_t default_threads(const struct live_job *l)
{
	long n = l->d->conf->engine.threads ? (long)l->d->conf->engine.threads : sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : n > PLAN_MAX_THREADS ? PLAN_MAX_THREADS : (uint32_t)n;
}

/* The control segment has a part for each worker: a job keeps the number that it began with, whatever the
 * configuration says now. 0: no control segment is stored. */
static uint32_t stored_threads(const struct live_job *l)
{
	struct plan_segment control = { .role = SEG_CONTROL };
	char name[FDSTORE_MAX_NAME];
	struct segment_header h;
	segment_name(l, &control, name);
	for (size_t i = 0; i < l->d->n_stored; i++) {
		if (l->d->stored[i].fd < 0 || strcmp(l->d->stored[i].name, name) ||
		    segment_peek(l->d->stored[i].fd, &h))
			continue;
		for (uint32_t t = 1; t <= PLAN_MAX_THREADS; t++)
			if (control_page_bytes(l->spec.ranks, l->spec.max_micro_size, t,
					       job_arena(l->job)->n_tensors) == h.bytes - h.data_offset)
				return t;
	}
	return 0;
}

static enum status make_plan(struct live_job *l, char *why, size_t n_why)
{
	uint64_t n;
	const struct tensor_spec *t = job_tensors(l->job, &n);
	uint32_t threads = stored_threads(l);
	enum status st = plan_build(&l->spec, job_arena(l->job), t, l->id, job_slots(l->job),
				    threads ? threads : default_threads(l), &l->plan, why, n_why);
	if (st)
		return st;
	l->n_segments = plan_segments(l->plan, NULL, 0);
	l->wanted = calloc((size_t)l->n_segments, sizeof *l->wanted);
	l->segment = calloc((size_t)l->n_segments, sizeof *l->segment);
	l->plan_fd = make_plan_fd(l->plan);
	if (!l->wanted || !l->segment || l->plan_fd < 0)
		return ST_NO_MEMORY;
	for (int i = 0; i < l->n_segments; i++)
		l->segment[i] = SEGMENT_NONE;
	plan_segments(l->plan, l->wanted, l->n_segments);
	return ST_OK;
}

static uint64_t bytes_of(const struct plan_segment *wanted, int n)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i++)
		sum += wanted[i].bytes + SEGMENT_DATA_OFFSET;
	return sum;
}

static void forget_memory(struct live_job *l)
{
	for (int i = 0; i < l->n_segments; i++)
		if (l->segment)
			segment_close(&l->segment[i]);
	free(l->segment);
	free(l->wanted);
	free(l->plan);
	if (l->plan_fd >= 0)
		close(l->plan_fd);
	l->segment = NULL;
	l->wanted = NULL;
	l->plan = NULL;
	l->plan_fd = -1;
	l->n_segments = 0;
	l->d->host_bytes -= l->host_bytes;
	l->host_bytes = 0;
}

static void fail_allocation(struct live_job *l, enum status st, const char *why)
{
	live_event(l, st != ST_JOB_ENDED, "AllocationFailed", -1, why); /* no fault when it was cancelled meanwhile */
	forget_memory(l);
	l->allocating = false;
	job_on_allocate_failed(l->job, st, why, daemon_now(l->d));
	live_submit_done(l, st, why);
}

/* ---- adopting what an earlier life stored ---- */

static int adopt(struct live_job *l)
{
	int n = 0;
	for (int i = 0; i < l->n_segments; i++) {
		char name[FDSTORE_MAX_NAME];
		segment_name(l, &l->wanted[i], name);
		l->segment[i].fd = take_stored(l->d, name);
		n += l->segment[i].fd >= 0;
	}
	return n;
}

static void memory_lost(struct live_job *l, int found)
{
	char why[200];
	snprintf(why, sizeof why, "the job's memory is gone: %d of %d segments were kept by the service manager", found,
		 l->n_segments);
	coord_end(l->coord, ST_SEGMENT_CORRUPT, why, daemon_now(l->d));
}

/* ---- allocating anew ---- */

struct allocation {
	uv_work_t work;
	struct live_job *l;
	enum status status;
	char why[256];
};

static void allocate_segments(uv_work_t *w)
{
	struct allocation *a = w->data;
	struct live_job *l = a->l;
	a->status = FAILPOINT_ERROR(gaccd_allocate_before);
	for (int i = 0; i < l->n_segments && !a->status; i++)
		a->status = segment_create(&l->segment[i], l->id, LIVE_GENERATION, l->plan->fingerprint, l->wanted[i].role,
					   l->wanted[i].index, l->wanted[i].bytes, false, a->why, sizeof a->why);
}

struct barrier {
	uv_poll_t poll;
	struct live_job *l;
	int fd;
};

static void on_barrier_closed(uv_handle_t *h)
{
	struct barrier *b = h->data;
	close(b->fd);
	free(b);
}

static void on_barrier(uv_poll_t *h, int status, int events)
{
	struct barrier *b = h->data;
	uv_poll_stop(h);
	uv_close((uv_handle_t *)h, on_barrier_closed);
	b->l->allocating = false;
	live_start_engine(b->l);
}

/* The engine starts when the manager has all descriptors: what a trainer is told to be safe is safe from then on. */
static void store_then_start(struct live_job *l)
{
	struct daemon *d = l->d;
	enum status st = fdstore_active(d->fdstore) ? ST_OK : ST_UNAVAILABLE;
	for (int i = 0; i < l->n_segments && !st; i++) {
		char name[FDSTORE_MAX_NAME];
		segment_name(l, &l->wanted[i], name);
		st = fdstore_put(d->fdstore, name, l->segment[i].fd);
	}
	struct barrier *b = st ? NULL : calloc(1, sizeof *b);
	if (!b || fdstore_barrier(d->fdstore, &b->fd)) {
		free(b);
		if (fdstore_active(d->fdstore))
			log_job(l->id, LOG_WARN, "NotStored", "the service manager does not keep this job's memory: it will not survive gaccd");
		l->allocating = false;
		live_start_engine(l);
		return;
	}
	b->l = l;
	b->poll.data = b;
	uv_poll_init(&d->loop, &b->poll, b->fd);
	uv_poll_start(&b->poll, UV_READABLE, on_barrier);
}

static void on_allocated(uv_work_t *w, int canceled)
{
	struct allocation *a = w->data;
	struct live_job *l = a->l;
	if (a->status)
		fail_allocation(l, a->status, a->why[0] ? a->why : status_info(a->status)->text);
	else
		store_then_start(l);
	free(a);
}

static void allocate(struct live_job *l)
{
	struct allocation *a = calloc(1, sizeof *a);
	if (!a) {
		fail_allocation(l, ST_NO_MEMORY, "no memory");
		return;
	}
	a->l = l;
	a->work.data = a;
	uv_queue_work(&l->d->loop, &a->work, allocate_segments, on_allocated);
}

enum status live_memory_need(struct live_job *l, uint64_t *out, char *why, size_t n_why)
{
	uint64_t n;
	const struct tensor_spec *t = job_tensors(l->job, &n);
	struct plan *plan = NULL;
	enum status st = plan_build(&l->spec, job_arena(l->job), t, l->id, job_slots(l->job), default_threads(l), &plan, why, n_why);
	if (st)
		return st;
	int n_segments = plan_segments(plan, NULL, 0);
	struct plan_segment *wanted = calloc((size_t)n_segments, sizeof *wanted);
	if (wanted) {
		plan_segments(plan, wanted, n_segments);
		*out = bytes_of(wanted, n_segments);
	}
	free(plan);
	free(wanted);
	return wanted ? ST_OK : ST_NO_MEMORY;
}

static void on_tensors_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	if (st) {
		fail_allocation(l, st, st == ST_JOB_ENDED ? status_info(st)->text : "the tensor set cannot be written to the journal");
		return;
	}
	l->tensors_durable = true;
	allocate(l);
}

enum status live_pack_tensors(const struct live_job *l, void **out, size_t *out_n)
{
	uint64_t n;
	const struct tensor_spec *t = job_tensors(l->job, &n);
	Gacc__V1__JobSpec set = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__TensorSpec *pb = calloc(n, sizeof *pb), **list = calloc(n, sizeof *list);
	enum status st = ST_NO_MEMORY;
	if (!pb || !list)
		goto done;
	for (uint64_t i = 0; i < n; i++) {
		gacc__v1__tensor_spec__init(&pb[i]);
		pb[i].name = (char *)t[i].name;
		pb[i].dtype = (Gacc__V1__DataType)t[i].dtype;
		pb[i].n_shape = (size_t)t[i].n_dims;
		pb[i].shape = (int64_t *)t[i].shape;
		if (t[i].alias_of)
			pb[i].alias_of = (char *)t[i].alias_of;
		list[i] = &pb[i];
	}
	set.n_tensors = n;
	set.tensors = list;
	void *bytes = bytes_pack(&set.base, out_n);
	if (!bytes)
		goto done;
	*out = bytes;
	st = ST_OK;
done:
	free(list);
	free(pb);
	return st;
}

static enum status persist_tensors(struct live_job *l)
{
	void *bytes = NULL;
	size_t n = 0;
	enum status st = live_pack_tensors(l, &bytes, &n);
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { l->id, { bytes, n } } };
	if (!st)
		st = persist_put(l->d->persist, &r, on_tensors_durable, l);
	free(bytes);
	return st;
}

static void on_restore_read(struct live_job *l, enum status st, const char *why)
{
	if (!st) {
		live_allocate(l);
		return;
	}
	fail_allocation(l, st, why);
	coord_end(l->coord, st, why, daemon_now(l->d));
}

void live_allocate(struct live_job *l)
{
	char why[QUEUE_WHY] = "";
	l->allocating = true;
	if (restoring_due(l)) {
		restoring_begin(l, on_restore_read);
		return;
	}
	enum status st = make_plan(l, why, sizeof why);
	if (st) {
		fail_allocation(l, st, why[0] ? why : status_info(st)->text);
		if (l->params_durable && st != ST_NO_MEMORY) /* nor will it at the next start */
			coord_end(l->coord, st, why, daemon_now(l->d));
		return;
	}
	l->host_bytes = bytes_of(l->wanted, l->n_segments);
	l->d->host_bytes += l->host_bytes;
	FAILPOINT(gaccd_adopt_before);
	int found = adopt(l);
	if (found == l->n_segments) {
		l->allocating = false;
		live_start_engine(l);
		return;
	}
	if (l->params_durable) {
		l->allocating = false;
		memory_lost(l, found);
		return;
	}
	for (int i = 0; i < l->n_segments; i++) /* half an allocation: nothing was promised yet */
		segment_close(&l->segment[i]);
	st = live_queue_fits(l, l->host_bytes, why, sizeof why);
	if (st)
		fail_allocation(l, st, why);
	else if (l->tensors_durable || l->spec_pb->n_tensors)
		allocate(l);
	else if (persist_tensors(l))
		fail_allocation(l, ST_NO_MEMORY, "no memory");
}

/* ---- looking into it ---- */

struct segment *live_segment(struct live_job *l, uint32_t role, uint32_t index)
{
	for (int i = 0; i < l->n_segments; i++)
		if (l->wanted[i].role == role && l->wanted[i].index == index)
			return &l->segment[i];
	return NULL;
}

void *live_map(struct live_job *l, uint32_t role, uint32_t index, bool writable)
{
	struct segment *s = live_segment(l, role, index);
	char why[256];
	if (!s || s->fd < 0)
		return NULL;
	if (s->header)
		return s->data;
	struct segment m = SEGMENT_NONE;
	if (segment_adopt(&m, s->fd, l->id, l->plan->fingerprint, role, index, writable, why, sizeof why)) {
		log_job(l->id, LOG_ERROR, "MapFailed", "segment %u.%u: %s", role, index, why);
		return NULL;
	}
	*s = m; /* under the same number, which an engine that is being started may still be sent */
	return s->data;
}

bool live_control_page(struct live_job *l, struct control_page *out)
{
	void *data = live_map(l, SEG_CONTROL, 0, false);
	if (data)
		control_page_view(out, data, l->spec.ranks, l->spec.max_micro_size, l->plan->threads, l->plan->n_tensors);
	return data != NULL;
}

enum status live_read_control(struct live_job *l, struct control_state *out)
{
	struct control_page page;
	bool corrupt;
	if (!live_control_page(l, &page) || control_state_init(out, l->spec.ranks, l->spec.max_micro_size))
		return ST_NO_MEMORY;
	if (control_page_read(&page, out, &corrupt))
		return ST_OK;
	control_state_fini(out);
	return ST_SEGMENT_CORRUPT;
}

/* ---- the end ---- */

void live_let_go(struct live_job *l)
{
	engine_proc_close(l->engine);
	l->engine = NULL;
	if (l->n_segments)
		forget_memory(l);
}

void live_release(struct live_job *l)
{
	for (int i = 0; i < l->n_segments; i++) {
		char name[FDSTORE_MAX_NAME];
		segment_name(l, &l->wanted[i], name);
		fdstore_remove(l->d->fdstore, name);
	}
	live_let_go(l);
}

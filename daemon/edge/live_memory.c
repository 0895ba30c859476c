/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a job: allocate or adopt, map, release. */
#include "edge/live_job.h"

#include "base/log.h"
#include "control/queue.h"
#include "edge/convert.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "edge/live_tensors.h"
#include "engine/engine.h"
#include "engine/portions.h"
#include "gacc/v1/common.pb-c.h"
#include "proto/failpoint.h"
#include "rpc/pool.h"
#include "runtime/engine_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEEP_TELL_NS (INT64_C(5) * 1000000000)
#define PORTION_BYTES (UINT64_C(256) << 20) /* of memory that is taken in one piece of work: some 0.1 s */

/* ---- names in the fd store ---- */

static void segment_name(const struct live_job *l, const struct plan_segment *w, char out[FDSTORE_MAX_NAME])
{
	snprintf(out, FDSTORE_MAX_NAME, "j%llu.r%u.%u.%d", (unsigned long long)l->id, w->role, w->index,
		 LIVE_GENERATION);
}

/* Tells the manager that it need not keep this job's memory. */
static void drop_kept(struct live_job *l)
{
	for (int i = 0; i < l->n_segments && l->kept; i++) {
		char name[FDSTORE_MAX_NAME];
		segment_name(l, &l->wanted[i], name);
		fdstore_remove(l->d->node.fdstore, name);
	}
	l->kept = false;
}

static int take_stored(struct daemon *d, const char *name)
{
	for (size_t i = 0; i < d->node.n_stored; i++)
		if (d->node.stored[i].fd >= 0 && !strcmp(d->node.stored[i].name, name)) {
			int fd = d->node.stored[i].fd;
			d->node.stored[i].fd = -1;
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
	long n =
		l->d->node.conf->engine.threads ? (long)l->d->node.conf->engine.threads : sysconf(_SC_NPROCESSORS_ONLN);
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
	for (size_t i = 0; i < l->d->node.n_stored; i++) {
		if (l->d->node.stored[i].fd < 0 || strcmp(l->d->node.stored[i].name, name) ||
		    segment_peek(l->d->node.stored[i].fd, &h))
			continue;
		for (uint32_t t = 1; t <= PLAN_MAX_THREADS; t++)
			if (control_page_bytes(l->spec.ranks, l->spec.max_micro_size, t,
					       job_arena(l->job)->n_tensors) == h.bytes - h.data_offset)
				return t;
	}
	return 0;
}

/* What segments the job has; the whole plan is made in the pool. */
static enum status head_plan(struct live_job *l)
{
	uint32_t threads = stored_threads(l);
	l->plan = malloc(sizeof(*l->plan));
	if (!l->plan)
		return ST_NO_MEMORY;
	plan_head(l->plan, &l->spec, job_arena(l->job), l->id, job_slots(l->job),
		  threads ? threads : default_threads(l));
	l->n_segments = plan_segments(l->plan, NULL, 0);
	l->wanted = calloc((size_t)l->n_segments, sizeof(*l->wanted));
	l->segment = calloc((size_t)l->n_segments, sizeof(*l->segment));
	if (!l->wanted || !l->segment)
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

/* Segments on their way out: whoever closes the last descriptor of one gives its pages back, which takes half a
 * millisecond for each MiB. */
struct forgetting {
	struct rpc_work work;
	struct segment *segment;
	int n;
};

static void close_all(struct segment *segment, int n)
{
	for (int i = 0; i < n; i++)
		segment_close(&segment[i]);
	free(segment);
}

static void close_segments(struct rpc_work *w)
{
	struct forgetting *f = (struct forgetting *)w;
	close_all(f->segment, f->n);
}

static void on_segments_closed(struct rpc_work *w)
{
	free(w);
}

static void forget_segments(struct live_job *l)
{
	struct forgetting *f = l->d->node.stopping ? NULL : calloc(1, sizeof(*f));
	if (!f) {
		close_all(l->segment, l->n_segments);
		return;
	}
	f->segment = l->segment;
	f->n = l->n_segments;
	rpc_pool_put_kind(l->d->node.pool, RPC_POOL_RELEASE, &f->work, l->uid, close_segments, on_segments_closed);
}

static void forget_memory(struct live_job *l)
{
	if (l->segment)
		forget_segments(l);
	free(l->wanted);
	free(l->plan);
	if (l->plan_fd >= 0)
		close(l->plan_fd);
	l->segment = NULL;
	l->wanted = NULL;
	l->plan = NULL;
	l->plan_fd = -1;
	l->n_segments = 0;
	l->d->node.host_bytes -= l->host_bytes;
	l->host_bytes = 0;
}

static void fail_beginning(struct live_job *l, const char *event, enum status st, const char *why)
{
	live_event(l, st != ST_JOB_ENDED, event, -1, why); /* no fault when it was cancelled meanwhile */
	forget_memory(l);
	l->allocating = false;
	job_on_allocate_failed(l->job, st, why, daemon_now(l->d));
	live_submit_done(l, st == ST_JOB_ENDED ? ST_OK : st, why); /* there is a job: how it ended is in its state */
}

static void fail_allocation(struct live_job *l, enum status st, const char *why)
{
	fail_beginning(l, "AllocationFailed", st, why);
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
	snprintf(why, sizeof(why), "the job's memory is gone: %d of %d segments were kept by the service manager",
		 found, l->n_segments);
	coord_end(l->coord, ST_SEGMENT_CORRUPT, why, daemon_now(l->d));
}

/* ---- allocating anew ---- */

struct allocation {
	struct rpc_work work;
	struct live_job *l;
	bool adopted; /* the segments are there */
	struct portions portions;
	enum status status;
	char why[320], unused[256]; /* unused: what spec_match_unused says */
};

static enum status make_plan(struct allocation *a)
{
	struct live_job *l = a->l;
	struct tensor_set *set = job_tensor_set(l->job);
	struct plan *plan;
	enum status st = tensor_set_match(set, &l->spec, a->why, sizeof(a->why));
	if (!st)
		st = plan_build(&l->spec, set, l->id, l->plan->slots, l->plan->threads, &plan);
	if (st)
		return st;
	spec_match_unused(&set->match, &l->spec, a->unused, sizeof(a->unused));
	l->plan_fd = make_plan_fd(plan);
	free(plan);
	return l->plan_fd < 0 ? ST_NO_MEMORY : ST_OK;
}

static bool allocated(const struct allocation *a)
{
	return a->adopted || portions_done(&a->portions);
}

static enum status name_owner(struct allocation *a)
{
	enum status st = ST_OK;
	for (int i = 0; i < a->l->n_segments && !st; i++)
		st = segment_set_owner(&a->l->segment[i], a->l->uuid, a->why, sizeof(a->why));
	return st;
}

/* In the pool: the next portion. What it touches of the job is nobody else's while l->allocating. */
static void allocate_some(struct rpc_work *w)
{
	struct allocation *a = (struct allocation *)w;
	if (a->l->plan_fd < 0) {
		a->status = a->adopted ? ST_OK : FAILPOINT_ERROR(gaccd_allocate_before);
		if (!a->status)
			a->status = make_plan(a);
	}
	if (!a->status && !a->adopted)
		a->status = portions_take(&a->portions, PORTION_BYTES, a->why, sizeof(a->why));
	if (!a->status && !a->adopted && portions_done(&a->portions))
		a->status = name_owner(a);
}

/* The engine starts when the manager has all descriptors: what a trainer is told to be safe is safe from then on. */
static void on_kept(void *arg, enum status st)
{
	struct live_job *l = arg;
	if (st && fdstore_active(l->d->node.fdstore))
		log_job(l->id, LOG_WARN, "NotStored",
			"the service manager does not keep this job's memory: it will not survive gaccd");
	l->kept = true;
	live_start_engine(l);
}

static void store_then_start(struct live_job *l)
{
	size_t n = (size_t)l->n_segments;
	struct fdstore_fd *item = calloc(n, sizeof(*item));
	l->allocating = false;
	if (!item) {
		on_kept(l, ST_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		segment_name(l, &l->wanted[i], item[i].name);
		item[i].fd = l->segment[i].fd;
	}
	l->keeping_since_ns = daemon_now(l->d).mono_ns;
	fdstore_keep(l->d->node.fdstore, item, n, on_kept, l, &l->keeping);
}

void live_keeping_tick(struct live_job *l, struct now now)
{
	if (!l->keeping || !l->keeping_since_ns || now.mono_ns - l->keeping_since_ns < KEEP_TELL_NS)
		return;
	l->keeping_since_ns = 0; /* once */
	live_event(l, true, "StoreWaits", -1,
		   "the job begins when the service manager has taken its memory's descriptors: it has not read "
		   "its socket for some seconds");
}

/* A job of an earlier gaccd whose plan cannot be made. Without memory it is tried again, as what the job has must not
 * be lost; what else is wrong will be wrong at the next start, too. */
static void fail_plan(struct live_job *l, enum status st, const char *why)
{
	l->plan_due = st == ST_NO_MEMORY;
	if (l->plan_due)
		return;
	fail_allocation(l, st, why);
	if (l->params_durable)
		coord_end(l->coord, st, why, daemon_now(l->d));
}

static void finish_allocation(struct allocation *a)
{
	struct live_job *l = a->l;
	const char *why = a->why[0] ? a->why : status_info(a->status)->text;
	if (!a->status && !a->adopted && *a->unused) /* once in a job's life */
		live_event(l, true, "UnusedRules", -1, a->unused);
	if (a->status && a->adopted)
		fail_plan(l, a->status, why);
	else if (a->status)
		fail_allocation(l, a->status, why);
	else if (a->adopted)
		l->allocating = false, live_start_engine(l);
	else
		store_then_start(l);
	free(a);
}

static void put_allocation(struct allocation *a);

/* Nobody needs the memory of a job that is over, and a gaccd that ends does not wait for it. */
static void on_allocated(struct rpc_work *w)
{
	struct allocation *a = (struct allocation *)w;
	struct live_job *l = a->l;
	bool more = !a->status && !allocated(a);
	if (more && l->d->node.stopping) {
		forget_memory(l);
		l->allocating = false;
		free(a);
	} else if (more && coord_phase(l->coord) < COORD_ENDING) {
		put_allocation(a);
	} else {
		a->status = more ? ST_JOB_ENDED : a->status;
		finish_allocation(a);
	}
}

/* The pages of many jobs are taken in turns, one portion of each user after the other. */
static void put_allocation(struct allocation *a)
{
	struct live_job *l = a->l;
	rpc_pool_put_kind(l->d->node.pool, a->adopted ? RPC_POOL_COMPUTE : RPC_POOL_ALLOCATE, &a->work, l->uid,
			  allocate_some, on_allocated);
}

static void allocate(struct live_job *l, bool adopted)
{
	struct allocation *a = calloc(1, sizeof(*a));
	if (!a) {
		(adopted ? fail_plan : fail_allocation)(l, ST_NO_MEMORY, "no memory");
		return;
	}
	a->l = l;
	a->adopted = adopted;
	a->portions = (struct portions){ .wanted = l->wanted,
					 .segment = l->segment,
					 .n = l->n_segments,
					 .job_id = l->id,
					 .generation = LIVE_GENERATION,
					 .fingerprint = l->plan->fingerprint };
	put_allocation(a);
}

void live_memory_tick(struct live_job *l)
{
	if (!l->plan_due)
		return;
	l->plan_due = false;
	allocate(l, true);
}

enum status live_memory_need(struct live_job *l, uint64_t *out)
{
	struct plan plan;
	plan_head(&plan, &l->spec, job_arena(l->job), l->id, job_slots(l->job), default_threads(l));
	int n_segments = plan_segments(&plan, NULL, 0);
	struct plan_segment *wanted = calloc((size_t)n_segments, sizeof(*wanted));
	if (!wanted)
		return ST_NO_MEMORY;
	plan_segments(&plan, wanted, n_segments);
	*out = bytes_of(wanted, n_segments);
	free(wanted);
	return ST_OK;
}

static void on_tensors_durable(void *arg, enum status st)
{
	struct live_job *l = arg;
	live_check_store(st);
	if (st) {
		fail_allocation(l, st,
				st == ST_JOB_ENDED ? status_info(st)->text
						   : "the tensor set cannot be written to the journal");
		return;
	}
	l->tensors_durable = true;
	allocate(l, false);
}

static enum status persist_tensors(struct live_job *l)
{
	enum status st = live_pack_tensors(l);
	if (st)
		return st;
	struct shared *set = l->tensors_packed;
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { l->id, { set->data, set->n } } };
	return persist_put_shared(l->d->persist, &r, set, on_tensors_durable, l);
}

static void on_restore_read(struct live_job *l, enum status st, const char *why)
{
	if (!st) {
		live_allocate(l);
		return;
	}
	fail_beginning(l, "RestoreFailed", st, why);
	coord_end(l->coord, st, why, daemon_now(l->d));
}

void live_allocate(struct live_job *l)
{
	char why[QUEUE_WHY] = "";
	if (l->tensors_due) {
		live_tensors_begin(l);
		return;
	}
	l->allocating = true;
	if (restoring_due(l)) {
		restoring_begin(l, on_restore_read);
		return;
	}
	enum status st = head_plan(l);
	if (st) {
		fail_allocation(l, st, status_info(st)->text);
		return;
	}
	l->host_bytes = bytes_of(l->wanted, l->n_segments);
	l->d->node.host_bytes += l->host_bytes;
	FAILPOINT(gaccd_adopt_before);
	int found = adopt(l);
	l->kept = found > 0;
	if (found == l->n_segments) {
		allocate(l, true);
		return;
	}
	if (l->params_durable) {
		l->allocating = false;
		memory_lost(l, found);
		return;
	}
	for (int i = 0; i < l->n_segments; i++) /* half an allocation: nothing was promised yet */
		segment_close(&l->segment[i]);
	drop_kept(l); /* or the next start would find two of each name */
	st = live_queue_fits(l, l->host_bytes, why, sizeof(why));
	if (st)
		fail_allocation(l, st, why);
	else if (l->tensors_durable || l->spec_pb->n_tensors)
		allocate(l, false);
	else if (persist_tensors(l))
		fail_allocation(l, ST_NO_MEMORY, "no memory");
}

/* ---- the end ---- */

void live_let_go(struct live_job *l)
{
	fdstore_cancel(l->keeping);
	engine_proc_close(l->engine);
	l->engine = NULL;
	if (l->n_segments)
		forget_memory(l);
}

void live_release(struct live_job *l)
{
	drop_kept(l);
	if (l->tensors_due)
		live_tensors_drop(l);
	live_let_go(l);
}

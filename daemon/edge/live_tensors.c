/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor sets from the journal: small ones at a start, large ones in the pool behind it. */
#include "edge/live_tensors.h"

#include "base/log.h"
#include "edge/live_aside.h"
#include "edge/live_saving.h"
#include "gacc/v1/common.pb-c.h"
#include "rpc/pool.h"
#include "rpc/shares.h"
#include "runtime/spec_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LARGE_BYTES (64u << 10) /* packed: some milliseconds */

struct reading {
	struct rpc_work work;
	struct live_job *l;
	struct tensor_set set;
	size_t bytes; /* of memory for it */
	enum status status;
	char why[200];
};

/* Any thread. */
static enum status build(const struct job_spec *spec, const void *bytes, size_t n, struct tensor_set *out, char *why,
			 size_t n_why)
{
	Gacc__V1__JobSpec *pb = gacc__v1__job_spec__unpack(NULL, n, bytes);
	struct tensor_spec *t = NULL;
	snprintf(why, n_why, "it is no tensor set");
	enum status st = pb ? tensors_from_message(pb->tensors, pb->n_tensors, &t, why, n_why) : ST_MALFORMED;
	if (!st)
		st = tensor_set_init(out, spec, t, pb->n_tensors, why, n_why);
	free(t);
	if (pb)
		gacc__v1__job_spec__free_unpacked(pb, NULL);
	return st;
}

enum status live_pack_tensors(struct live_job *l)
{
	uint64_t n;
	size_t n_packed;
	const struct tensor_spec *t = job_tensors(l->job, &n);
	if (l->tensors_packed)
		return ST_OK;
	void *packed = tensors_to_message(t, n, &n_packed);
	l->tensors_packed = packed ? shared_new(packed, n_packed) : NULL;
	if (!l->tensors_packed)
		free(packed);
	return l->tensors_packed ? ST_OK : ST_NO_MEMORY;
}

static bool keep_packed(struct live_job *l, const struct journal_bytes *b)
{
	void *copy = malloc(b->n);
	if (!copy)
		return false;
	memcpy(copy, b->data, b->n);
	l->tensors_packed = shared_new(copy, b->n);
	if (!l->tensors_packed)
		free(copy);
	return l->tensors_packed != NULL;
}

enum status live_tensors_restore(struct live_job *l, const struct journal_bytes *b, bool at_once, char *why,
				 size_t n_why)
{
	struct tensor_set set;
	bool kept = keep_packed(l, b); /* without it: live_pack_tensors */
	if (kept && !at_once && b->n >= LARGE_BYTES) {
		l->tensors_due = l->tensors_durable = true;
		return ST_OK;
	}
	enum status st = build(&l->spec, b->data, b->n, &set, why, n_why);
	if (!st) {
		job_take_tensors(l->job, &set);
		l->tensors_durable = true;
	}
	return st;
}

/* ---- in the pool ---- */

static size_t bytes_of(const struct tensor_set *s)
{
	size_t n = s->n * (sizeof(*s->tensor) + sizeof(struct arena_tensor));
	for (uint64_t i = 0; i < s->n; i++)
		n += tensor_text_bytes(&s->tensor[i]);
	return n;
}

static void read_set(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	const struct shared *packed = r->l->tensors_packed;
	r->status = build(&r->l->spec, packed->data, packed->n, &r->set, r->why, sizeof(r->why));
	if (!r->status)
		r->bytes = bytes_of(&r->set) + packed->n;
}

static void take(struct reading *r)
{
	struct live_job *l = r->l;
	log_job(l->id, LOG_INFO, "TensorsRead", "%llu tensors of an earlier gaccd have been read",
		(unsigned long long)r->set.n);
	job_take_tensors(l->job, &r->set);
	l->tensors_due = false;
	if (rpc_shares_add(&l->d->node.collected, l->uid, r->bytes)) /* it was there before: it is not refused now */
		l->tensor_bytes += r->bytes;
	live_allocate(l);
	live_tensors_drop(l);
}

static void on_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	struct live_job *l = r->l;
	l->allocating = false;
	if (l->d->node.stopping)
		tensor_set_fini(&r->set);
	else if (!r->status)
		take(r);
	else if (r->status != ST_NO_MEMORY)
		l->tensors_wrong = strdup(r->why);
	free(r);
}

void live_tensors_begin(struct live_job *l)
{
	struct reading *r = calloc(1, sizeof(*r));
	l->allocating = r != NULL;
	if (!r)
		return;
	r->l = l;
	rpc_pool_put(l->d->node.pool, &r->work, l->uid, read_set, on_read);
}

/* Nobody holds on to its machines. */
static bool is_free(const struct live_job *l)
{
	return coord_phase(l->coord) < COORD_ENDING && !l->n_holders && !l->n_watchers && !l->n_links && !l->waits &&
	       !l->n_norms_calls && !saving_busy(l);
}

bool live_tensors_tick(struct live_job *l)
{
	if (!l->tensors_due || l->allocating || l->queued || coord_phase(l->coord) >= COORD_ENDING)
		return false;
	if (!l->tensors_wrong) {
		live_allocate(l);
		return false;
	}
	if (!is_free(l) || live_set_aside(l, "TENSORS", l->tensors_wrong))
		return false;
	l->tensors_due = false;
	live_launch_free(l);
	return true;
}

/* ---- the memory that waits ---- */

static bool is_of(const struct live_job *l, const struct fdstore_fd *s, unsigned *out_role)
{
	unsigned long long id = 0;
	return s->fd >= 0 && sscanf(s->name, "j%llu.r%u.", &id, out_role) == 2 && id == l->id;
}

uint64_t live_tensors_held(const struct live_job *l)
{
	struct stat info;
	uint64_t sum = 0;
	unsigned role;
	for (size_t i = 0; i < l->d->node.n_stored; i++)
		if (is_of(l, &l->d->node.stored[i], &role) && !fstat(l->d->node.stored[i].fd, &info))
			sum += (uint64_t)info.st_size;
	return sum;
}

void live_tensors_drop(struct live_job *l)
{
	unsigned role;
	for (size_t i = 0; i < l->d->node.n_stored; i++) {
		struct fdstore_fd *s = &l->d->node.stored[i];
		if (!is_of(l, s, &role))
			continue;
		fdstore_remove(l->d->node.fdstore, s->name);
		close(s->fd);
		s->fd = -1;
	}
}

/* Tensors in a packed set, which has no other field; 0: it is none. */
static uint64_t count(const uint8_t *at, size_t n)
{
	const uint8_t *end = at + n;
	uint64_t found = 0;
	for (; at < end; found++) {
		for (int part = 0; part < 2; part++) { /* the field's tag, then its length */
			uint64_t value = 0;
			int shift = 0;
			do {
				if (at == end || shift > 28)
					return 0;
				value |= (uint64_t)(*at & 0x7f) << shift;
				shift += 7;
			} while (*at++ & 0x80);
			if (part && value > (uint64_t)(end - at))
				return 0;
			at += part ? value : 0;
		}
	}
	return found;
}

static bool read_window(const struct live_job *l, void *data, uint32_t threads, uint64_t n_tensors, uint64_t *out)
{
	struct control_page page;
	struct control_state state;
	bool corrupt, ok;
	if (control_state_init(&state, l->spec.ranks, l->spec.max_micro_size))
		return false;
	control_page_view(&page, data, l->spec.ranks, l->spec.max_micro_size, threads, n_tensors);
	ok = control_page_read(&page, &state, &corrupt);
	*out = state.r.window;
	control_state_fini(&state);
	return ok;
}

static bool look_into(const struct live_job *l, int fd, uint64_t *out)
{
	struct segment_header h;
	uint64_t n = count(l->tensors_packed->data, l->tensors_packed->n);
	uint32_t threads = 1;
	if (segment_peek(fd, &h))
		return false;
	while (threads <= PLAN_MAX_THREADS &&
	       control_page_bytes(l->spec.ranks, l->spec.max_micro_size, threads, n) != h.bytes - h.data_offset)
		threads++;
	char *all = threads > PLAN_MAX_THREADS ? MAP_FAILED : mmap(NULL, h.bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (all == MAP_FAILED)
		return false;
	bool ok = read_window(l, all + h.data_offset, threads, n, out);
	munmap(all, h.bytes);
	return ok;
}

bool live_tensors_window(const struct live_job *l, uint64_t *out)
{
	unsigned role;
	for (size_t i = 0; i < l->d->node.n_stored; i++)
		if (is_of(l, &l->d->node.stored[i], &role) && role == SEG_CONTROL)
			return look_into(l, l->d->node.stored[i].fd, out);
	return false;
}

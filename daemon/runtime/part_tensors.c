/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor set of a part, from the journal: small ones at a start on the loop thread, large ones in the pool when
 * gaccd serves already. */
#include "base/log.h"
#include "engine/touched.h"
#include "gacc/v1/common.pb-c.h"
#include "rpc/pool.h"
#include "runtime/part.h"
#include "runtime/spec_message.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE_BYTES (64u << 10) /* packed: some milliseconds */

struct reading {
	struct rpc_work work;
	struct part *p;
	struct tensor_set set;
	size_t bytes; /* of memory for it */
	enum status status;
	char why[200];
};

enum status part_build_tensors(const struct job_spec *spec, const void *packed, size_t n, struct tensor_set *out,
			       char *why, size_t n_why)
{
	Gacc__V1__JobSpec *pb = gacc__v1__job_spec__unpack(NULL, n, packed);
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

enum status part_pack_tensors(struct part *p)
{
	uint64_t n;
	size_t n_packed;
	const struct tensor_spec *t = job_tensors(p->job, &n);
	if (p->tensors.packed)
		return ST_OK;
	void *packed = tensors_to_message(t, n, &n_packed);
	p->tensors.packed = packed ? shared_new(packed, n_packed) : NULL;
	if (!p->tensors.packed)
		free(packed);
	return p->tensors.packed ? ST_OK : ST_NO_MEMORY;
}

enum status part_restore_tensors(struct part *p, struct shared *packed, bool at_once, char *why, size_t n_why)
{
	struct tensor_set set;
	p->tensors.packed = packed;
	if (!at_once && packed->n >= LARGE_BYTES) {
		p->tensors.due = p->tensors.durable = true;
		return ST_OK;
	}
	enum status st = part_build_tensors(p->spec, packed->data, packed->n, &set, why, n_why);
	if (!st) {
		job_take_tensors(p->job, &set);
		p->tensors.durable = true;
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
	const struct shared *packed = r->p->tensors.packed;
	r->status = part_build_tensors(r->p->spec, packed->data, packed->n, &r->set, r->why, sizeof(r->why));
	if (!r->status)
		r->bytes = bytes_of(&r->set) + packed->n;
}

static void take(struct reading *r)
{
	struct part *p = r->p;
	log_job(p->id, LOG_INFO, "TensorsRead", "%llu tensors of an earlier gaccd have been read",
		(unsigned long long)r->set.n);
	job_take_tensors(p->job, &r->set);
	p->tensors.due = false;
	if (rpc_quota_add(&p->node->collected, p->uid, r->bytes)) /* it was there before: it is not refused now */
		p->tensors.bytes += r->bytes;
	part_allocate(p);
	stored_release(p->node, p->id, p->number, p->uid);
}

static void on_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	struct part *p = r->p;
	p->mem.allocating = false;
	if (p->node->stopping)
		tensor_set_fini(&r->set);
	else if (!r->status)
		take(r);
	else if (r->status != ST_NO_MEMORY)
		p->tensors.wrong = strdup(r->why);
	free(r);
}

void part_read_tensors(struct part *p)
{
	struct reading *r = calloc(1, sizeof(*r));
	p->mem.allocating = r != NULL;
	if (!r)
		return;
	r->p = p;
	rpc_pool_put(p->node->pool, &r->work, p->uid, read_set, on_read);
}

bool part_is_mended_by(const struct part *p, const struct shared *set)
{
	const struct shared *is = p->tensors.packed;
	return p->tensors.wrong && set && (!is || set->n != is->n || memcmp(set->data, is->data, is->n) != 0);
}

void part_mend_tensors(struct part *p, struct shared *set)
{
	shared_drop(p->tensors.packed);
	p->tensors.packed = set;
	free(p->tensors.wrong);
	p->tensors.wrong = NULL;
	p->tensors.told = false;
}

/* ---- the memory that waits ---- */

/* The number of tensors in a packed set, which has no other field; 0: these bytes are no such set. */
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

static bool read_window(const struct part *p, void *data, uint32_t threads, uint64_t n_tensors, uint64_t *out)
{
	struct control_page page;
	struct control_state state;
	bool corrupt, ok;
	if (control_state_init(&state, p->spec->ranks, p->spec->max_micro_size))
		return false;
	control_page_view(&page, data, p->spec->ranks, p->spec->max_micro_size, threads, n_tensors);
	ok = control_page_read(&page, &state, &corrupt);
	*out = state.r.window;
	control_state_fini(&state);
	return ok;
}

static bool look_into(const struct part *p, int fd, uint64_t *out)
{
	struct segment_header h;
	uint64_t n = count(p->tensors.packed->data, p->tensors.packed->n);
	uint32_t threads = 1;
	if (segment_peek(fd, &h))
		return false;
	while (threads <= PLAN_MAX_THREADS &&
	       touched_control_bytes(p->spec->ranks, p->spec->max_micro_size, threads, n,
				     p->spec->untouched == UNTOUCHED_SKIP) != h.bytes - h.data_offset)
		threads++;
	char *all = threads > PLAN_MAX_THREADS ? MAP_FAILED : mmap(NULL, h.bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (all == MAP_FAILED)
		return false;
	bool ok = read_window(p, all + h.data_offset, threads, n, out);
	munmap(all, h.bytes);
	return ok;
}

bool part_stored_window(const struct part *p, uint64_t *out)
{
	uint32_t number;
	unsigned role;
	for (size_t i = 0; i < p->node->n_stored; i++)
		if (stored_job(&p->node->stored[i], &number, &role) == p->id && number == p->number &&
		    role == SEG_CONTROL)
			return look_into(p, p->node->stored[i].fd, out);
	return false;
}

void part_tensors_gone(struct part *p)
{
	rpc_quota_give(&p->node->collected, p->uid, p->tensors.bytes);
	p->tensors.bytes = 0;
}

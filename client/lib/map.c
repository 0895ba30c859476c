/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the daemon's memory. The descriptors come over the attach socket (proto/gacc/v1/attach.proto) and are closed
 * once mapped, except a mailbox's bells; the socket stays open for as long as the session lives. */
#include "lib/map_ask.h"

#include "lib/channel.h"
#include "lib/env.h"
#include "proto/failpoint.h"
#include "proto/segment_layout.h"
#include "proto/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <poll.h>
#include <unistd.h>

static struct mapping *place_of(struct memory *memory, const Gacc__V1__Segment *s)
{
	switch (s->kind) {
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SLOT:
		return s->index < SLOTS_MAX ? &memory->slot[s->index] : NULL;
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_PARAMETERS:
		return &memory->params;
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_STATUS:
		return &memory->status;
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_REDUCED:
		return s->index < 2 ? &memory->reduced[s->index] : NULL;
	default:
		return NULL;
	}
}

static bool same_memory(const struct mapping *a, const struct mapping *b)
{
	return a->base && a->dev == b->dev && a->ino == b->ino && a->bytes == b->bytes;
}

/* A mapping of `fd` as large as the daemon says, of a file that can no longer shrink under us. */
static enum status map_one(int fd, const Gacc__V1__Segment *s, struct mapping *out, struct rpc_failure *f)
{
	bool writable = s->kind == GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SLOT;
	struct stat sb;
	void *base;
	int seals;

	if (fstat(fd, &sb))
		return map_fail(f, ST_SEGMENT_CORRUPT, "segment", strerror(errno));
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || s->bytes == 0 || (uint64_t)sb.st_size < s->bytes ||
	    s->data_offset > s->bytes)
		return map_fail(f, ST_SEGMENT_CORRUPT, "segment", "not as large as announced, or not sealed");
	base = mmap(NULL, s->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return map_fail(f, ST_NO_MEMORY, "mmap",
				errno == ENOMEM ? "no memory, or more mappings than vm.max_map_count"
						: strerror(errno));
	*out = (struct mapping){ .base = base,
				 .bytes = s->bytes,
				 .data_offset = s->data_offset,
				 .writable = writable,
				 .dev = sb.st_dev,
				 .ino = sb.st_ino };
	return ST_OK;
}

/* Memory of the device, which lies as a whole in `base` and behind. */
static enum status import_one(struct cuda *c, int fd, const Gacc__V1__Segment *s, struct mapping *out,
			      struct rpc_failure *f)
{
	bool writable = s->kind == GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SLOT;
	struct cuda_imported m;
	char why[160];
	enum status st;

	if (!c)
		return map_fail(f, ST_DEVICE_MISMATCH, "segment", "it is on a GPU, and none was named");
	if (s->data_offset > s->bytes || !s->bytes)
		return map_fail(f, ST_SEGMENT_CORRUPT, "segment", "its data begins behind its end");
	st = cuda_import(c, fd, s->bytes, writable, &m, why, sizeof(why));
	if (st)
		return map_fail(f, st, "the GPU's memory cannot be imported", why);
	*out = (struct mapping){
		(unsigned char *)(uintptr_t)m.at, s->bytes, s->data_offset, writable, .ino = s->identity, .device = m
	};
	return ST_OK;
}

static void unmap(struct mapping *m, const struct cuda *c)
{
	if (m->base && m->device.bytes)
		cuda_drop(c, &m->device);
	else if (m->base)
		munmap(m->base, m->bytes);
	m->base = NULL;
}

/* It is put exactly where the old one lies, and pointers into that stay. */
static bool same_shape(const struct mapping *old, const struct mapping *fresh)
{
	return !old->base || !fresh->base ||
	       (old->bytes == fresh->bytes && old->data_offset == fresh->data_offset &&
		!old->device.bytes == !fresh->device.bytes);
}

/* The status page is known to nobody, and may be another one. */
static bool same_shapes(const struct memory *old, const struct memory *fresh)
{
	bool ok = same_shape(&old->params, &fresh->params);

	for (int i = 0; i < SLOTS_MAX; i++)
		ok = ok && same_shape(&old->slot[i], &fresh->slot[i]);
	for (int i = 0; i < 2; i++)
		ok = ok && same_shape(&old->reduced[i], &fresh->reduced[i]);
	return ok;
}

/* Does the new memory hold what the layout needs, and is it of the shape that the old one had? */
static enum status check_fresh(const struct memory *fresh, const struct memory *old, const struct gacc_job *job,
			       struct rpc_failure *f)
{
	const struct layout *l = &job->layout;
	bool ok = fresh->params.base && fresh->params.bytes - fresh->params.data_offset >= l->param_bytes;

	for (uint32_t i = 0; i < l->slots && ok; i++)
		ok = fresh->slot[i].base && fresh->slot[i].bytes - fresh->slot[i].data_offset >= l->slot_bytes;
	for (int i = 0; i < 2 && ok && job->client_optimizer; i++)
		ok = fresh->reduced[i].base &&
		     fresh->reduced[i].bytes - fresh->reduced[i].data_offset >= l->accum_bytes;
	ok = ok &&
	     (!fresh->status.base || fresh->status.bytes - fresh->status.data_offset >= sizeof(struct status_page));
	if (!ok)
		return map_fail(f, ST_SEGMENT_CORRUPT, "segments", "one is missing or too small for the tensor set");
	if (!same_shapes(old, fresh))
		return map_fail(f, ST_LAYOUT_MISMATCH, "segments", "sizes changed over a restart");
	return ST_OK;
}

/* Puts new memory where the old was, so that pointers into it stay good. What a trainer had written to a slot moves
 * along: the push of it may have to be repeated. */
static enum status move_in(struct mapping *old, struct mapping *fresh, const struct cuda *c)
{
	void *at = old->base;

	if (!old->base) {
		*old = *fresh;
	} else if (same_memory(old, fresh)) {
		unmap(fresh, c);
	} else if (old->device.bytes) {
		if (cuda_replace(c, &old->device, &fresh->device, old->writable, old->data_offset))
			return ST_INTERNAL;
		old->ino = fresh->ino;
	} else {
		if (old->writable)
			memcpy(mapping_data(fresh), mapping_data(old), old->bytes - old->data_offset);
		if (mremap(fresh->base, fresh->bytes, fresh->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
			return ST_NO_MEMORY;
		*old = *fresh;
		old->base = at;
	}
	fresh->base = NULL;
	return ST_OK;
}

static enum status move_all(struct memory *old, struct memory *fresh)
{
	const struct cuda *c = old->cuda;
	enum status st = ST_OK;

	for (int i = 0; i < SLOTS_MAX && !st; i++)
		st = fresh->slot[i].base ? move_in(&old->slot[i], &fresh->slot[i], c) : ST_OK;
	for (int i = 0; i < 2 && !st; i++)
		st = fresh->reduced[i].base ? move_in(&old->reduced[i], &fresh->reduced[i], c) : ST_OK;
	if (!st)
		st = move_in(&old->params, &fresh->params, c);
	if (!st && fresh->status.base) {
		unmap(&old->status, c);
		st = move_in(&old->status, &fresh->status, c);
	}
	return st;
}

/* ---- what a GPU's driver has pinned ---- */

static struct cuda_wanted wanted(const struct mapping *m)
{
	return m->device.bytes ? (struct cuda_wanted){ NULL, 0 } : (struct cuda_wanted){ m->base, m->bytes };
}

enum status memory_pin(struct memory *m, char *why, size_t size)
{
	struct cuda_wanted slots[SLOTS_MAX];

	for (int i = 0; i < SLOTS_MAX; i++)
		slots[i] = wanted(&m->slot[i]);
	return cuda_pin(m->cuda, slots, wanted(&m->params), why, size);
}

bool memory_unpin(struct memory *m)
{
	char why[200];

	return cuda_unpin(m->cuda, why, sizeof(why));
}

static bool moves(const struct mapping *old, const struct mapping *fresh)
{
	return old->base && fresh->base && !same_memory(old, fresh);
}

/* A registration is of pages, not of addresses: copies of the device would still go to the old ones. */
static enum status move_pinned(struct memory *old, struct memory *fresh, struct rpc_failure *f)
{
	struct cuda *c = old->cuda;
	bool any = c && (!c->pinned || moves(&old->params, &fresh->params));
	char why[160] = "";
	enum status st;

	for (int i = 0; i < SLOTS_MAX && c; i++)
		any = any || moves(&old->slot[i], &fresh->slot[i]);
	if (any && !cuda_unpin(c, why, sizeof(why)))
		goto lost;
	st = move_all(old, fresh);
	if (st == ST_INTERNAL) {
		snprintf(why, sizeof(why), "imported memory cannot be exchanged");
		goto lost;
	}
	if (st)
		return map_fail(f, st, "mremap", strerror(errno));
	if (!any || !memory_pin(old, why, sizeof(why)))
		return ST_OK;
lost:
	c->lost = true;
	snprintf(c->why, sizeof(c->why), "the daemon's memory has changed, and the GPU's driver failed: %s", why);
	f->is_final = true;
	return map_fail(f, ST_INTERNAL, "GPU", c->why);
}

/* Slots of the job whose content is about to move must be complete. gaccd is not to blame for one that is not, and
 * asking it again would not help. */
static enum status await_slots(const struct gacc_job *job, const struct memory *fresh, struct rpc_failure *f)
{
	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		if (same_memory(&job->memory.slot[i], &fresh->slot[i]) || late_await(job, i, INT64_MAX))
			continue;
		late_name(job, i, f->message, sizeof(f->message));
		snprintf(f->hint, sizeof(f->hint), "%s", LATE_HINT);
		snprintf(f->reason, sizeof(f->reason), "%s", status_info(ST_STALLED)->name);
		f->is_final = true;
		return f->status = ST_STALLED;
	}
	return ST_OK;
}

static enum status map_segments(const struct map_answer *a, struct memory *fresh, struct cuda *c, struct rpc_failure *f)
{
	for (size_t i = 0; i < a->n_fds; i++) {
		const Gacc__V1__Segment *s = a->message->segments[i];
		struct mapping *place = place_of(fresh, s);
		enum status st;

		if (!place)
			continue; /* a kind that a later daemon has */
		if (place->base)
			return map_fail(f, ST_MALFORMED, "answer", "a segment comes twice");
		st = s->on_device ? import_one(c, a->fds[i], s, place, f) : map_one(a->fds[i], s, place, f);
		if (st)
			return st;
	}
	return ST_OK;
}

/* ---- the mailbox ---- */

/* Where a descriptor of this kind belongs; NULL: it is none of a mailbox. */
static int *mailbox_place(struct cells_fds *fds, Gacc__V1__SegmentKind kind)
{
	switch (kind) {
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_MAILBOX:
		return &fds->memory;
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SUBMIT:
		return &fds->submit;
	case GACC__V1__SEGMENT_KIND__SEGMENT_KIND_ANSWER:
		return &fds->waits;
	default:
		return NULL;
	}
}

/* Takes a mailbox's descriptors out of the answer; false: it has none. One that comes twice stays there. */
static bool take_mailbox(struct map_answer *a, struct cells_fds *fds)
{
	bool any = false;

	for (size_t i = 0; i < a->n_fds; i++) {
		int *place = mailbox_place(fds, a->message->segments[i]->kind);

		if (!place || *place >= 0)
			continue;
		*place = a->fds[i];
		a->fds[i] = -1;
		any = true;
	}
	return any;
}

/* The mailbox that came, if one did and it is in order. Without one all goes by RPC, so this cannot fail. */
static void open_mailbox(struct memory *fresh, const struct gacc_job *job, struct map_answer *a)
{
	struct cells_owner owner = { .job = job->id,
				     .sgen = job->generation,
				     .rank = (uint32_t)job->rank,
				     .slots = job->layout.slots,
				     .n_tensors = job->layout.n };
	struct cells_fds fds = CELLS_NO_FDS;
	char why[160];

	if (!take_mailbox(a, &fds) || !cells_open(&fresh->cells, &fds, &owner, fresh->socket, why, sizeof(why)))
		return;
	if (!fresh->cells_told && env_may_say())
		fprintf(stderr, "gacc: rank %d: pushes go by RPC, the mailbox is not in order: %s\n", job->rank, why);
	fresh->cells_told = true;
}

/* ---- all of it ---- */

/* What is not mapped at addresses that the caller knows: the new one takes the old one's place. */
static void swap_session(struct memory *old, struct memory *fresh)
{
	struct cells cells = old->cells;
	int socket = old->socket;

	old->cells = fresh->cells;
	old->cells_told = fresh->cells_told;
	old->socket = fresh->socket;
	fresh->cells = cells;
	fresh->socket = socket;
}

static void unmap_all(struct memory *memory, const struct cuda *c)
{
	for (int i = 0; i < SLOTS_MAX; i++)
		unmap(&memory->slot[i], c);
	for (int i = 0; i < 2; i++)
		unmap(&memory->reduced[i], c);
	unmap(&memory->params, c);
	unmap(&memory->status, c);
	cells_close(&memory->cells);
	words_close(&memory->words);
	if (memory->socket >= 0)
		close(memory->socket);
	memory->socket = -1;
}

enum status memory_map(struct memory *memory, const struct gacc_job *job, struct rpc_failure *f)
{
	struct memory fresh = { .socket = -1, .cells_told = memory->cells_told };
	const struct map_wants wants = { env_wants_mailbox(), memory->device, memory->gpu };
	struct map_answer a = { 0 };
	enum status st;

	st = map_ask(job, wants, &fresh.socket, &a, f);
	if (!st)
		st = map_segments(&a, &fresh, memory->cuda, f);
	if (!st)
		st = check_fresh(&fresh, memory, job, f);
	if (!st)
		st = await_slots(job, &fresh, f);
	if (!st)
		st = move_pinned(memory, &fresh, f);
	if (!st) {
		open_mailbox(&fresh, job, &a);
		swap_session(memory, &fresh);
		words_follow(&memory->words, &memory->cells);
		FAILPOINT(client_mapped);
	}
	unmap_all(&fresh, memory->cuda);
	map_answer_fini(&a);
	return st;
}

static enum status private_memory(struct mapping *m, size_t bytes)
{
	void *base;

	if (m->base || !bytes)
		return ST_OK;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return ST_NO_MEMORY;
	*m = (struct mapping){ .base = base, .bytes = bytes, .writable = true };
	return ST_OK;
}

enum status memory_inline(struct memory *memory, const struct layout *layout, bool reduced)
{
	enum status st = private_memory(&memory->params, layout->param_bytes);

	for (uint32_t i = 0; i < layout->slots && !st; i++)
		st = private_memory(&memory->slot[i], layout->slot_bytes);
	if (!st && reduced)
		st = private_memory(&memory->reduced[0], layout->accum_bytes);
	memory->inlined = true;
	return st;
}

bool memory_hung_up(const struct memory *memory)
{
	struct pollfd p = { .fd = memory->socket, .events = 0 };

	return memory->socket >= 0 && poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR);
}

void memory_unmap(struct memory *memory)
{
	struct cuda *c = memory->cuda;

	if (c)
		memory_unpin(memory); /* and the device has done what it had to do */
	unmap_all(memory, c);
	cuda_free(c);
	memory->cuda = NULL;
}

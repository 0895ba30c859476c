/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a checkpoint into the arenas and the control record, and checks each file against the plan and the manifest.
 * For saving.c; the engine's main thread, which waits for the disk. */
#include "engine/snapshot.h"

#include "engine/commit.h"
#include "engine/snapshot_files.h"
#include "engine/touched.h"
#include "proto/failpoint.h"
#include "store/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN_BYTES (4u << 20) /* of one read */

struct restore {
	const struct memory *m;
	struct arith *arith;
	const struct engine_restore *r;
	int dir_fd;
	char *why;
	size_t n_why;
	unsigned char *in;
	struct touched touched;
	int64_t *steps; /* [n_tensors], as a file has them; NULL: the job steps all tensors, or has not read them */
};

/* Where a tensor goes: into an arena, or into private memory. */
struct target {
	enum segment_role role;
	uint64_t offset;   /* in the role's data, were that of the whole arena */
	unsigned char *at; /* not NULL: private memory */
};

/* A file under way. */
struct source {
	char name[CHECKPOINT_FILE_NAME];
	const struct engine_file *is; /* as the manifest says */
	int fd;
	struct safetensors *s;
	const struct safe_tensor *tensor;
	size_t n;
	struct target *target; /* [n] */
};

__attribute__((format(printf, 3, 4))) static enum status wrong(const struct restore *x, enum status st, const char *fmt,
							       ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(x->why, x->n_why, fmt, ap);
	va_end(ap);
	return st;
}

/* ---- is it the file that the plan wants? ---- */

static bool same_shape(const struct safe_tensor *a, const struct safe_tensor *b)
{
	return a->dtype == b->dtype && a->n_dims == b->n_dims &&
	       !memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof(*a->shape));
}

static enum status match(const struct restore *x, const struct source *f, const struct safe_tensor *want,
			 struct target target)
{
	const struct safe_tensor *t = safetensors_find(f->s, want->name);
	if (!t)
		return wrong(x, ST_LAYOUT_MISMATCH, "%s: tensor \"%.80s\" is missing", f->name, want->name);
	if (!same_shape(t, want))
		return wrong(x, ST_LAYOUT_MISMATCH,
			     "%s: tensor \"%.80s\" is %s with %d dimensions or of another shape, not %s", f->name,
			     want->name, safe_dtype_name(t->dtype), t->n_dims, safe_dtype_name(want->dtype));
	f->target[t - f->tensor] = target;
	return ST_OK;
}

/* That of `part` of n_parts, 1: the whole job's. */
static enum status open_source(struct restore *x, enum checkpoint_part p, uint32_t part, uint32_t n_parts,
			       struct source *f)
{
	const bool of_share = p == CHECKPOINT_OPTIMIZER && n_parts > 1;
	*f = (struct source){ .is = of_share ? &x->r->share[part] : &x->r->file[p], .fd = -1 };
	checkpoint_file_name(f->name, p, part, n_parts);
	if (!f->is->bytes)
		return wrong(x, ST_LAYOUT_MISMATCH, "the checkpoint has no %s", f->name);
	if (FAILPOINT_ERROR(engine_load_file_before))
		return wrong(x, ST_IO_ERROR, "reading %s: %s", f->name, strerror(EIO));
	enum status st = checkpoint_open_file(x->dir_fd, f->name, x->r->owner, &f->fd, x->why, x->n_why);
	if (!st)
		st = safetensors_read(f->name, f->fd, &f->s, x->why, x->n_why);
	if (st)
		return st;
	f->tensor = safetensors_all(f->s, &f->n);
	f->target = calloc(f->n + 1, sizeof(*f->target));
	return f->target ? ST_OK : ST_NO_MEMORY;
}

/* What one part has of its own, or all have alike. */
static uint32_t parts_of(const struct restore *x, enum checkpoint_part p)
{
	return p == CHECKPOINT_CARRY || p == CHECKPOINT_WINDOW ? x->m->plan->n_parts : 1;
}

static enum status open_wanted(struct restore *x, enum checkpoint_part p, struct source *f)
{
	const uint32_t n_parts = parts_of(x, p);
	return open_source(x, p, n_parts > 1 ? x->m->plan->part : 0, n_parts, f);
}

static enum status check_count(const struct restore *x, const struct source *f, uint64_t n_wanted)
{
	if (f->n == n_wanted)
		return ST_OK;
	return wrong(x, ST_LAYOUT_MISMATCH, "%s: %zu tensors, the job needs %" PRIu64, f->name, f->n, n_wanted);
}

/* What a job with untouched: skip has saved before the optimizer's state. Jobs that step all tensors have none, and
 * take no notice of it. *has: the file has it. */
static enum status match_steps(struct restore *x, struct source *f, bool *has)
{
	const uint64_t n = x->m->plan->n_tensors;
	const struct safe_tensor want = snapshot_steps_tensor(n);
	const struct safe_tensor *t = safetensors_find(f->s, want.name);
	*has = t != NULL;
	if (!t)
		return ST_OK;
	if (!x->steps)
		x->steps = calloc(n, sizeof(*x->steps));
	return x->steps ? match(x, f, &want, (struct target){ .at = (unsigned char *)x->steps }) : ST_NO_MEMORY;
}

static void close_source(struct source *f)
{
	safetensors_free(f->s);
	free(f->target);
	if (f->fd >= 0)
		close(f->fd);
}

/* ---- its bytes, in one pass: into the sum and into place ---- */

/* What this part has of a role's data, were that of the whole arena: bytes [from, end). */
static void own_bytes(const struct restore *x, enum segment_role role, uint64_t *from, uint64_t *end)
{
	const struct memory *m = x->m;
	const bool by_share = role == SEG_MASTER || role == SEG_STATE0 || role == SEG_STATE1;
	*from = by_share ? m->own * sizeof(float) : 0;
	*end = by_share ? m->own_end * sizeof(float) : plan_role_bytes(m->plan, role);
}

static void put(const struct restore *x, const struct target *t, uint64_t offset, const unsigned char *data, size_t n)
{
	uint64_t from, end, at = t->offset + offset;
	if (t->at) {
		memcpy(t->at + offset, data, n);
		return;
	}
	own_bytes(x, t->role, &from, &end);
	const uint64_t first = at < from ? from : at, behind = at + n < end ? at + n : end;
	if (first < behind)
		arith_need("restoring",
			   x->arith->ops->write(x->arith, t->role, first - from, behind - first, data + (first - at)));
}

static void scatter(const struct restore *x, const struct source *f, size_t *tensor, uint64_t at,
		    const unsigned char *data, size_t n)
{
	for (uint64_t end = at + n; at < end;) {
		const struct safe_tensor *t = &f->tensor[*tensor];
		if (t->end <= at) {
			++*tensor;
			continue;
		}
		uint64_t k = (t->end < end ? t->end : end) - at;
		put(x, &f->target[*tensor], at - t->begin, data, k);
		data += k;
		at += k;
	}
}

static enum status copy_data(struct restore *x, const struct source *f, struct sha256 *sum)
{
	uint64_t head = safetensors_data_offset(f->s), at = 0, bytes = f->is->bytes;
	size_t tensor = 0;
	while (at < bytes) {
		uint64_t border = at < head ? head : bytes; /* the header apart */
		ssize_t n = pread(f->fd, x->in, border - at < IN_BYTES ? border - at : IN_BYTES, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return wrong(x, ST_IO_ERROR, "reading %s: %s", f->name, n ? strerror(errno) : "it is cut off");
		sha256_add(sum, x->in, (size_t)n);
		if (at >= head)
			scatter(x, f, &tensor, at - head, x->in, (size_t)n);
		at += (uint64_t)n;
	}
	return ST_OK;
}

static enum status read_source(struct restore *x, const struct source *f)
{
	uint8_t is[SHA256_BYTES];
	uint64_t bytes = safetensors_data_offset(f->s) + (f->n ? f->tensor[f->n - 1].end : 0);
	if (bytes != f->is->bytes)
		return wrong(x, ST_CHECKSUM, "%s has %" PRIu64 " bytes, the manifest says %" PRIu64, f->name, bytes,
			     f->is->bytes);
	struct sha256 *sum = sha256_new();
	if (!sum)
		return ST_NO_MEMORY;
	enum status st = copy_data(x, f, sum);
	sha256_end(sum, is);
	sha256_free(sum);
	if (!st && memcmp(is, f->is->sha256, sizeof(is)))
		st = wrong(x, ST_CHECKSUM, "%s: its SHA-256 is not the manifest's", f->name);
	if (!st)
		FAILPOINT(engine_load_file_after);
	return st;
}

static enum status restore_arrays(struct restore *x, enum checkpoint_part part)
{
	struct snapshot_list l;
	struct source f = { .fd = -1 };
	bool steps = false;
	enum status st = snapshot_list_init(&l, x->m->plan, part, 0, snapshot_span_all(x->m->plan));
	if (st || !l.n)
		return st;
	st = open_wanted(x, part, &f);
	if (!st && part == CHECKPOINT_OPTIMIZER)
		st = match_steps(x, &f, &steps);
	if (!st)
		st = check_count(x, &f, l.n + steps);
	for (uint64_t i = 0; i < l.n && !st; i++)
		st = match(x, &f, &l.entry[i].safe,
			   (struct target){ l.section[l.entry[i].section].role, l.entry[i].offset, NULL });
	if (!st)
		st = read_source(x, &f);
	close_source(&f);
	snapshot_list_fini(&l);
	return st;
}

/* ---- the optimizer state in shares ---- */

/* Looks at all that the file has; *any: something of it is this part's. */
static enum status match_share(struct restore *x, struct snapshot_cover *c, struct source *f, bool *any)
{
	bool steps = false;
	enum status st = match_steps(x, f, &steps);
	for (size_t i = 0; i < f->n && !st; i++) {
		uint64_t entry = 0, first = 0, from, end;
		if (f->target[i].at) /* the steps, which are no part of a share */
			continue;
		st = snapshot_cover_add(c, f->name, &f->tensor[i], &entry, &first, x->why, x->n_why);
		if (st)
			break;
		const struct snapshot_entry *e = &c->whole->entry[entry];
		const uint64_t at = e->offset + first * sizeof(float);
		f->target[i] = (struct target){ c->whole->section[e->section].role, at, NULL };
		own_bytes(x, f->target[i].role, &from, &end);
		*any |= at < end && at + (f->tensor[i].end - f->tensor[i].begin) > from;
	}
	return st;
}

/* The names in the files say what each has, so that shares may have been cut otherwise than this job's. Files that have
 * nothing of this part's own are read by the parts that they concern. */
static enum status restore_shares(struct restore *x)
{
	struct snapshot_list l;
	struct snapshot_cover c = { .whole = NULL };
	enum status st = snapshot_list_init(&l, x->m->plan, CHECKPOINT_OPTIMIZER, 0, snapshot_span_all(x->m->plan));
	if (st || !l.n)
		return st;
	st = snapshot_cover_init(&c, &l);
	for (uint32_t i = 0; i < x->r->n_shares && !st; i++) {
		struct source f = { .fd = -1 };
		bool any = false;
		if (!x->r->share[i].bytes) /* a small arena leaves parts without a share */
			continue;
		st = open_source(x, CHECKPOINT_OPTIMIZER, i, x->r->n_shares, &f);
		if (!st)
			st = match_share(x, &c, &f, &any);
		if (!st && any)
			st = read_source(x, &f);
		close_source(&f);
	}
	if (!st)
		st = snapshot_cover_end(&c, x->why, x->n_why);
	snapshot_cover_fini(&c);
	snapshot_list_fini(&l);
	return st;
}

/* ---- the open window ---- */

static enum status restore_window(struct restore *x, struct control_state *s)
{
	struct safe_tensor t[WINDOW_TENSORS];
	struct source f = { .fd = -1 };
	unsigned char *data = calloc(1, snapshot_window_bytes(s->r.ranks, s->r.micro_size));
	const struct safe_tensor touched = snapshot_touched_tensor(x->m->plan->n_tensors, 0);
	const bool skips = x->touched.plan != NULL;
	enum status st = data ? ST_OK : ST_NO_MEMORY;
	snapshot_window_tensors(t, s->r.ranks, s->r.micro_size);
	if (!st)
		st = open_wanted(x, CHECKPOINT_WINDOW, &f);
	if (!st)
		st = check_count(x, &f, WINDOW_TENSORS + skips);
	if (!st && skips)
		st = match(x, &f, &touched, (struct target){ .at = x->touched.set[0] });
	for (int i = 0; i < WINDOW_TENSORS && !st; i++)
		st = match(x, &f, &t[i], (struct target){ .at = data + t[i].begin });
	if (!st)
		st = read_source(x, &f);
	if (!st && !snapshot_window_load(s, &x->m->page, t, data))
		st = wrong(x, ST_MALFORMED, "%s: a state, a weight or a mark is none, or they are not %" PRIu64, f.name,
			   s->r.count);
	close_source(&f);
	free(data);
	return st;
}

/* ---- the record ---- */

static void set_record(struct control_state *s, const struct engine_restore *r)
{
	s->r.window = r->window;
	s->r.applied_step = r->applied_step;
	s->r.micro_size = r->micro_size;
	s->r.loss_scale = r->loss_scale;
	s->r.phase = WINDOW_OPEN;
	s->r.x = 0;
	s->r.filled = r->carry;
	s->r.count = r->carry ? r->count : 0;
	s->r.sum_weight = r->carry ? r->sum_weight : 0;
	s->r.sum_loss = r->carry ? r->sum_loss : 0;
	s->r.last_rank = r->carry ? r->last_rank : UINT32_MAX;
	s->r.window_lr = r->carry ? r->window_lr : 0;
	s->r.lr_rank = r->carry ? r->lr_rank : 0;
	memset(s->counted, 0, s->n_words * sizeof(*s->counted));
	memset(s->voided, 0, s->n_words * sizeof(*s->voided));
	for (uint32_t i = 0; i < s->r.ranks; i++)
		s->rank[i].counted = s->rank[i].flushed = 0;
}

/* Of the checkpoint's step, and nothing is touched yet. A checkpoint without them is of a job that has stepped all. */
static enum status set_steps(const struct restore *x)
{
	const uint64_t step = x->r->applied_step;
	uint64_t *left_out = x->touched.plan ? x->touched.left_out[step % 2] : NULL;
	if (!left_out)
		return ST_OK;
	memset(x->touched.set[0], 0, x->touched.n_bytes);
	for (uint64_t i = 0; i < x->m->plan->n_tensors; i++) {
		if (x->steps && (x->steps[i] < 0 || (uint64_t)x->steps[i] > step))
			return wrong(x, ST_MALFORMED, "a tensor has taken %" PRId64 " of %" PRIu64 " steps",
				     x->steps[i], step);
		left_out[i] = x->steps ? step - (uint64_t)x->steps[i] : 0;
	}
	return ST_OK;
}

static enum status check(const struct restore *x, const struct control_state *s)
{
	const struct engine_restore *r = x->r;
	if (r->micro_size == 0 || r->micro_size > s->r.max_micro_size)
		return wrong(x, ST_INVALID_ARGUMENT, "micro_size %u of at most %u", r->micro_size, s->r.max_micro_size);
	if (r->n_shares == 1 || r->n_shares > ENGINE_SHARES)
		return wrong(x, ST_INVALID_ARGUMENT, "%u shares, must be 0 or 2 to %d", r->n_shares, ENGINE_SHARES);
	if (!(r->loss_scale > 0) || (r->carry && (!(r->sum_weight > 0) || r->last_rank >= s->r.ranks)))
		return wrong(x, ST_MALFORMED, "the manifest's loss_scale, sum_weight or last_rank is out of range");
	if (r->carry && (!commit_is_lr(r->window_lr) || r->lr_rank >= s->r.ranks))
		return wrong(x, ST_MALFORMED, "the manifest's lr or lr_rank is out of range");
	return ST_OK;
}

enum status snapshot_restore(const struct memory *m, struct arith *arith, const struct engine_restore *r,
			     const char *path, struct control_state *s, char *why, size_t n_why)
{
	struct restore x = {
		.m = m,
		.arith = arith,
		.r = r,
		.dir_fd = -1,
		.why = why,
		.n_why = n_why,
		.in = malloc(IN_BYTES),
		.touched = touched_view(m->plan, &m->page),
	};
	enum status st = x.in ? check(&x, s) : ST_NO_MEMORY;
	if (!st)
		st = checkpoint_open_dir(path, false, &x.dir_fd, why, n_why);
	if (!st)
		st = restore_arrays(&x, CHECKPOINT_MODEL);
	if (!st)
		st = r->n_shares ? restore_shares(&x) : restore_arrays(&x, CHECKPOINT_OPTIMIZER);
	if (!st)
		st = set_steps(&x);
	if (!st)
		set_record(s, r);
	if (!st && r->carry)
		st = restore_arrays(&x, CHECKPOINT_CARRY);
	if (!st && r->carry)
		st = restore_window(&x, s);
	if (x.dir_fd >= 0)
		close(x.dir_fd);
	free(x.in);
	free(x.steps);
	return st;
}

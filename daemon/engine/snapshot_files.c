/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a checkpoint has, in what order, and where they lie; also the ledger of an open window as tensors. For
 * snapshot.c and snapshot_restore.c (the engine's main thread) and snapshot_writer.c (its thread). */
#include "engine/snapshot_files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum safe_dtype safe_of(enum dtype t)
{
	switch (t) {
	case DTYPE_F64:
		return SAFE_F64;
	case DTYPE_F16:
		return SAFE_F16;
	case DTYPE_BF16:
		return SAFE_BF16;
	default:
		return SAFE_F32;
	}
}

/* ---- which arrays a file has ---- */

static void add_section(struct snapshot_list *l, enum segment_role role, const char *suffix)
{
	l->section[l->n_sections++] = (struct snapshot_section){ role, suffix };
}

static void list_sections(struct snapshot_list *l, const struct plan *p, enum checkpoint_part part, uint32_t x)
{
	if (part == CHECKPOINT_MODEL)
		add_section(l, SEG_PARAMS, "");
	if (part == CHECKPOINT_CARRY)
		add_section(l, x ? SEG_ACCUM1 : SEG_ACCUM0, "");
	if (part != CHECKPOINT_OPTIMIZER)
		return;
	if (plan_role_bytes(p, SEG_MASTER))
		add_section(l, SEG_MASTER, ".master");
	if (plan_role_bytes(p, SEG_STATE0))
		add_section(l, SEG_STATE0, plan_role_bytes(p, SEG_STATE1) ? ".exp_avg" : ".momentum_buffer");
	if (plan_role_bytes(p, SEG_STATE1))
		add_section(l, SEG_STATE1, ".exp_avg_sq");
}

/* ---- where the values of a tensor begin in a role's data; false: it has none there ---- */

static enum dtype dtype_in(const struct plan *p, enum segment_role role, const struct arena_group *g)
{
	switch (role) {
	case SEG_PARAMS:
		return g->param_dtype;
	case SEG_ACCUM0:
	case SEG_ACCUM1:
		return (enum dtype)p->acc_dtype;
	default:
		return DTYPE_F32;
	}
}

static bool locate(const struct plan *p, enum segment_role role, const struct plan_tensor *t, uint64_t *out_offset,
		   enum dtype *out_dtype)
{
	const struct arena_group *g = &p->group[t->dtype_group];
	const size_t size = dtype_size(*out_dtype = dtype_in(p, role, g));
	*out_offset = role == SEG_PARAMS ? g->param_offset + (t->start - g->start) * size : t->start * size;
	return role != SEG_MASTER || g->param_dtype != DTYPE_F32;
}

struct snapshot_span snapshot_span_all(const struct plan *p)
{
	return (struct snapshot_span){ 0, p->n_elements };
}

struct snapshot_span snapshot_span_own(const struct plan *p)
{
	struct snapshot_span s;
	plan_own(p, &s.from, &s.end);
	return s;
}

struct place {
	uint64_t start, tensor;
};

static int by_start(const void *a, const void *b)
{
	uint64_t x = ((const struct place *)a)->start, y = ((const struct place *)b)->start;
	return (x > y) - (x < y);
}

/* Tensors with storage of their own, in the order of the arena. */
static struct place *list_places(const struct plan *p, uint64_t *out_n, size_t *name_bytes)
{
	const struct plan_tensor *t = plan_tensors(p);
	struct place *place = calloc(p->n_tensors + 1, sizeof(*place));
	uint64_t n = 0;
	for (uint64_t i = 0; place && i < p->n_tensors; i++)
		if (t[i].alias < 0) {
			place[n++] = (struct place){ t[i].start, i };
			*name_bytes += strlen(plan_name(p, &t[i])) + 1;
		}
	if (place)
		qsort(place, n, sizeof(*place), by_start);
	*out_n = n;
	return place;
}

/* What a span has of a tensor. */
static bool cut(const struct plan_tensor *t, struct snapshot_span s, struct snapshot_slice *out)
{
	const uint64_t end = t->start + t->count;
	if (t->start >= s.end || end <= s.from)
		return false;
	out->from = t->start < s.from ? s.from - t->start : 0;
	out->end = (end > s.end ? s.end : end) - t->start;
	return true;
}

#define SLICE_NAME 44 /* bytes at most: two numbers, and what is around them */

static char *add_entry(struct snapshot_list *l, const struct plan *p, uint32_t section, uint64_t tensor,
		       struct snapshot_span span, char *name)
{
	const struct plan_tensor *t = &plan_tensors(p)[tensor];
	struct snapshot_slice slice;
	uint64_t offset;
	enum dtype dtype;
	if (!locate(p, l->section[section].role, t, &offset, &dtype) || !cut(t, span, &slice))
		return name;
	struct snapshot_entry *e = &l->entry[l->n++];
	*e = (struct snapshot_entry){ .section = section, .offset = offset + slice.from * dtype_size(dtype) };
	e->safe.name = name;
	e->safe.dtype = safe_of(dtype);
	e->safe.n_dims = (int)t->n_dims;
	for (uint32_t i = 0; i < t->n_dims; i++)
		e->safe.shape[i] = (uint64_t)t->shape[i];
	name = stpcpy(name, plan_name(p, t));
	name = stpcpy(name, l->section[section].suffix);
	if (slice.from || slice.end != t->count) {
		e->safe.n_dims = 1;
		e->safe.shape[0] = slice.end - slice.from;
		name += sprintf(name, "[%" PRIu64 ":%" PRIu64 "]", slice.from, slice.end);
	}
	return name + 1;
}

enum status snapshot_list_init(struct snapshot_list *out, const struct plan *p, enum checkpoint_part part, uint32_t x,
			       struct snapshot_span span)
{
	struct snapshot_list l = { .n = 0 };
	size_t name_bytes = 0;
	uint64_t n;
	list_sections(&l, p, part, x);
	if (!l.n_sections) {
		*out = l;
		return ST_OK;
	}
	struct place *place = list_places(p, &n, &name_bytes);
	l.entry = calloc(n * l.n_sections + 1, sizeof(*l.entry));
	l.names = malloc(l.n_sections * (name_bytes + n * (sizeof(".momentum_buffer") + SLICE_NAME)) + 1);
	if (!place || !l.entry || !l.names) {
		free(place);
		snapshot_list_fini(&l);
		return ST_NO_MEMORY;
	}
	char *name = l.names;
	for (uint32_t s = 0; s < l.n_sections; s++)
		for (uint64_t i = 0; i < n; i++)
			name = add_entry(&l, p, s, place[i].tensor, span, name);
	free(place);
	*out = l;
	return ST_OK;
}

void snapshot_list_fini(struct snapshot_list *l)
{
	free(l->entry);
	free(l->names);
	*l = (struct snapshot_list){ .n = 0 };
}

/* ---- the open window ---- */

void snapshot_window_tensors(struct safe_tensor out[WINDOW_TENSORS], uint32_t ranks, uint32_t micro_size)
{
	static const struct {
		const char *name;
		enum safe_dtype dtype;
	} rows[WINDOW_TENSORS] = {
		/* eight bytes first: each is aligned */
		[WINDOW_WEIGHT] = { "weight", SAFE_F64 },     [WINDOW_LOSS] = { "loss", SAFE_F64 },
		[WINDOW_DATA_KEY] = { "data_key", SAFE_U64 }, [WINDOW_UNIX_NANOS] = { "unix_nanos", SAFE_I64 },
		[WINDOW_STATE] = { "state", SAFE_U64 },	      [WINDOW_FLUSHED] = { "flushed", SAFE_U8 },
	};
	uint64_t at = 0;
	for (int i = 0; i < WINDOW_TENSORS; i++) {
		out[i] = (struct safe_tensor){ .name = rows[i].name,
					       .dtype = rows[i].dtype,
					       .begin = at,
					       .n_dims = i == WINDOW_FLUSHED ? 1 : 2,
					       .shape = { ranks, micro_size } };
		at += ranks * (i == WINDOW_FLUSHED ? 1 : UINT64_C(8) * micro_size);
		out[i].end = at;
	}
}

struct safe_tensor snapshot_touched_tensor(uint64_t n_tensors, uint64_t begin)
{
	const uint64_t n = (n_tensors + 7) / 8;
	return (struct safe_tensor){
		.name = "touched", .dtype = SAFE_U8, .n_dims = 1, .shape = { n }, .begin = begin, .end = begin + n
	};
}

struct safe_tensor snapshot_steps_tensor(uint64_t n_tensors)
{
	return (struct safe_tensor){ .name = "steps",
				     .dtype = SAFE_I64,
				     .n_dims = 1,
				     .shape = { n_tensors },
				     .end = n_tensors * sizeof(uint64_t) };
}

uint64_t snapshot_window_bytes(uint32_t ranks, uint32_t micro_size)
{
	struct safe_tensor t[WINDOW_TENSORS];
	snapshot_window_tensors(t, ranks, micro_size);
	return t[WINDOW_TENSORS - 1].end;
}

void snapshot_window_save(const struct control_state *s, const struct control_page *page, const struct safe_tensor *t,
			  void *out)
{
	unsigned char *data = out;
	uint64_t *state = (uint64_t *)(data + t[WINDOW_STATE].begin),
		 *key = (uint64_t *)(data + t[WINDOW_DATA_KEY].begin);
	double *weight = (double *)(data + t[WINDOW_WEIGHT].begin), *loss = (double *)(data + t[WINDOW_LOSS].begin);
	int64_t *when = (int64_t *)(data + t[WINDOW_UNIX_NANOS].begin);
	memset(data, 0, t[WINDOW_TENSORS - 1].end);
	for (uint32_t rank = 0; rank < s->r.ranks; rank++) {
		data[t[WINDOW_FLUSHED].begin + rank] = s->rank[rank].flushed != 0;
		for (uint32_t micro = 0; micro < s->r.micro_size; micro++) {
			size_t i = (size_t)rank * s->r.micro_size + micro;
			bool counted = control_bit(s->counted, s->r.max_micro_size, rank, micro);
			const struct ledger_cell *cell = control_page_ledger(page, rank, micro);
			if (!counted && !control_bit(s->voided, s->r.max_micro_size, rank, micro))
				continue;
			state[i] = counted ? MICRO_COUNTED : MICRO_VOID;
			weight[i] = cell->weight;
			loss[i] = cell->loss;
			key[i] = cell->data_key;
			when[i] = cell->unix_nanos;
		}
	}
}

bool snapshot_window_load(struct control_state *s, const struct control_page *page, const struct safe_tensor *t,
			  const void *in)
{
	const unsigned char *data = in;
	const uint64_t *state = (const uint64_t *)(data + t[WINDOW_STATE].begin);
	const uint64_t *key = (const uint64_t *)(data + t[WINDOW_DATA_KEY].begin);
	const double *weight = (const double *)(data + t[WINDOW_WEIGHT].begin);
	const double *loss = (const double *)(data + t[WINDOW_LOSS].begin);
	const int64_t *when = (const int64_t *)(data + t[WINDOW_UNIX_NANOS].begin);
	uint64_t count = 0;
	for (uint32_t rank = 0; rank < s->r.ranks; rank++) {
		uint32_t flushed = data[t[WINDOW_FLUSHED].begin + rank], counted = 0;
		for (uint32_t micro = 0; micro < s->r.micro_size; micro++) {
			size_t i = (size_t)rank * s->r.micro_size + micro;
			if (state[i] == MICRO_MISSING)
				continue;
			if (state[i] > MICRO_VOID || !isfinite(weight[i]) || weight[i] <= 0)
				return false;
			counted += state[i] == MICRO_COUNTED;
			control_set_bit(state[i] == MICRO_COUNTED ? s->counted : s->voided, s->r.max_micro_size, rank,
					micro);
			*control_page_ledger(page, rank, micro) =
				(struct ledger_cell){ weight[i], loss[i], key[i], when[i] };
		}
		if (flushed > 1)
			return false;
		s->rank[rank].flushed = flushed;
		s->rank[rank].counted = counted;
		count += counted;
	}
	return count == s->r.count;
}

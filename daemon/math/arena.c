/* SPDX-License-Identifier: Apache-2.0 */
/* Computes where each tensor of a job lies in its arenas: order, alignment, aliases, the digest of the layout. Pure;
 * for the edge and the engine, on any thread. */
#include "math/arena.h"

#include "math/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define REFUSE(...) (snprintf(why, n_why, __VA_ARGS__), ST_INVALID_ARGUMENT)
/* Every byte offset, also of an f64 arena, must fit in an int64_t (off_t). */
#define MAX_ELEMENTS ((uint64_t)INT64_MAX / 8)

static const enum dtype group_order[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
#define N_GROUP_ORDER (sizeof(group_order) / sizeof(group_order[0]))
_Static_assert(N_GROUP_ORDER <= ARENA_MAX_GROUPS, "one group per parameter dtype");
_Static_assert(KERNEL_BLOCK % ARENA_ALIGN == 0, "group starts are aligned for tensors");

/* A tensor's name with its place in the declaration, for sorting. */
struct name_ref {
	const char *name;
	uint64_t index;
};

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
	return (n + multiple - 1) / multiple * multiple;
}

static const char *alias_of(const struct tensor_spec *t)
{
	return t->alias_of ? t->alias_of : "";
}

/* Writes "[2, 3]" and returns it. */
static const char *shape_text(const struct tensor_spec *t, char *text, size_t n)
{
	size_t at = (size_t)snprintf(text, n, "[");
	for (int i = 0; i < t->n_dims && at < n; i++)
		at += (size_t)snprintf(text + at, n - at, "%s%" PRId64, i ? ", " : "", t->shape[i]);
	if (at < n)
		snprintf(text + at, n - at, "]");
	return text;
}
#define SHAPE_TEXT_MAX (ARENA_MAX_DIMS * 22 + 3)

static bool same_shape(const struct tensor_spec *a, const struct tensor_spec *b)
{
	return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, sizeof(a->shape[0]) * (size_t)a->n_dims) == 0;
}

static enum status count_elements(const struct tensor_spec *t, uint64_t index, uint64_t *out, char *why, size_t n_why)
{
	uint64_t count = 1;
	for (int i = 0; i < t->n_dims; i++) {
		if (t->shape[i] < 1)
			return REFUSE("tensor %" PRIu64 " '%s': dimension %d is %" PRId64 ", must be >= 1", index,
				      t->name, i, t->shape[i]);
		if (__builtin_mul_overflow(count, (uint64_t)t->shape[i], &count) || count > MAX_ELEMENTS)
			return REFUSE("tensor %" PRIu64 " '%s': more than %" PRIu64 " elements", index, t->name,
				      MAX_ELEMENTS);
	}
	*out = count;
	return ST_OK;
}

static enum status check_tensor(const struct tensor_spec *t, uint64_t index, uint64_t *out_count, char *why,
				size_t n_why)
{
	size_t length = t->name ? strnlen(t->name, ARENA_MAX_NAME + 1) : 0;
	if (length == 0)
		return REFUSE("tensor %" PRIu64 " has no name", index);
	if (length > ARENA_MAX_NAME)
		return REFUSE("tensor %" PRIu64 " '%.40s...': name is longer than %d bytes", index, t->name,
			      ARENA_MAX_NAME);
	if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16)
		return REFUSE("tensor %" PRIu64 " '%s': dtype %s (%d), must be f32, bf16 or f16", index, t->name,
			      dtype_name(t->dtype), (int)t->dtype);
	if (t->n_dims < 0 || t->n_dims > ARENA_MAX_DIMS)
		return REFUSE("tensor %" PRIu64 " '%s': %d dimensions, must be 0 to %d", index, t->name, t->n_dims,
			      ARENA_MAX_DIMS);
	return count_elements(t, index, out_count, why, n_why);
}

static int compare_names(const void *a, const void *b)
{
	const struct name_ref *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : (x->index > y->index) - (x->index < y->index);
}

static int compare_to_name(const void *key, const void *element)
{
	return strcmp(key, ((const struct name_ref *)element)->name);
}

static enum status resolve_alias(const struct tensor_spec *t, uint64_t index, const struct name_ref *sorted, uint64_t n,
				 struct arena_tensor *out, char *why, size_t n_why)
{
	const struct name_ref *target = bsearch(alias_of(&t[index]), sorted, n, sizeof(*sorted), compare_to_name);
	char mine[SHAPE_TEXT_MAX], theirs[SHAPE_TEXT_MAX];
	if (!target || target->index >= index)
		return REFUSE("tensor %" PRIu64 " '%s': alias_of '%s' names no earlier tensor", index, t[index].name,
			      alias_of(&t[index]));
	const struct tensor_spec *other = &t[target->index];
	if (other->dtype != t[index].dtype || !same_shape(other, &t[index]))
		return REFUSE("tensor %" PRIu64 " '%s': is %s %s but its alias_of '%s' is %s %s", index, t[index].name,
			      dtype_name(t[index].dtype), shape_text(&t[index], mine, sizeof(mine)), other->name,
			      dtype_name(other->dtype), shape_text(other, theirs, sizeof(theirs)));
	int32_t root = out[target->index].alias;
	out[index].alias = root < 0 ? (int32_t)target->index : root;
	return ST_OK;
}

/* Names are unique and every alias has its target: fills tensor[].alias. */
static enum status resolve_names(const struct tensor_spec *t, uint64_t n, struct arena_tensor *out, char *why,
				 size_t n_why)
{
	struct name_ref *sorted = malloc(n * sizeof(*sorted));
	if (!sorted)
		return snprintf(why, n_why, "no memory for %" PRIu64 " tensors", n), ST_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++)
		sorted[i] = (struct name_ref){ t[i].name, i };
	qsort(sorted, n, sizeof(*sorted), compare_names);
	enum status st = ST_OK;
	for (uint64_t i = 1; i < n && st == ST_OK; i++)
		if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
			st = REFUSE("tensors %" PRIu64 " and %" PRIu64 " are both named '%s'", sorted[i - 1].index,
				    sorted[i].index, sorted[i].name);
	for (uint64_t i = 0; i < n && st == ST_OK; i++) {
		out[i].alias = -1;
		if (alias_of(&t[i])[0])
			st = resolve_alias(t, i, sorted, n, out, why, n_why);
	}
	free(sorted);
	return st;
}

/* Appends one dtype group with all its tensors; nothing when no tensor has that dtype. */
static enum status lay_out_group(struct arena *a, const struct tensor_spec *t, enum dtype param, enum dtype grad,
				 char *why, size_t n_why)
{
	struct arena_group *g = &a->group[a->n_groups];
	*g = (struct arena_group){ .start = a->n_elements,
				   .slot_offset = a->slot_bytes,
				   .param_offset = a->param_bytes,
				   .param_dtype = param,
				   .grad_dtype = grad };
	uint64_t end = 0;
	for (uint64_t i = 0; i < a->n_tensors; i++) {
		struct arena_tensor *x = &a->tensor[i];
		if (t[i].dtype != param || x->alias >= 0)
			continue;
		uint64_t start = round_up(end, ARENA_ALIGN);
		if (round_up(start + x->count, KERNEL_BLOCK) > MAX_ELEMENTS - g->start)
			return REFUSE("tensor %" PRIu64 " '%s': the arena would exceed %" PRIu64 " elements", i,
				      t[i].name, MAX_ELEMENTS);
		x->start = g->start + start;
		x->slot_offset = g->slot_offset + start * dtype_size(grad);
		x->param_offset = g->param_offset + start * dtype_size(param);
		x->group = (uint32_t)a->n_groups;
		a->n_parameters += x->count;
		end = start + x->count;
	}
	if (!end)
		return ST_OK;
	g->count = round_up(end, KERNEL_BLOCK);
	a->n_elements += g->count;
	a->slot_bytes += g->count * dtype_size(grad);
	a->param_bytes += g->count * dtype_size(param);
	a->n_groups++;
	return ST_OK;
}

static void place_aliases(struct arena *a)
{
	for (uint64_t i = 0; i < a->n_tensors; i++) {
		int32_t root = a->tensor[i].alias;
		if (root >= 0) {
			a->tensor[i] = a->tensor[root];
			a->tensor[i].alias = root;
		}
	}
}

static void hash_u64(XXH3_state_t *h, uint64_t x)
{
	uint8_t bytes[8];
	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(x >> 8 * i);
	XXH3_64bits_update(h, bytes, sizeof(bytes));
}

static void hash_text(XXH3_state_t *h, const char *s)
{
	hash_u64(h, strlen(s));
	XXH3_64bits_update(h, s, strlen(s));
}

/* Lengths go before their contents, so that no two tensor sets hash the same bytes. */
static enum status hash_tensors(const struct tensor_spec *t, uint64_t n, enum dtype grad_dtype, uint64_t *out)
{
	XXH3_state_t *h = XXH3_createState();
	if (!h)
		return ST_NO_MEMORY;
	XXH3_64bits_reset(h);
	hash_u64(h, n);
	hash_u64(h, (uint64_t)grad_dtype);
	for (uint64_t i = 0; i < n; i++) {
		hash_text(h, t[i].name);
		hash_u64(h, (uint64_t)t[i].dtype);
		hash_u64(h, (uint64_t)t[i].n_dims);
		for (int d = 0; d < t[i].n_dims; d++)
			hash_u64(h, (uint64_t)t[i].shape[d]);
		hash_text(h, alias_of(&t[i]));
	}
	*out = XXH3_64bits_digest(h);
	XXH3_freeState(h);
	return ST_OK;
}

static enum status build(struct arena *a, const struct tensor_spec *t, enum dtype grad_dtype, char *why, size_t n_why)
{
	enum status st = ST_OK;
	for (uint64_t i = 0; i < a->n_tensors && st == ST_OK; i++)
		st = check_tensor(&t[i], i, &a->tensor[i].count, why, n_why);
	if (st == ST_OK)
		st = resolve_names(t, a->n_tensors, a->tensor, why, n_why);
	for (size_t i = 0; i < N_GROUP_ORDER && st == ST_OK; i++)
		st = lay_out_group(a, t, group_order[i], grad_dtype == DTYPE_NONE ? group_order[i] : grad_dtype, why,
				   n_why);
	if (st != ST_OK)
		return st;
	place_aliases(a);
	st = hash_tensors(t, a->n_tensors, grad_dtype, &a->fingerprint);
	if (st != ST_OK)
		snprintf(why, n_why, "no memory for the fingerprint");
	return st;
}

enum status arena_init(struct arena *out, const struct tensor_spec *t, uint64_t n, enum dtype grad_dtype, char *why,
		       size_t n_why)
{
	if (n < 1 || n > ARENA_MAX_TENSORS)
		return REFUSE("%" PRIu64 " tensors, must be 1 to %d", n, ARENA_MAX_TENSORS);
	if ((unsigned)grad_dtype > DTYPE_BF16)
		return REFUSE("gradient dtype %d is unknown", (int)grad_dtype);
	struct arena a = { .n_tensors = n, .tensor = calloc(n, sizeof(*a.tensor)) };
	if (!a.tensor)
		return snprintf(why, n_why, "no memory for %" PRIu64 " tensors", n), ST_NO_MEMORY;
	enum status st = build(&a, t, grad_dtype, why, n_why);
	if (st != ST_OK) {
		arena_fini(&a);
		return st;
	}
	*out = a;
	return ST_OK;
}

void arena_fini(struct arena *a)
{
	if (!a)
		return;
	free(a->tensor);
	*a = (struct arena){ 0 };
}

static bool tensor_differs(const struct tensor_spec *a, const struct tensor_spec *b, uint64_t i, char *why,
			   size_t n_why)
{
	char left[SHAPE_TEXT_MAX], right[SHAPE_TEXT_MAX];
	if (strcmp(a->name, b->name) != 0)
		snprintf(why, n_why, "tensor %" PRIu64 " is named '%s' in one set and '%s' in the other", i, a->name,
			 b->name);
	else if (a->dtype != b->dtype)
		snprintf(why, n_why, "tensor %" PRIu64 " '%s': dtype %s against %s", i, a->name, dtype_name(a->dtype),
			 dtype_name(b->dtype));
	else if (!same_shape(a, b))
		snprintf(why, n_why, "tensor %" PRIu64 " '%s': shape %s against %s", i, a->name,
			 shape_text(a, left, sizeof(left)), shape_text(b, right, sizeof(right)));
	else if (strcmp(alias_of(a), alias_of(b)) != 0)
		snprintf(why, n_why, "tensor %" PRIu64 " '%s': alias_of '%s' against '%s'", i, a->name, alias_of(a),
			 alias_of(b));
	else
		return false;
	return true;
}

bool tensors_differ(const struct tensor_spec *a, const struct tensor_spec *b, uint64_t n, uint64_t first, char *why,
		    size_t n_why)
{
	for (uint64_t i = 0; i < n; i++)
		if (tensor_differs(&a[i], &b[i], first + i, why, n_why))
			return true;
	return false;
}

bool tensor_set_differs(const struct tensor_spec *a, uint64_t n_a, const struct tensor_spec *b, uint64_t n_b, char *why,
			size_t n_why)
{
	uint64_t both = n_a < n_b ? n_a : n_b;
	if (tensors_differ(a, b, both, 0, why, n_why))
		return true;
	if (n_a == n_b)
		return false;
	const struct tensor_spec *extra = n_a > n_b ? &a[both] : &b[both];
	snprintf(why, n_why, "%" PRIu64 " tensors against %" PRIu64 ": '%s' is in one set only", n_a, n_b, extra->name);
	return true;
}

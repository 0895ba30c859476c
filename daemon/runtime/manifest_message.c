/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as named numbers, for what checkpoints keep of decisions: it walks the message's descriptor. On whichever
 * thread needs it. */
#include "runtime/manifest_message.h"

#include <assert.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <string.h>

static bool is_in(const char *const *list, const char *name)
{
	for (; list && *list; list++)
		if (!strcmp(*list, name))
			return true;
	return false;
}

/* Depth first, in the order of the field numbers. Messages of this package do not contain themselves. */
static void add_fields(const ProtobufCMessageDescriptor *d, const char *const *but, struct manifest_field at,
		       struct manifest_fields *out)
{
	const size_t used = strlen(at.name);
	assert(at.depth < MANIFEST_FIELD_DEPTH);
	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];
		struct manifest_field next = at;
		if (is_in(but, f->name))
			continue;
		snprintf(next.name + used, sizeof(next.name) - used, "%s%s", used ? "." : "", f->name);
		next.path[next.depth++] = f->id;
		assert(strlen(next.name) < sizeof(next.name) - 1 && out->n < MANIFEST_MAX_VALUES);
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			add_fields(f->descriptor, NULL, next, out);
		else
			out->field[out->n++] = next;
	}
}

void manifest_fields_of(const struct ProtobufCMessageDescriptor *d, const char *const *but, struct manifest_fields *out)
{
	out->n = 0;
	add_fields(d, but, (struct manifest_field){ .depth = 0 }, out);
}

/* The innermost message of the path, and the field in it. */
static const ProtobufCFieldDescriptor *find(const struct manifest_field *at, const ProtobufCMessage **m)
{
	const ProtobufCFieldDescriptor *f = NULL;
	for (unsigned i = 0; i < at->depth; i++) {
		if (f)
			*m = *(ProtobufCMessage *const *)((const char *)*m + f->offset);
		f = protobuf_c_message_descriptor_get_field((*m)->descriptor, at->path[i]);
	}
	return f;
}

/* One that is in a `oneof` may be unset; the others always have a value. */
static bool is_set(const ProtobufCFieldDescriptor *f, const ProtobufCMessage *m)
{
	return !(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
	       *(const uint32_t *)((const char *)m + f->quantifier_offset) == f->id;
}

void manifest_put_message(const struct manifest_fields *fields, const struct ProtobufCMessage *m,
			  struct manifest_value *to, size_t *n)
{
	for (size_t i = 0; i < fields->n; i++) {
		const ProtobufCMessage *in = m;
		const ProtobufCFieldDescriptor *f = find(&fields->field[i], &in);
		const void *from = (const char *)in + f->offset;
		struct manifest_value v = { .name = fields->field[i].name,
					    .is_real = f->type == PROTOBUF_C_TYPE_DOUBLE };
		uint32_t small;
		if (!is_set(f, in))
			continue;
		switch (f->type) {
		case PROTOBUF_C_TYPE_DOUBLE:
			memcpy(&v.real, from, sizeof(v.real));
			break;
		case PROTOBUF_C_TYPE_UINT64:
		case PROTOBUF_C_TYPE_INT64:
		case PROTOBUF_C_TYPE_FIXED64:
			memcpy(&v.whole, from, sizeof(v.whole));
			break;
		default: /* uint32, bool, enum */
			memcpy(&small, from, sizeof(small));
			v.whole = small;
		}
		to[(*n)++] = v;
	}
}

bool manifest_take_field(const struct manifest_field *at, struct ProtobufCMessage *m, const struct manifest_value *v)
{
	const ProtobufCMessage *in = m;
	const ProtobufCFieldDescriptor *f = find(at, &in);
	char *to = (char *)in + f->offset;
	const uint32_t small = (uint32_t)v->whole;
	if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
		memcpy((char *)in + f->quantifier_offset, &f->id, sizeof(f->id));
	switch (f->type) {
	case PROTOBUF_C_TYPE_DOUBLE:
		memcpy(to, &v->real, sizeof(v->real));
		return true;
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_FIXED64:
		memcpy(to, &v->whole, sizeof(v->whole));
		return !v->is_real;
	default:
		memcpy(to, &small, sizeof(small));
		return !v->is_real && v->whole <= UINT32_MAX;
	}
}

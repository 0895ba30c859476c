/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/bytes.h"

#include "proto/utf8.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <protobuf-c/protobuf-c.h>

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
#define TAG_BYTES_MAX 5
#define VARINT_BYTES_MAX 10
#define ENVELOPE_ON_STACK 1024

/* Windows on slices. */

bool bytes_next(struct bytes_view *view, const uint8_t **out_piece, size_t *out_len)
{
	if (view->left == 0)
		return false;
	const grpc_slice *slice = view->slices;
	while (view->offset >= GRPC_SLICE_LENGTH(*slice)) {
		view->offset -= GRPC_SLICE_LENGTH(*slice);
		slice++;
	}
	size_t n = GRPC_SLICE_LENGTH(*slice) - view->offset;
	if (n > view->left)
		n = view->left;
	*out_piece = GRPC_SLICE_START_PTR(*slice) + view->offset;
	*out_len = n;
	view->slices = slice;
	view->offset += n;
	view->left -= n;
	return true;
}

/* Like bytes_next, but takes at most max bytes. */
static bool next_upto(struct bytes_view *view, size_t max, const uint8_t **out_piece, size_t *out_len)
{
	struct bytes_view head = *view;
	if (head.left > max)
		head.left = max;
	if (!bytes_next(&head, out_piece, out_len))
		return false;
	view->slices = head.slices;
	view->offset = head.offset;
	view->left -= *out_len;
	return true;
}

void bytes_copy(struct bytes_view *view, void *dst, size_t n)
{
	uint8_t *to = dst;
	const uint8_t *piece;
	size_t len;
	while (n > 0 && next_upto(view, n, &piece, &len)) {
		memcpy(to, piece, len);
		to += len;
		n -= len;
	}
}

static bool view_skip(struct bytes_view *view, uint64_t n)
{
	const uint8_t *piece;
	size_t len;
	if (n > view->left)
		return false;
	while (n > 0 && next_upto(view, n, &piece, &len))
		n -= len;
	return true;
}

static struct bytes_view view_of(const grpc_byte_buffer *buffer)
{
	const grpc_slice_buffer *all = &buffer->data.raw.slice_buffer;
	return (struct bytes_view){ .slices = all->slices, .offset = 0, .left = all->length };
}

static bool buffer_ok(const grpc_byte_buffer *buffer)
{
	return buffer->type == GRPC_BB_RAW && buffer->data.raw.compression == GRPC_COMPRESS_NONE;
}

static bool view_varint(struct bytes_view *view, uint64_t *out_value)
{
	uint64_t value = 0;
	const uint8_t *piece;
	size_t len;
	for (int i = 0; i < VARINT_BYTES_MAX; i++) {
		if (!next_upto(view, 1, &piece, &len))
			return false;
		value |= (uint64_t)(*piece & 0x7f) << (7 * i);
		if (*piece < 0x80) {
			*out_value = value;
			return true;
		}
	}
	return false;
}

/* The check before protobuf-c. */

/* The first thing that is wrong; bytes_explain makes a sentence of it. */
struct fault {
	const ProtobufCMessageDescriptor *desc;
	const ProtobufCFieldDescriptor *field; /* NULL: `number` is none of desc's, or no tag was read */
	uint32_t number;
	const uint8_t *at;
	char what[96];
};

/* Returns false. */
static __attribute__((format(printf, 3, 4))) bool fail(struct fault *f, const uint8_t *at, const char *fmt, ...)
{
	va_list ap;
	f->at = at;
	va_start(ap, fmt);
	vsnprintf(f->what, sizeof(f->what), fmt, ap);
	va_end(ap);
	return false;
}

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out_value)
{
	uint64_t value = 0;
	for (int i = 0; i < VARINT_BYTES_MAX && *p < end; i++) {
		uint8_t byte = *(*p)++;
		value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80) {
			*out_value = value;
			return true;
		}
	}
	return false;
}

/* A tag of at most 5 bytes with a field number of 1..2^29-1. */
static bool tag_ok(uint64_t tag)
{
	return tag >> 3 != 0 && tag <= UINT32_MAX;
}

static bool utf8_ok(const uint8_t *p, const uint8_t *end, struct fault *f)
{
	while (p < end) {
		size_t n = utf8_length(p, end);
		if (n == 0)
			return fail(f, p, "byte 0x%02x is not %s", *p, *p ? "UTF-8" : "allowed in text");
		p += n;
	}
	return true;
}

static enum wire wire_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_BYTES:
	case PROTOBUF_C_TYPE_MESSAGE:
		return WIRE_BYTES;
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
		return WIRE_FIXED32;
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return WIRE_FIXED64;
	default:
		return WIRE_VARINT;
	}
}

static bool packed_ok(ProtobufCType type, const uint8_t *p, const uint8_t *end, struct fault *f)
{
	enum wire wire = wire_of(type);
	const uint8_t *start = p;
	uint64_t value;
	long n = end - p, size = wire == WIRE_FIXED32 ? 4 : 8;
	if (wire != WIRE_VARINT)
		return n % size == 0 || fail(f, start, "a packed list has %ld bytes, elements have %ld", n, size);
	while (p < end)
		if (start = p, !read_varint(&p, end, &value))
			return fail(f, start, "a number does not end within the %td bytes left", end - start);
	return true;
}

static bool message_ok(const ProtobufCMessageDescriptor *desc, const uint8_t *p, const uint8_t *end, struct fault *f);

/* A length-delimited value of a known field. */
static bool delimited_ok(const ProtobufCFieldDescriptor *field, const uint8_t *p, const uint8_t *end, struct fault *f)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_STRING:
		return utf8_ok(p, end, f);
	case PROTOBUF_C_TYPE_BYTES:
		return true;
	case PROTOBUF_C_TYPE_MESSAGE:
		return message_ok(field->descriptor, p, end, f);
	default:
		if (field->label != PROTOBUF_C_LABEL_REPEATED)
			return fail(f, p, "wire type %d does not belong to this field", WIRE_BYTES);
		return packed_ok(field->type, p, end, f);
	}
}

static bool field_ok(const ProtobufCFieldDescriptor *field, enum wire wire, const uint8_t **p, const uint8_t *end,
		     struct fault *f)
{
	const uint8_t *start = *p;
	uint64_t n;
	if (field && wire != wire_of(field->type) && wire != WIRE_BYTES)
		return fail(f, start, "wire type %d does not belong to this field", wire);
	switch (wire) {
	case WIRE_VARINT:
		return read_varint(p, end, &n) ||
		       fail(f, start, "a number does not end within the %td bytes left", end - start);
	case WIRE_FIXED64:
		n = 8;
		break;
	case WIRE_FIXED32:
		n = 4;
		break;
	case WIRE_BYTES:
		if (!read_varint(p, end, &n))
			return fail(f, start, "a length does not end within the %td bytes left", end - start);
		break;
	default:
		return fail(f, start, "wire type %d is not allowed", wire);
	}
	if (n > (uint64_t)(end - *p))
		return fail(f, start, "%llu bytes are announced, %td are left", (unsigned long long)n, end - *p);
	const uint8_t *value = *p;
	*p += n;
	return wire != WIRE_BYTES || !field || delimited_ok(field, value, *p, f);
}

/* The depth of the calls is that of the message types, which do not recurse. */
static bool message_ok(const ProtobufCMessageDescriptor *desc, const uint8_t *p, const uint8_t *end, struct fault *f)
{
	while (p < end) {
		uint64_t tag = 0;
		const uint8_t *start = p;
		f->desc = desc;
		f->field = NULL;
		f->number = 0;
		if (!read_varint(&p, end, &tag) || p - start > TAG_BYTES_MAX || !tag_ok(tag))
			return fail(f, start, "no field begins with tag %llu", (unsigned long long)tag);
		f->number = (uint32_t)(tag >> 3);
		f->field = protobuf_c_message_descriptor_get_field(desc, f->number);
		if (!field_ok(f->field, (enum wire)(tag & 7), &p, end, f))
			return false;
	}
	return true;
}

void bytes_explain(const ProtobufCMessageDescriptor *desc, const void *data, size_t n, char *why, size_t n_why)
{
	const uint8_t *p = n > 0 ? data : (const uint8_t *)"";
	struct fault f = { .desc = desc };
	char number[16] = "";
	if (message_ok(desc, p, p + n, &f)) {
		snprintf(why, n_why, "%s: nothing is wrong with its %zu bytes", desc->name, n);
		return;
	}
	if (!f.field && f.number)
		snprintf(number, sizeof(number), ".%u", f.number);
	snprintf(why, n_why, "%s%s%s at byte %td: %s", f.desc->name, f.field ? "." : number,
		 f.field ? f.field->name : "", f.at - p, f.what);
}

void bytes_explain_buffer(const ProtobufCMessageDescriptor *desc, const grpc_byte_buffer *buffer, char *why,
			  size_t n_why)
{
	if (!buffer_ok(buffer)) {
		snprintf(why, n_why, "%s: the message is compressed", desc->name);
		return;
	}
	struct bytes_view all = view_of(buffer);
	size_t n = all.left;
	uint8_t *flat = malloc(n + 1);
	if (!flat) {
		snprintf(why, n_why, "%s: malformed", desc->name);
		return;
	}
	bytes_copy(&all, flat, n);
	bytes_explain(desc, flat, n, why, n_why);
	free(flat);
}

/* Unpacking. */

struct budget {
	size_t left;
	bool exceeded;
};

static void *budget_alloc(void *data, size_t n)
{
	struct budget *budget = data;
	if (n > budget->left) {
		budget->exceeded = true;
		return NULL;
	}
	budget->left -= n;
	return malloc(n);
}

static void budget_free(void *data, void *p)
{
	free(p);
}

enum status bytes_decode(const ProtobufCMessageDescriptor *desc, const void *data, size_t n, ProtobufCMessage **out_msg)
{
	const uint8_t *p = n > 0 ? data : (const uint8_t *)"";
	struct fault fault;
	if (!message_ok(desc, p, p + n, &fault))
		return ST_MALFORMED;
	struct budget budget = { .left = (64u << 10) + 16 * n };
	ProtobufCAllocator allocator = { .alloc = budget_alloc, .free = budget_free, .allocator_data = &budget };
	ProtobufCMessage *msg = protobuf_c_message_unpack(desc, &allocator, n, p);
	if (!msg)
		return budget.exceeded ? ST_RESOURCE_EXHAUSTED : ST_NO_MEMORY;
	*out_msg = msg;
	return ST_OK;
}

/* Memory of a decoded message is plain malloc: the budget's allocator only counts. */
void bytes_free(ProtobufCMessage *msg)
{
	if (msg)
		protobuf_c_message_free_unpacked(msg, NULL);
}

/* Message from the first n bytes of the view. */
static enum status decode_view(const ProtobufCMessageDescriptor *desc, struct bytes_view view, size_t n,
			       ProtobufCMessage **out_msg)
{
	const uint8_t *piece;
	size_t len = 0;
	struct bytes_view head = view;
	if (n == 0)
		return bytes_decode(desc, NULL, 0, out_msg);
	if (bytes_next(&head, &piece, &len) && len >= n)
		return bytes_decode(desc, piece, n, out_msg);
	void *flat = malloc(n);
	if (!flat)
		return ST_NO_MEMORY;
	bytes_copy(&view, flat, n);
	enum status st = bytes_decode(desc, flat, n, out_msg);
	free(flat);
	return st;
}

enum status bytes_from_buffer(const ProtobufCMessageDescriptor *desc, grpc_byte_buffer *buffer,
			      ProtobufCMessage **out_msg)
{
	if (!buffer_ok(buffer))
		return ST_MALFORMED;
	struct bytes_view all = view_of(buffer);
	return decode_view(desc, all, all.left, out_msg);
}

static bool skip_value(struct bytes_view *at, enum wire wire)
{
	uint64_t n;
	switch (wire) {
	case WIRE_VARINT:
		return view_varint(at, &n);
	case WIRE_FIXED64:
		return view_skip(at, 8);
	case WIRE_FIXED32:
		return view_skip(at, 4);
	case WIRE_BYTES:
		return view_varint(at, &n) && view_skip(at, n);
	default:
		return false;
	}
}

/* Walks the top-level fields. Those other than `bulk` are appended to env (as far as it is large enough) and counted in
 * *out_env_len; the bulk becomes *out_bulk. */
static bool split(struct bytes_view at, uint32_t bulk, uint8_t *env, size_t env_cap, size_t *out_env_len,
		  struct bytes_view *out_bulk)
{
	size_t env_len = 0;
	*out_bulk = (struct bytes_view){ 0 };
	while (at.left > 0) {
		struct bytes_view start = at;
		uint64_t tag, n;
		if (!view_varint(&at, &tag) || !tag_ok(tag))
			return false;
		if (tag == ((uint64_t)bulk << 3 | WIRE_BYTES)) {
			if (!view_varint(&at, &n) || n > at.left)
				return false;
			*out_bulk = (struct bytes_view){ .slices = at.slices, .offset = at.offset, .left = n };
			view_skip(&at, n);
			continue;
		}
		if (!skip_value(&at, (enum wire)(tag & 7)))
			return false;
		size_t len = start.left - at.left;
		if (env_len + len <= env_cap)
			bytes_copy(&start, env + env_len, len);
		env_len += len;
	}
	*out_env_len = env_len;
	return true;
}

enum status bytes_from_buffer_bulk(const ProtobufCMessageDescriptor *desc, uint32_t bulk, grpc_byte_buffer *buffer,
				   ProtobufCMessage **out_msg, struct bytes_view *out_view)
{
	uint8_t small[ENVELOPE_ON_STACK], *env = small;
	struct bytes_view view;
	size_t n;
	if (!buffer_ok(buffer) || !split(view_of(buffer), bulk, small, sizeof(small), &n, &view))
		return ST_MALFORMED;
	if (n > BYTES_ENVELOPE_MAX)
		return ST_RESOURCE_EXHAUSTED;
	if (n > sizeof(small)) { /* rare: walk again with room enough */
		env = malloc(n);
		if (!env)
			return ST_NO_MEMORY;
		split(view_of(buffer), bulk, env, n, &n, &view);
	}
	enum status st = bytes_decode(desc, env, n, out_msg);
	if (env != small)
		free(env);
	if (st == ST_OK)
		*out_view = view;
	return st;
}

/* Packing. */

static size_t put_varint(uint8_t *p, uint64_t value)
{
	size_t n = 0;
	for (; value >= 0x80; value >>= 7)
		p[n++] = (uint8_t)(value | 0x80);
	p[n++] = (uint8_t)value;
	return n;
}

void *bytes_pack(const ProtobufCMessage *msg, size_t *out_n)
{
	size_t n = protobuf_c_message_get_packed_size(msg);
	uint8_t *data = malloc(n ? n : 1);
	if (data)
		*out_n = protobuf_c_message_pack(msg, data);
	return data;
}

ProtobufCMessage *bytes_clone(const ProtobufCMessage *msg)
{
	size_t n;
	void *data = bytes_pack(msg, &n);
	ProtobufCMessage *copy = data ? protobuf_c_message_unpack(msg->descriptor, NULL, n, data) : NULL;
	free(data);
	return copy;
}

grpc_byte_buffer *bytes_to_buffer(const ProtobufCMessage *msg)
{
	grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(msg));
	protobuf_c_message_pack(msg, GRPC_SLICE_START_PTR(slice));
	grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	return buffer;
}

grpc_byte_buffer *bytes_to_buffer_bulk(const ProtobufCMessage *msg, uint32_t bulk, const void *data, size_t n,
				       void (*release)(void *arg), void *arg)
{
	uint8_t head[TAG_BYTES_MAX + VARINT_BYTES_MAX];
	size_t n_head = put_varint(head, (uint64_t)bulk << 3 | WIRE_BYTES);
	n_head += put_varint(head + n_head, n);
	size_t n_env = protobuf_c_message_get_packed_size(msg);

	grpc_slice slices[2];
	slices[0] = grpc_slice_malloc(n_env + n_head);
	protobuf_c_message_pack(msg, GRPC_SLICE_START_PTR(slices[0]));
	memcpy(GRPC_SLICE_START_PTR(slices[0]) + n_env, head, n_head);
	/* gRPC only reads it; its type has no const. */
	slices[1] = release ? grpc_slice_new_with_user_data((void *)(uintptr_t)data, n, release, arg)
			    : grpc_slice_from_static_buffer(data, n);
	grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, 2);
	grpc_slice_unref(slices[0]);
	grpc_slice_unref(slices[1]);
	return buffer;
}

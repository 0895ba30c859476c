/* SPDX-License-Identifier: Apache-2.0 */
/* Prints any protobuf message as JSON by walking its descriptor, with enum names and times as people read them. For
 * `gaccctl -o json` and gacc_admin.h; pure, any thread. */
#include "lib/json.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIME_SUFFIX "unix_nanos"

void rfc3339(int64_t unix_nanos, char *out, size_t n)
{
	time_t s = (time_t)(unix_nanos / 1000000000);
	long ns = (long)(unix_nanos % 1000000000);
	struct tm tm;
	size_t at;

	if (ns < 0) {
		ns += 1000000000;
		s--;
	}
	if (!gmtime_r(&s, &tm))
		memset(&tm, 0, sizeof(tm));
	at = strftime(out, n, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + at, n - at, ".%09ldZ", ns);
}

/* Length of the prefix that all values of the enum share by our rules: JobState -> JOB_STATE_. */
static size_t prefix_length(const char *type_name)
{
	size_t n = 0;

	for (const char *p = type_name; *p; p++)
		n += 1 + (p != type_name && isupper((unsigned char)*p));
	return n + 1;
}

const char *enum_short_name(const void *enum_descriptor, int value)
{
	const ProtobufCEnumDescriptor *d = enum_descriptor;
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(d, value);
	size_t skip = prefix_length(d->short_name);

	if (!v)
		return "UNKNOWN";
	return strlen(v->name) > skip ? v->name + skip : v->name;
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

static json_t *hex(const uint8_t *bytes, size_t n)
{
	char *text = malloc(2 * n + 1);
	json_t *j;

	if (!text)
		return NULL;
	text[0] = '\0';
	for (size_t i = 0; i < n; i++)
		sprintf(text + 2 * i, "%02x", bytes[i]);
	j = json_string(text);
	free(text);
	return j;
}

/* Bits, and no number: in hexadecimal. */
static bool is_hash(const char *name)
{
	return ends_with(name, "_digest") || ends_with(name, "data_key");
}

static json_t *integer(const ProtobufCFieldDescriptor *f, uint64_t v)
{
	char text[40];

	if (ends_with(f->name, TIME_SUFFIX)) {
		if (!v)
			return json_null();
		rfc3339((int64_t)v, text, sizeof(text));
		return json_string(text);
	}
	if (is_hash(f->name))
		return json_sprintf("%016llx", (unsigned long long)v);
	if (v > INT64_MAX && (f->type == PROTOBUF_C_TYPE_UINT64 || f->type == PROTOBUF_C_TYPE_FIXED64))
		return json_sprintf("%llu", (unsigned long long)v); /* jansson's are signed */
	return json_integer((json_int_t)v);
}

/* JSON has no word for infinity. */
static json_t *real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *message(const ProtobufCMessage *msg);

/* The value at `p`, of any type of our protos. */
static json_t *value(const ProtobufCFieldDescriptor *f, const void *p)
{
	const ProtobufCBinaryData *b = p;

	switch (f->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
		return integer(f, (uint64_t)(int64_t) * (const int32_t *)p);
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
		return integer(f, *(const uint32_t *)p);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		return integer(f, *(const uint64_t *)p);
	case PROTOBUF_C_TYPE_FLOAT:
		return real(*(const float *)p);
	case PROTOBUF_C_TYPE_DOUBLE:
		return real(*(const double *)p);
	case PROTOBUF_C_TYPE_BOOL:
		return json_boolean(*(const protobuf_c_boolean *)p);
	case PROTOBUF_C_TYPE_ENUM:
		return json_string(enum_short_name(f->descriptor, *(const int *)p));
	case PROTOBUF_C_TYPE_STRING:
		return json_string(*(const char *const *)p ? *(const char *const *)p : "");
	case PROTOBUF_C_TYPE_BYTES:
		return hex(b->data, b->len);
	case PROTOBUF_C_TYPE_MESSAGE:
		return *(const ProtobufCMessage *const *)p ? message(*(const ProtobufCMessage *const *)p) : json_null();
	}
	return json_null();
}

static size_t element_size(const ProtobufCFieldDescriptor *f)
{
	switch (f->type) {
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	default:
		return 4;
	}
}

static json_t *list(const ProtobufCFieldDescriptor *f, const char *items, size_t n)
{
	json_t *array = json_array();

	for (size_t i = 0; i < n && array; i++)
		if (json_array_append_new(array, value(f, items + i * element_size(f)))) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *field(const ProtobufCFieldDescriptor *f, const ProtobufCMessage *msg)
{
	const char *base = (const char *)msg;
	const void *at = base + f->offset;

	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		return list(f, *(const char *const *)at, *(const size_t *)(base + f->quantifier_offset));
	if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(const uint32_t *)(base + f->quantifier_offset) != f->id)
		return json_null();
	return value(f, at);
}

static json_t *message(const ProtobufCMessage *msg)
{
	json_t *object = json_object();

	for (unsigned i = 0; i < msg->descriptor->n_fields && object; i++) {
		const ProtobufCFieldDescriptor *f = &msg->descriptor->fields[i];
		char key[128];

		snprintf(key, sizeof(key), "%s", f->name);
		if (ends_with(key, TIME_SUFFIX))
			strcpy(key + strlen(key) - strlen(TIME_SUFFIX), "time");
		if (json_object_set_new(object, key, field(f, msg))) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

char *json_of(const struct ProtobufCMessage *msg)
{
	json_t *object = message(msg);
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	return text;
}

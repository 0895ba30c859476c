/* SPDX-License-Identifier: Apache-2.0 */
#include "support/suite.h"

#include "gacc/v1/gradient.pb-c.h"
#include "proto/bytes.h"
#include "proto/utf8.h"
#include "proto/error_detail.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#define PUSH (&gacc__v1__push_inline_request__descriptor)
#define REGISTER (&gacc__v1__register_tensors_request__descriptor)

static enum status decode(const ProtobufCMessageDescriptor *desc, const char *data, size_t n)
{
	ProtobufCMessage *msg = NULL;
	char *copy = malloc(n ? n : 1); /* exact size, so that ASan sees a read past the end */
	memcpy(copy, data, n);
	enum status st = bytes_decode(desc, copy, n, &msg);
	ck_assert((st == ST_OK) == (msg != NULL));
	bytes_free(msg);
	free(copy);
	return st;
}
#define DECODE(desc, literal) decode(desc, literal, sizeof(literal) - 1)

static Gacc__V1__Session session = GACC__V1__SESSION__INIT;
static Gacc__V1__PushRequest header = GACC__V1__PUSH_REQUEST__INIT;

static Gacc__V1__PushInlineRequest sample(void)
{
	Gacc__V1__PushInlineRequest msg = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	session.id = 0x1122334455667788;
	session.token = (ProtobufCBinaryData){ .len = 16, .data = (uint8_t *)"0123456789abcdef" };
	header.session = &session;
	header.window = 300;
	header.weight = 2.5;
	msg.header = &header;
	msg.offset = 1u << 20;
	msg.xxh3 = 7;
	return msg;
}

static void check_sample(const ProtobufCMessage *base)
{
	const Gacc__V1__PushInlineRequest *msg = (const void *)base;
	ck_assert_ptr_nonnull(msg->header);
	ck_assert_ptr_nonnull(msg->header->session);
	ck_assert_uint_eq(msg->header->session->id, 0x1122334455667788);
	ck_assert_uint_eq(msg->header->window, 300);
	ck_assert_double_eq(msg->header->weight, 2.5);
	ck_assert_uint_eq(msg->offset, 1u << 20);
	ck_assert_uint_eq(msg->xxh3, 7);
	ck_assert_uint_eq(msg->data.len, 0);
}

static uint8_t *flatten(grpc_byte_buffer *buffer, size_t *out_len)
{
	const grpc_slice_buffer *all = &buffer->data.raw.slice_buffer;
	struct bytes_view view = { all->slices, 0, all->length };
	uint8_t *flat = malloc(view.left + 1);
	*out_len = view.left;
	bytes_copy(&view, flat, view.left);
	return flat;
}

/* The bytes as a buffer of slices that end at the given cuts. */
static grpc_byte_buffer *cut(const uint8_t *data, size_t n, const size_t *cuts, size_t n_cuts)
{
	grpc_slice slices[8];
	size_t from = 0, used = 0;
	for (size_t i = 0; i <= n_cuts; i++) {
		size_t to = i < n_cuts ? cuts[i] : n;
		slices[used++] = grpc_slice_from_copied_buffer((const char *)data + from, to - from);
		from = to;
	}
	grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, used);
	for (size_t i = 0; i < used; i++)
		grpc_slice_unref(slices[i]);
	return buffer;
}

static void count_release(void *arg)
{
	++*(int *)arg;
}

START_TEST(flat_round_trip)
{
	Gacc__V1__PushInlineRequest msg = sample();
	grpc_byte_buffer *buffer = bytes_to_buffer(&msg.base);
	ProtobufCMessage *back;
	ck_assert_int_eq(bytes_from_buffer(PUSH, buffer, &back), ST_OK);
	check_sample(back);
	bytes_free(back);
	grpc_byte_buffer_destroy(buffer);
}
END_TEST

START_TEST(empty_message)
{
	Gacc__V1__AckStepResponse msg = GACC__V1__ACK_STEP_RESPONSE__INIT;
	grpc_byte_buffer *buffer = bytes_to_buffer(&msg.base);
	ProtobufCMessage *back;
	struct bytes_view view = { .left = 1 };
	ck_assert_int_eq(bytes_from_buffer(&gacc__v1__ack_step_response__descriptor, buffer, &back), ST_OK);
	bytes_free(back);
	ck_assert_int_eq(bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view), ST_OK);
	ck_assert_uint_eq(view.left, 0);
	bytes_free(back);
	grpc_byte_buffer_destroy(buffer);
}
END_TEST

START_TEST(bulk_goes_by_reference)
{
	static uint8_t payload[3000];
	Gacc__V1__PushInlineRequest msg = sample();
	int released = 0;
	grpc_byte_buffer *buffer =
		bytes_to_buffer_bulk(&msg.base, 15, payload, sizeof(payload), count_release, &released);
	ProtobufCMessage *back;
	struct bytes_view view;
	const uint8_t *piece;
	size_t len;
	ck_assert_int_eq(bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view), ST_OK);
	check_sample(back);
	ck_assert_uint_eq(view.left, sizeof(payload));
	ck_assert(bytes_next(&view, &piece, &len));
	ck_assert_ptr_eq(piece, payload);
	ck_assert_uint_eq(len, sizeof(payload));
	ck_assert(!bytes_next(&view, &piece, &len));
	bytes_free(back);
	ck_assert_int_eq(released, 0);
	grpc_byte_buffer_destroy(buffer);
	ck_assert_int_eq(released, 1);
}
END_TEST

/* Every way to cut a message into three slices gives the same envelope and bulk, also through plain decoding. */
START_TEST(every_split)
{
	uint8_t payload[37], got[37], *flat;
	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7 + 1);
	Gacc__V1__PushInlineRequest msg = sample();
	grpc_byte_buffer *whole = bytes_to_buffer_bulk(&msg.base, 15, payload, sizeof(payload), NULL, NULL);
	size_t n;
	flat = flatten(whole, &n);
	for (size_t a = 0; a <= n; a++)
		for (size_t b = a; b <= n; b++) {
			grpc_byte_buffer *buffer = cut(flat, n, (size_t[]){ a, b }, 2);
			ProtobufCMessage *back;
			struct bytes_view view;
			ck_assert_int_eq(bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view), ST_OK);
			check_sample(back);
			ck_assert_uint_eq(view.left, sizeof(payload));
			bytes_copy(&view, got, sizeof(got));
			ck_assert_mem_eq(got, payload, sizeof(payload));
			bytes_free(back);
			ck_assert_int_eq(bytes_from_buffer(PUSH, buffer, &back), ST_OK);
			ck_assert_mem_eq(((Gacc__V1__PushInlineRequest *)back)->data.data, payload, sizeof(payload));
			bytes_free(back);
			grpc_byte_buffer_destroy(buffer);
		}
	free(flat);
	grpc_byte_buffer_destroy(whole);
}
END_TEST

/* A message cut short is either refused or, at a field's border, a valid shorter message; never a read past the end. */
START_TEST(every_truncation)
{
	uint8_t payload[20] = { 1 };
	Gacc__V1__PushInlineRequest msg = sample();
	grpc_byte_buffer *whole = bytes_to_buffer_bulk(&msg.base, 15, payload, sizeof(payload), NULL, NULL);
	size_t n, valid = 0;
	uint8_t *flat = flatten(whole, &n);
	for (size_t k = 0; k < n; k++) {
		grpc_byte_buffer *buffer = cut(flat, k, NULL, 0);
		ProtobufCMessage *back;
		struct bytes_view view;
		enum status plain = decode(PUSH, (char *)flat, k);
		enum status bulk = bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view);
		ck_assert_int_eq(plain, bulk);
		if (bulk == ST_OK) {
			valid++;
			bytes_free(back);
		}
		grpc_byte_buffer_destroy(buffer);
	}
	ck_assert_uint_eq(valid, 4); /* nothing, header, offset, xxh3 */
	free(flat);
	grpc_byte_buffer_destroy(whole);
}
END_TEST

START_TEST(last_bulk_wins)
{
	static const char data[] = "\x7a\x03old\x10\x05\x7a\x05newer";
	grpc_byte_buffer *buffer = cut((const uint8_t *)data, sizeof(data) - 1, (size_t[]){ 12 }, 1);
	ProtobufCMessage *back;
	struct bytes_view view;
	char got[5];
	ck_assert_int_eq(bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view), ST_OK);
	ck_assert_uint_eq(view.left, 5);
	bytes_copy(&view, got, 5);
	ck_assert_mem_eq(got, "newer", 5);
	ck_assert_uint_eq(((Gacc__V1__PushInlineRequest *)back)->offset, 5);
	bytes_free(back);
	grpc_byte_buffer_destroy(buffer);
}
END_TEST

/* An envelope of n bytes: one unknown field 9 of n - 4 bytes behind a 3-byte length. */
static enum status envelope(size_t n)
{
	uint8_t *data = calloc(1, n);
	size_t len = n - 4;
	data[0] = 9 << 3 | 2;
	data[1] = (uint8_t)(len | 0x80);
	data[2] = (uint8_t)(len >> 7 | 0x80);
	data[3] = (uint8_t)(len >> 14);
	grpc_byte_buffer *buffer = cut(data, n, (size_t[]){ n / 2 }, 1);
	ProtobufCMessage *back = NULL;
	struct bytes_view view;
	enum status st = bytes_from_buffer_bulk(PUSH, 15, buffer, &back, &view);
	bytes_free(back);
	grpc_byte_buffer_destroy(buffer);
	free(data);
	return st;
}

START_TEST(envelope_limit)
{
	ck_assert_int_eq(envelope(900), ST_OK);
	ck_assert_int_eq(envelope(5000), ST_OK);
	ck_assert_int_eq(envelope(BYTES_ENVELOPE_MAX), ST_OK);
	ck_assert_int_eq(envelope(BYTES_ENVELOPE_MAX + 1), ST_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(malformed)
{
	ck_assert_int_eq(DECODE(PUSH, "\x10\x05"), ST_OK);
	ck_assert_int_eq(DECODE(PUSH, "\xa8\x06\x05"), ST_OK);				       /* unknown field 101 */
	ck_assert_int_eq(DECODE(PUSH, "\x10"), ST_MALFORMED);				       /* no value */
	ck_assert_int_eq(DECODE(PUSH, "\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"), ST_OK); /* 10-byte varint */
	ck_assert_int_eq(DECODE(PUSH, "\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"), ST_MALFORMED);
	ck_assert_int_eq(DECODE(PUSH, "\x00\x05"), ST_MALFORMED);	  /* field 0 */
	ck_assert_int_eq(DECODE(PUSH, "\x13\x14"), ST_MALFORMED);	  /* group */
	ck_assert_int_eq(DECODE(PUSH, "\x16"), ST_MALFORMED);		  /* wire type 6 */
	ck_assert_int_eq(DECODE(PUSH, "\x12\x01\x05"), ST_MALFORMED);	  /* offset as bytes */
	ck_assert_int_eq(DECODE(PUSH, "\x08\x01"), ST_MALFORMED);	  /* header as varint */
	ck_assert_int_eq(DECODE(PUSH, "\x0a\x05\x10\x01"), ST_MALFORMED); /* length past the end */
	ck_assert_int_eq(DECODE(PUSH, "\x0a\x02\x10\x80"), ST_MALFORMED); /* inside the submessage */
	/* length 2^64-1 */
	ck_assert_int_eq(DECODE(PUSH, "\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ST_MALFORMED);
	ck_assert_int_eq(DECODE(PUSH, "\x90\x80\x80\x80\x80\x00\x05"), ST_MALFORMED); /* 6-byte tag */
}
END_TEST

/* TensorSpec: name = 1, shape = 3 (packed or not). */
#define TENSOR(n, body) "\x12" n body
START_TEST(strings_and_packed)
{
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x03", "\x0a\x01w")), ST_OK);
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x04", "\x0a\x02\xc3\xa4")), ST_OK);
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x06", "\x0a\x04\xf0\x9f\x98\x80")), ST_OK);
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x04", "\x0a\x02\xc3\x28")), ST_MALFORMED);
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x03", "\x0a\x01\xc3")), ST_MALFORMED);	      /* cut short */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x04", "\x0a\x02\xc0\xaf")), ST_MALFORMED);	      /* overlong */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x05", "\x0a\x03\xe0\x9f\xbf")), ST_MALFORMED);     /* overlong */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x05", "\x0a\x03\xed\xa0\x80")), ST_MALFORMED);     /* surrogate */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x06", "\x0a\x04\xf0\x8f\xbf\xbf")), ST_MALFORMED); /* overlong */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x06", "\x0a\x04\xf4\x90\x80\x80")), ST_MALFORMED); /* > U+10FFFF */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x05", "\x0a\x03"
							 "a\x00"
							 "b")),
			 ST_MALFORMED);							      /* NUL */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x05", "\x1a\x03\x05\x80\x01")), ST_OK);    /* packed 5, 128 */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x04", "\x18\x05\x18\x07")), ST_OK);	      /* unpacked */
	ck_assert_int_eq(DECODE(REGISTER, TENSOR("\x04", "\x1a\x02\x05\x80")), ST_MALFORMED); /* packed, cut short */
}
END_TEST

/* 2 bytes on the wire that would each take a struct: refused by the budget, with nothing left allocated (ASan). */
START_TEST(amplification_is_bounded)
{
	size_t n = 1u << 20;
	char *data = malloc(n);
	for (size_t i = 0; i < n; i += 2)
		memcpy(data + i, "\x12\x00", 2);
	ck_assert_int_eq(decode(REGISTER, data, n), ST_RESOURCE_EXHAUSTED);
	ck_assert_int_eq(decode(REGISTER, data, 1000), ST_OK);
	for (size_t i = 0; i < n; i += 2)
		memcpy(data + i, "\x50\x00", 2); /* unknown field 10 */
	ck_assert_int_eq(decode(REGISTER, data, n), ST_RESOURCE_EXHAUSTED);
	free(data);
}
END_TEST

/* A real registration of 100000 tensors passes the budget. */
START_TEST(large_registration)
{
	enum { N = 100000 };
	static Gacc__V1__TensorSpec specs[N];
	static Gacc__V1__TensorSpec *list[N];
	static int64_t shape[2] = { 4096, 11008 };
	Gacc__V1__RegisterTensorsRequest msg = GACC__V1__REGISTER_TENSORS_REQUEST__INIT;
	char name[] = "layers.17.w";
	for (size_t i = 0; i < N; i++) {
		gacc__v1__tensor_spec__init(&specs[i]);
		specs[i].name = name;
		specs[i].dtype = GACC__V1__DATA_TYPE__DATA_TYPE_BF16;
		specs[i].n_shape = 2;
		specs[i].shape = shape;
		list[i] = &specs[i];
	}
	msg.n_tensors = N;
	msg.tensors = list;
	grpc_byte_buffer *buffer = bytes_to_buffer(&msg.base);
	ProtobufCMessage *back;
	ck_assert_int_eq(bytes_from_buffer(REGISTER, buffer, &back), ST_OK);
	ck_assert_uint_eq(((Gacc__V1__RegisterTensorsRequest *)back)->n_tensors, N);
	bytes_free(back);
	grpc_byte_buffer_destroy(buffer);
}
END_TEST

/* Flipping each bit of a message never reads outside of it (ASan), and plain and bulk decoding agree on the field
 * structure. */
START_TEST(every_bit_flip)
{
	Gacc__V1__PushInlineRequest msg = sample();
	uint8_t payload[5] = { 9, 9, 9, 9, 9 };
	grpc_byte_buffer *whole = bytes_to_buffer_bulk(&msg.base, 15, payload, sizeof(payload), NULL, NULL);
	size_t n, refused = 0;
	uint8_t *flat = flatten(whole, &n);
	for (size_t bit = 0; bit < 8 * n; bit++) {
		flat[bit / 8] ^= (uint8_t)(1 << bit % 8);
		refused += decode(PUSH, (char *)flat, n) != ST_OK;
		flat[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	ck_assert_uint_gt(refused, 0);
	ck_assert_uint_lt(refused, 8 * n);
	free(flat);
	grpc_byte_buffer_destroy(whole);
}
END_TEST

static const struct {
	const char *bytes;
	size_t n;
	const char *why;
} explained[] = {
#define BAD(bytes, why)                                                                                                \
	{                                                                                                              \
		bytes, sizeof(bytes) - 1, why                                                                          \
	}
	BAD("\x08\x80", "gacc.v1.RegisterTensorsRequest.session at byte 1: wire type 0 does not belong to this field"),
	BAD("\x00", "gacc.v1.RegisterTensorsRequest at byte 0: no field begins with tag 0"),
	BAD("\x80", "gacc.v1.RegisterTensorsRequest at byte 0: no field begins with tag 0"),
	BAD("\x0a\x7f", "gacc.v1.RegisterTensorsRequest.session at byte 1: 127 bytes are announced, 0 are left"),
	BAD("\x0a\x80",
	    "gacc.v1.RegisterTensorsRequest.session at byte 1: a length does not end within the 1 bytes left"),
	BAD("\x0a\x02\x09\x01", "gacc.v1.Session.id at byte 3: 8 bytes are announced, 1 are left"),
	BAD("\x12\x03\x0a\x01\xff", "gacc.v1.TensorSpec.name at byte 4: byte 0xff is not UTF-8"),
	BAD("\x12\x04\x0a\x02"
	    "a\0",
	    "gacc.v1.TensorSpec.name at byte 5: byte 0x00 is not allowed in text"),
	BAD("\x12\x04\x1a\x02\x01\x80",
	    "gacc.v1.TensorSpec.shape at byte 5: a number does not end within the 1 bytes left"),
	BAD("\x12\x03\x12\x01\x01", "gacc.v1.TensorSpec.dtype at byte 4: wire type 2 does not belong to this field"),
	BAD("\xfb\x3f", "gacc.v1.RegisterTensorsRequest.1023 at byte 2: wire type 3 is not allowed"),
	BAD("", "gacc.v1.RegisterTensorsRequest: nothing is wrong with its 0 bytes"),
};

/* A malformed message is refused with the field, the place and the value; from a buffer in slices the same. */
START_TEST(what_is_wrong_is_said)
{
	char why[256];
	const uint8_t *bytes = (const uint8_t *)explained[_i].bytes;
	size_t n = explained[_i].n, middle = n / 2;
	ck_assert(decode(REGISTER, explained[_i].bytes, n) == (n ? ST_MALFORMED : ST_OK));
	bytes_explain(REGISTER, bytes, n, why, sizeof(why));
	ck_assert_str_eq(why, explained[_i].why);
	grpc_byte_buffer *buffer = cut(bytes, n, &middle, 1);
	strcpy(why, "");
	bytes_explain_buffer(REGISTER, buffer, why, sizeof(why));
	ck_assert_str_eq(why, explained[_i].why);
	grpc_byte_buffer_destroy(buffer);
}
END_TEST

/* A sentence that quotes a name of the caller may be cut within a character: what is sent is UTF-8 all the same. */
START_TEST(text_that_was_cut_is_repaired)
{
	char whole[] = "x \xe2\x82\xac", cut[] = "\xe2\x82\xac \xe2\x82", none[] = "";
	utf8_repair(whole);
	utf8_repair(cut);
	utf8_repair(none);
	ck_assert_str_eq(whole, "x \xe2\x82\xac");
	ck_assert_str_eq(cut, "\xe2\x82\xac ??");
	ck_assert_str_eq(none, "");
}
END_TEST

START_TEST(error_text_is_utf8)
{
	char room[ERROR_TEXT_MAX + 1];
	ck_assert_str_eq(error_text_copy("no job \"\xc3\xa4\xc3\" that", room), "no job \"\xc3\xa4?\" that");
	ck_assert_str_eq(error_text_copy("\xff\xed\xa0\x80", room), "????");
	ck_assert_str_eq(error_text_copy(NULL, room), "");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("bytes");
	TCase *tc = tcase_create("bytes");
	tcase_add_test(tc, flat_round_trip);
	tcase_add_test(tc, empty_message);
	tcase_add_test(tc, bulk_goes_by_reference);
	tcase_add_test(tc, every_split);
	tcase_add_test(tc, every_truncation);
	tcase_add_test(tc, last_bulk_wins);
	tcase_add_test(tc, envelope_limit);
	tcase_add_test(tc, malformed);
	tcase_add_test(tc, strings_and_packed);
	tcase_add_test(tc, amplification_is_bounded);
	tcase_add_test(tc, large_registration);
	tcase_add_test(tc, every_bit_flip);
	tcase_add_loop_test(tc, what_is_wrong_is_said, 0, sizeof(explained) / sizeof(*explained));
	tcase_add_test(tc, text_that_was_cut_is_repaired);
	tcase_add_test(tc, error_text_is_utf8);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Views of parts: every field goes through its message, what is wrong with one is said, and none is large. */
#include "cluster/part_view_message.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"
#include "unit/cluster/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct part_view full(void)
{
	struct part_view v;
	fields_fill(&v, sizeof(v), 11);
	v.allocating = v.ended = v.released = v.ranks_known = v.has_tensors = true;
	v.engine_pid = 0;
	snprintf(v.gpu, sizeof(v.gpu), "GPU-12345678-1234-1234-1234-123456789012");
	v.n_buffers = PART_VIEW_BUFFERS;
	for (int i = 0; i < PART_VIEW_BUFFERS; i++)
		snprintf(v.buffer[i].kind, sizeof(v.buffer[i].kind), "kind \xc3\xa9 %d", i);
	return v;
}

static enum status through(const struct part_view *v, struct part_view *out, char why[200])
{
	size_t n;
	void *bytes = part_view_pack(v, &n);
	ck_assert_ptr_nonnull(bytes);
	enum status st = part_view_unpack(bytes, n, out, why, 200);
	free(bytes);
	return st;
}

static void expect_same(const struct part_view *v)
{
	struct part_view back;
	char why[200] = "";
	ck_assert_msg(through(v, &back, why) == ST_OK, "%s", why);
#define SAME(field) ck_assert_msg(back.field == v->field, "%s", #field)
	SAME(job_id), SAME(epoch), SAME(incarnation), SAME(number), SAME(part), SAME(links), SAME(bytes);
	SAME(allocating), SAME(ended), SAME(released), SAME(ranks_known), SAME(has_tensors);
	SAME(engine_starts), SAME(engine_pid), SAME(tensors), SAME(parameters), SAME(gpu_bytes), SAME(n_buffers);
	ck_assert_str_eq(back.gpu, v->gpu);
	for (uint32_t i = 0; i < v->n_buffers; i++) {
		SAME(buffer[i].segments), SAME(buffer[i].clients), SAME(buffer[i].bytes), SAME(buffer[i].tensors);
		ck_assert_str_eq(back.buffer[i].kind, v->buffer[i].kind);
	}
#undef SAME
}

START_TEST(a_view_comes_back)
{
	struct part_view v = full();
	expect_same(&v);
	v.allocating = v.ended = v.released = v.ranks_known = v.has_tensors = false;
	v.engine_pid = 12345;
	v.n_buffers = 1;
	expect_same(&v);
	v = (struct part_view){ .job_id = 1, .epoch = 1, .incarnation = 1, .number = 1 };
	expect_same(&v);
}
END_TEST
/* A member that is added and not compared above changes the size. */
_Static_assert(sizeof(struct part_buffer) == 48, "compared above");
_Static_assert(sizeof(struct part_view) == 152 + PART_VIEW_BUFFERS * 48, "compared above and below");

/* One by one: a change of any of them is news, but for the number. */
START_TEST(what_has_changed_is_news)
{
	const struct part_view v = full();
	struct part_view other = v;
	ck_assert(part_view_same(&v, &other));
	other.number++;
	ck_assert(part_view_same(&v, &other));
#define NEWS(field, is) other = v, other.field = (is), ck_assert_msg(!part_view_same(&v, &other), "%s", #field)
	NEWS(job_id, v.job_id + 1), NEWS(epoch, v.epoch + 1), NEWS(incarnation, v.incarnation + 1);
	NEWS(part, v.part + 1), NEWS(links, v.links + 1), NEWS(bytes, v.bytes + 1), NEWS(allocating, false);
	NEWS(ended, false), NEWS(released, false), NEWS(ranks_known, false);
	NEWS(has_tensors, false), NEWS(engine_starts, v.engine_starts + 1), NEWS(engine_pid, 1);
	NEWS(tensors, v.tensors + 1), NEWS(parameters, v.parameters + 1), NEWS(gpu_bytes, v.gpu_bytes + 1);
	NEWS(gpu[39], 'a');
#undef NEWS
}
END_TEST

static void expect_refused(const struct part_view *v, const char *text)
{
	struct part_view back = { .number = 77 };
	char why[200] = "";
	ck_assert_int_eq(through(v, &back, why), ST_VERSION_SKEW);
	ck_assert_str_eq(why, text);
	ck_assert_uint_eq(back.number, 77);
}

START_TEST(senseless_views_are_refused)
{
	struct part_view v = full(), back;
	char why[200];
#define REFUSED(change, text) change, expect_refused(&v, text), v = full()
	REFUSED(v.epoch = 0, "PartView.epoch is missing");
	REFUSED(v.incarnation = 0, "PartView.incarnation is missing");
	REFUSED(v.number = 0, "PartView.number is missing");
	REFUSED(v.ended = false, "PartView.released is set, and ended is not");
	REFUSED(v.engine_pid = -7, "PartView.engine_pid is -7");
	REFUSED(v.buffer[15].kind[0] = '\0', "PartBuffer.kind is missing");
#undef REFUSED
	ck_assert_int_eq(part_view_unpack("\x0a", 1, &back, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, "PartView") != NULL, "%s", why);
}
END_TEST

/* ---- bounds ---- */

/* All numbers as large as they can be. */
START_TEST(the_largest_view_is_small)
{
	struct part_view v;
	size_t n;
	memset(&v, 0xff, sizeof(v));
	v.allocating = v.ended = v.released = v.ranks_known = v.has_tensors = true;
	v.n_buffers = PART_VIEW_BUFFERS;
	for (int i = 0; i < PART_VIEW_BUFFERS; i++) {
		memset(v.buffer[i].kind, 'x', sizeof(v.buffer[i].kind) - 1);
		v.buffer[i].kind[sizeof(v.buffer[i].kind) - 1] = '\0';
	}
	memset(v.gpu, 'x', sizeof(v.gpu) - 1);
	v.gpu[sizeof(v.gpu) - 1] = '\0';
	void *bytes = part_view_pack(&v, &n);
	ck_assert_ptr_nonnull(bytes);
	ck_assert_uint_le(n, PART_VIEW_BYTES);
	ck_assert_uint_gt(n, PART_VIEW_BYTES * 3 / 4);
	free(bytes);
}
END_TEST

enum { MANY = 1000 };

/* A node of another version: more buffers than there is room for, a longer name, a field that is not known here. */
START_TEST(what_is_beyond_the_bounds_is_cut)
{
	Gacc__Internal__V1__PartView m = GACC__INTERNAL__V1__PART_VIEW__INIT;
	Gacc__Internal__V1__PartBuffer buffer = GACC__INTERNAL__V1__PART_BUFFER__INIT, *list[MANY];
	ProtobufCMessageUnknownField later = { 2000, PROTOBUF_C_WIRE_TYPE_VARINT, 1, (uint8_t *)"\x05" };
	char kind[] = "twenty-two characters \xc3\xa9 and more", why[200] = "";
	struct part_view back;
	m.epoch = m.incarnation = m.number = 1;
	m.base.unknown_fields = &later;
	m.base.n_unknown_fields = 1;
	buffer.kind = kind;
	buffer.bytes = 9;
	for (int i = 0; i < MANY; i++)
		list[i] = &buffer;
	m.buffers = list;
	m.n_buffers = MANY;
	size_t n = gacc__internal__v1__part_view__get_packed_size(&m);
	uint8_t *bytes = malloc(n);
	gacc__internal__v1__part_view__pack(&m, bytes);
	ck_assert_msg(part_view_unpack(bytes, n, &back, why, sizeof(why)) == ST_OK, "%s", why);
	ck_assert_uint_eq(back.n_buffers, PART_VIEW_BUFFERS);
	ck_assert_str_eq(back.buffer[15].kind, "twenty-two characters ");
	ck_assert_uint_eq(back.buffer[15].bytes, 9);
	free(bytes);
}
END_TEST

START_TEST(texts_are_mended)
{
	struct part_view v = full(), back;
	char why[200];
	v.buffer[3].kind[1] = '\xff';
	ck_assert_int_eq(through(&v, &back, why), ST_OK);
	ck_assert_int_eq(back.buffer[3].kind[1], '?');
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct part_view v;
	char why[200] = "";
	enum status st = part_view_unpack(bytes, n, &v, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why));
	ck_assert(st || (v.epoch && v.incarnation && v.number && v.n_buffers <= PART_VIEW_BUFFERS));
	return st == ST_OK;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct part_view v = full();
	size_t n;
	v.n_buffers = 3;
	void *bytes = part_view_pack(&v, &n);
	altered_try(bytes, n, 6000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("part_view");
	TCase *c = tcase_create("part_view");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_view_comes_back);
	tcase_add_test(c, what_has_changed_is_news);
	tcase_add_test(c, senseless_views_are_refused);
	tcase_add_test(c, the_largest_view_is_small);
	tcase_add_test(c, what_is_beyond_the_bounds_is_cut);
	tcase_add_test(c, texts_are_mended);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}

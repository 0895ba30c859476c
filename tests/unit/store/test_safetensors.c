/* SPDX-License-Identifier: Apache-2.0 */
#include "store/safetensors.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of this JSON and so many bytes of data, judged. */
static enum status judge(const char *json, uint64_t data_bytes, struct safetensors **out, char why[256])
{
	size_t n = strlen(json);
	char *file = malloc(8 + n);
	uint64_t length = n;
	memcpy(file, &length, 8);
	memcpy(file + 8, json, n);
	enum status st = safetensors_parse("f", file, 8 + n, 8 + n + data_bytes, out, why, 256);
	free(file);
	return st;
}

static const struct {
	const char *json;
	uint64_t data;
	const char *says; /* NULL: it is good */
} files[] = {
	{ "{}", 0, NULL },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}   ", 24, NULL },
	{ "{\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}", 2, NULL },
	{ "{\"a\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, NULL },
	{ "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
	  "\"data_offsets\":[0,4]},"
	  "\"__metadata__\":{\"format\":\"pt\"}}",
	  7, NULL },
	{ " {}", 0, "does not begin" },
	{ "[]", 0, "does not begin" },
	{ "{", 0, "no JSON" },
	{ "{}x", 0, "no JSON" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
	  "offsets\":[0,1]}}",
	  1, "no JSON: duplicate" },
	{ "{\"a\":7}", 0, "\"a\": must have" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"a\": must have" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "and nothing else" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"offsets\":[0,1]}}", 1, "data_offsets is missing" },
	{ "{\"a\":{\"dtype\":\"F8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype \"F8\"" },
	{ "{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype \"(no string)\"" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "shape[0]" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "shape[0]" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "shape is no list" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, "no JSON: too big" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "overflows" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "needs 8 bytes" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "[8, 0]" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "no pair" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
	  "begins at 1, the one before it ends at 0" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
	  "offsets\":[1,3]}}",
	  3, "\"b\" begins at 1, the one before it ends at 2" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
	  "offsets\":[3,4]}}",
	  4, "\"b\" begins at 3" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 2, "end at 1, the data has 2" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "end at 2, the data has 1" },
	{ "{\"__metadata__\":{\"a\":1}}", 0, "no string" },
	{ "{\"__metadata__\":[]}", 0, "no map" },
};

START_TEST(files_are_judged)
{
	struct safetensors *s = NULL;
	char why[256] = "";
	enum status st = judge(files[_i].json, files[_i].data, &s, why);
	if (!files[_i].says) {
		ck_assert_msg(st == ST_OK, "%s", why);
		safetensors_free(s);
		return;
	}
	ck_assert_int_eq(st, ST_MALFORMED);
	ck_assert_msg(!strncmp(why, "f: ", 3) && strstr(why, files[_i].says), "%s", why);
}
END_TEST

START_TEST(lengths_are_judged)
{
	static const struct {
		uint64_t length, file_bytes;
		size_t n_head;
	} heads[] = { { 0, 7, 7 },
		      { 1, 8, 8 },
		      { UINT64_MAX, 16, 16 },
		      { SAFETENSORS_MAX_HEADER + 1, UINT64_MAX, 16 },
		      { 9, 16, 16 },
		      { 8, 100, 15 },
		      { 0, 8, 8 } };
	char head[16] = "", why[256];
	struct safetensors *s;
	memset(head + 8, '{', 8);
	memcpy(head, &heads[_i].length, 8);
	ck_assert_int_eq(safetensors_parse("f", head, heads[_i].n_head, heads[_i].file_bytes, &s, why, sizeof(why)),
			 ST_MALFORMED);
}
END_TEST

START_TEST(what_is_written_is_read)
{
	struct safe_tensor t[] = { { .name = "w", .dtype = SAFE_F32, .n_dims = 2, .shape = { 3, 5 } },
				   { .name = "empty", .dtype = SAFE_I64, .n_dims = 1 },
				   { .name = "h \" \xc3\xa4", .dtype = SAFE_BF16, .n_dims = 1, .shape = { 7 } },
				   { .name = "s", .dtype = SAFE_BOOL } };
	const struct safe_pair pairs[] = { { "format", "pt" }, { "step", "12" } };
	void *head;
	size_t n_head, n;
	char why[256] = "";
	struct safetensors *s;
	ck_assert_int_eq(safetensors_header(t, 4, pairs, 2, &head, &n_head), ST_OK);
	ck_assert_uint_eq(n_head % 8, 0);
	ck_assert_uint_eq(t[3].end, 60 + 14 + 1);
	ck_assert_msg(!safetensors_parse("f", head, n_head, n_head + 75, &s, why, sizeof(why)), "%s", why);
	const struct safe_tensor *r = safetensors_all(s, &n);
	ck_assert_uint_eq(n, 4);
	for (size_t i = 0; i < n; i++) {
		ck_assert_str_eq(r[i].name, t[i].name);
		ck_assert_int_eq(r[i].dtype, t[i].dtype);
		ck_assert_int_eq(r[i].n_dims, t[i].n_dims);
		ck_assert_mem_eq(r[i].shape, t[i].shape, sizeof(uint64_t) * (size_t)t[i].n_dims);
		ck_assert_uint_eq(r[i].begin, t[i].begin);
		ck_assert_uint_eq(r[i].end, t[i].end);
	}
	ck_assert_ptr_eq(safetensors_find(s, "s"), &r[3]);
	ck_assert_ptr_null(safetensors_find(s, "x"));
	ck_assert_str_eq(safetensors_metadata(s, "step"), "12");
	ck_assert_ptr_null(safetensors_metadata(s, "x"));
	ck_assert_uint_eq(safetensors_data_offset(s), n_head);
	safetensors_free(s);
	free(head);
}
END_TEST

START_TEST(what_cannot_be_read_is_not_written)
{
	struct safe_tensor bad[][2] = {
		{ { .name = "a", .dtype = SAFE_U8 }, { .name = "a", .dtype = SAFE_U8 } },
		{ { .name = "__metadata__", .dtype = SAFE_U8 }, { .name = "b", .dtype = SAFE_U8 } },
		{ { .name = "\xff", .dtype = SAFE_U8 }, { .name = "b", .dtype = SAFE_U8 } },
		{ { .name = "a", .dtype = SAFE_F64, .n_dims = 2, .shape = { UINT64_C(1) << 40, UINT64_C(1) << 40 } },
		  { .name = "b", .dtype = SAFE_U8 } },
	};
	void *head;
	size_t n_head;
	ck_assert_int_eq(safetensors_header(bad[_i], 2, NULL, 0, &head, &n_head), ST_INVALID_ARGUMENT);
}
END_TEST

/* Readers take 100 MB of it at most. */
START_TEST(a_header_that_nobody_would_read_is_not_written)
{
	size_t half = SAFETENSORS_MAX_HEADER / 2;
	char *name = malloc(half + 1);
	memset(name, 'a', half);
	name[half] = '\0';
	struct safe_tensor t[] = { { .name = name, .dtype = SAFE_U8 }, { .name = name + 1, .dtype = SAFE_U8 } };
	void *head;
	size_t n_head;
	ck_assert_int_eq(safetensors_header(t, 2, NULL, 0, &head, &n_head), ST_RESOURCE_EXHAUSTED);
	free(name);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("safetensors");
	TCase *c = tcase_create("safetensors");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, files_are_judged, 0, sizeof(files) / sizeof(*files));
	tcase_add_loop_test(c, lengths_are_judged, 0, 7);
	tcase_add_test(c, what_is_written_is_read);
	tcase_add_loop_test(c, what_cannot_be_read_is_not_written, 0, 4);
	tcase_add_test(c, a_header_that_nobody_would_read_is_not_written);
	return suite_run(s);
}

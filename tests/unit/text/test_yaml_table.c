/* SPDX-License-Identifier: Apache-2.0 */
#include "text/yaml_table.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct item {
	char *name;
	double weight;
	struct yaml_list shape;
};

struct thing {
	char *title;
	int on, color;
	uint32_t small, mode;
	uint64_t big, size, time;
	double ratio, betas[2], unset;
	struct {
		char *inside;
		struct {
			uint32_t deepest;
		} deeper;
	} section;
	struct yaml_list items, words, labels;
};

#define AT(f) offsetof(struct thing, f)
static const struct yaml_name colors[] = { { "red", 1 }, { "green", 2 }, { "ultra_violet", 3 }, { NULL, 0 } };
static const struct yaml_field deeper[] = { { .name = "deepest", .type = YAML_U32, .initial = "4", .doc = "Deep." },
					    { .name = NULL } };
static const struct yaml_field section[] = {
	{ .name = "inside", .type = YAML_STRING, .initial = "here", .min = 1, .max = 9, .doc = "Inside." },
	{ .name = "deeper",
	  .type = YAML_SECTION,
	  .fields = deeper,
	  .offset = AT(section.deeper) - AT(section),
	  .doc = "Deeper." },
	{ .name = NULL }
};
static const struct yaml_field items[] = {
	{ .name = "name", .type = YAML_STRING, .offset = offsetof(struct item, name), .doc = "Name." },
	{ .name = "weight", .type = YAML_F64, .offset = offsetof(struct item, weight), .initial = "nan", .doc = "W." },
	{ .name = "shape",
	  .type = YAML_I64S,
	  .offset = offsetof(struct item, shape),
	  .min = 1,
	  .max = 1e15,
	  .doc = "S." },
	{ .name = NULL }
};
static const struct yaml_field table[] = {
	{ .name = "title", .type = YAML_STRING, .offset = AT(title), .initial = "none", .doc = "A title." },
	{ .name = "on", .type = YAML_BOOL, .offset = AT(on), .initial = "true", .doc = "On." },
	{ .name = "color",
	  .type = YAML_ENUM,
	  .offset = AT(color),
	  .initial = "green",
	  .names = colors,
	  .doc = "Color." },
	{ .name = "small",
	  .type = YAML_U32,
	  .offset = AT(small),
	  .min = 1,
	  .max = 100,
	  .initial = "7",
	  .doc = "Small." },
	{ .name = "little", .type = YAML_ALIAS, .alias_of = "small" },
	{ .name = "mode", .type = YAML_OCTAL, .offset = AT(mode), .initial = "0660", .doc = "Mode." },
	{ .name = "big", .type = YAML_U64, .offset = AT(big), .doc = "Big." },
	{ .name = "size", .type = YAML_SIZE, .offset = AT(size), .initial = "64GiB", .doc = "Size." },
	{ .name = "time", .type = YAML_MS, .offset = AT(time), .initial = "10s", .doc = "Time." },
	{ .name = "ratio", .type = YAML_F64, .offset = AT(ratio), .min = 0, .max = 1, .initial = "0.25", .doc = "R." },
	{ .name = "betas",
	  .type = YAML_F64,
	  .n = 2,
	  .offset = AT(betas),
	  .initial = "nan",
	  .min = 0,
	  .max = 1,
	  .doc = "B." },
	{ .name = "unset", .type = YAML_F64, .offset = AT(unset), .initial = "nan", .doc = "Unset." },
	{ .name = "section", .type = YAML_SECTION, .fields = section, .offset = AT(section), .doc = "Section." },
	{ .name = "items",
	  .type = YAML_LIST,
	  .fields = items,
	  .item_bytes = sizeof(struct item),
	  .offset = AT(items),
	  .doc = "Items." },
	{ .name = "words", .type = YAML_STRINGS, .offset = AT(words), .min = 1, .max = 8, .doc = "Words." },
	{ .name = "labels", .type = YAML_MAP, .offset = AT(labels), .min = 1, .max = 8, .doc = "Labels." },
	{ .name = NULL }
};

static struct thing t;
static struct yaml_origins origins;
static struct yaml_error error;

static void setup(void)
{
	memset(&t, 0, sizeof(t));
	memset(&origins, 0, sizeof(origins));
	error.text[0] = 0;
	ck_assert_int_eq(yaml_init(table, &t, &origins, &error), ST_OK);
}

static void teardown(void)
{
	yaml_fini(table, &t);
}

static enum status read_text(const char *text)
{
	return yaml_read(table, &t, "f.yaml", text, strlen(text), &origins, &error);
}

static const struct yaml_field *field(const char *name)
{
	const struct yaml_field *f = table;
	while (strcmp(f->name, name) != 0)
		f++;
	return f;
}

START_TEST(defaults_are_set)
{
	ck_assert_str_eq(t.title, "none");
	ck_assert_int_eq(t.on, 1);
	ck_assert_int_eq(t.color, 2);
	ck_assert_uint_eq(t.small, 7);
	ck_assert_uint_eq(t.mode, 0660);
	ck_assert_uint_eq(t.big, 0);
	ck_assert_uint_eq(t.size, UINT64_C(64) << 30);
	ck_assert_uint_eq(t.time, 10000);
	ck_assert_double_eq(t.ratio, 0.25);
	ck_assert(isnan(t.unset) && isnan(t.betas[0]) && isnan(t.betas[1]));
	ck_assert_str_eq(t.section.inside, "here");
	ck_assert_uint_eq(t.section.deeper.deepest, 4);
	ck_assert_str_eq(yaml_origin(&origins, field("title")), "default");
	ck_assert_str_eq(yaml_origin(&origins, field("big")), "");
}
END_TEST

START_TEST(a_file_is_read)
{
	ck_assert_int_eq(read_text("title: hello world\n"
				   "on: false\n"
				   "color: ultra_violet\n"
				   "little: 9\n"
				   "mode: \"0600\"\n"
				   "big: 18446744073709551615\n"
				   "size: 1.5 GiB\n"
				   "time: 1h30m\n"
				   "ratio: 1e-3\n"
				   "betas: [0.9, 0.95]\n"
				   "section:\n"
				   "  deeper: { deepest: 5 }\n"
				   "items:\n"
				   "- name: a\n"
				   "  shape: [2, 3]\n"
				   "- { name: b, weight: 2 }\n"
				   "words: [ls, -l, 7]\n"
				   "labels: { team: vision, 7: x }\n"),
			 ST_OK);
	ck_assert_str_eq(t.title, "hello world");
	ck_assert_int_eq(t.on, 0);
	ck_assert_int_eq(t.color, 3);
	ck_assert_uint_eq(t.small, 9);
	ck_assert_uint_eq(t.mode, 0600);
	ck_assert_uint_eq(t.big, UINT64_MAX);
	ck_assert_uint_eq(t.size, 3u << 29);
	ck_assert_uint_eq(t.time, 5400000);
	ck_assert_double_eq(t.ratio, 1e-3);
	ck_assert_double_eq(t.betas[1], 0.95);
	ck_assert_str_eq(t.section.inside, "here");
	ck_assert_uint_eq(t.section.deeper.deepest, 5);
	const struct item *i = t.items.items;
	ck_assert_uint_eq(t.items.n, 2);
	ck_assert_str_eq(i[0].name, "a");
	ck_assert(isnan(i[0].weight));
	ck_assert_uint_eq(i[0].shape.n, 2);
	ck_assert_int_eq(((int64_t *)i[0].shape.items)[1], 3);
	ck_assert_double_eq(i[1].weight, 2);
	ck_assert_uint_eq(t.words.n, 3);
	ck_assert_str_eq(((char **)t.words.items)[0], "ls");
	ck_assert_str_eq(((char **)t.words.items)[2], "7");
	const struct yaml_pair *l = t.labels.items;
	ck_assert_uint_eq(t.labels.n, 2);
	ck_assert_str_eq(l[0].key, "team");
	ck_assert_str_eq(l[1].value, "x");
	ck_assert_str_eq(yaml_origin(&origins, field("color")), "f.yaml:3:8");
	ck_assert_str_eq(yaml_origin(&origins, deeper), "f.yaml:12:22");
	ck_assert_str_eq(yaml_origin(&origins, field("unset")), "default");
}
END_TEST

START_TEST(json_and_empty_files_are_files)
{
	ck_assert_int_eq(read_text("{\"title\": \"x\", \"section\": {\"inside\": \"y\"}, \"betas\": [0, 1]}"), ST_OK);
	ck_assert_str_eq(t.title, "x");
	ck_assert_str_eq(t.section.inside, "y");
	ck_assert_int_eq(read_text(""), ST_OK);
	ck_assert_int_eq(read_text("# nothing\n---\n"), ST_OK);
	ck_assert_int_eq(read_text("section:\nitems:\nlabels:\n"), ST_OK);
	ck_assert_str_eq(t.title, "x");
}
END_TEST

static const struct {
	const char *text, *error;
} wrong[] = {
	{ "titel: x\n", "f.yaml:1:1: unknown key \"titel\"; did you mean \"title\"?" },
	{ "on: true\nsection:\n  insid: x\n",
	  "f.yaml:3:3: unknown key \"insid\" in section; did you mean \"inside\"?" },
	{ "section: { deeper: { depest: 1 } }",
	  "f.yaml:1:22: unknown key \"depest\" in section.deeper; did you mean \"deepest\"?" },
	{ "items: [ { name: a, wait: 1 } ]",
	  "f.yaml:1:21: unknown key \"wait\" in items; there are name, weight, shape" },
	{ "completely_else: 1", "f.yaml:1:1: unknown key \"completely_else\"; there are title, on, color, small, "
				"little, mode, big, size, time, "
				"ratio, betas, unset, section, items, words, labels" },
	{ "small: 101", "f.yaml:1:8: small: \"101\" must be in 1..100" },
	{ "small: 0", "f.yaml:1:8: small: \"0\" must be in 1..100" },
	{ "small: -1", "f.yaml:1:8: small: \"-1\" is not a whole number >= 0" },
	{ "small: 4294967296", "f.yaml:1:8: small: 4294967296 is too big: the most is 4294967295" },
	{ "big: 18446744073709551616",
	  "f.yaml:1:6: big: 18446744073709551616 is too big: the most is 18446744073709551615" },
	{ "small: eight", "f.yaml:1:8: small: \"eight\" is not a whole number >= 0" },
	{ "small: [1]", "f.yaml:1:8: small: must be one value" },
	{ "small: 8\nlittle: 9", "f.yaml:2:1: \"little\" sets small a second time" },
	{ "title: a\ntitle: b", "f.yaml:2:1: \"title\" sets title a second time" },
	{ "color: gren", "f.yaml:1:8: color: \"gren\" is none of red, green, ultra_violet; did you mean \"green\"?" },
	{ "on: yes", "f.yaml:1:5: on: \"yes\" is neither true nor false" },
	{ "ratio: nan", "f.yaml:1:8: ratio: \"nan\" is not a finite number" },
	{ "ratio: 1.01", "f.yaml:1:8: ratio: \"1.01\" must be in 0..1" },
	{ "time: 10", "f.yaml:1:7: time: \"10\" is not a time: a number and ms, s, m, h or d, as 10s or 1h30m" },
	{ "time: 5 weeks",
	  "f.yaml:1:7: time: \"5 weeks\" is not a time: a number and ms, s, m, h or d, as 10s or 1h30m" },
	{ "size: many", "f.yaml:1:7: size: \"many\" is not a size: a number and B, KiB, MiB, GiB or TiB, as 64GiB" },
	{ "size: 99999999TiB", "f.yaml:1:7: size: 99999999TiB is too big" },
	{ "mode: 0888", "f.yaml:1:7: mode: \"0888\" is not a file mode, as \"0660\"" },
	{ "betas: [0.9]", "f.yaml:1:8: betas: must be a list of 2 numbers" },
	{ "betas: 0.9", "f.yaml:1:8: betas: must be a list of 2 numbers" },
	{ "betas: [0.9, 1.5]", "f.yaml:1:14: betas: \"1.5\" must be in 0..1" },
	{ "section: 5", "f.yaml:1:10: section: must be a mapping of keys" },
	{ "- a", "f.yaml:1:1: must be a mapping of keys" },
	{ "items: { name: a }", "f.yaml:1:8: items: must be a list" },
	{ "items: [ { shape: [0] } ]", "f.yaml:1:20: items.shape: \"0\" must be in 1..1e+15" },
	{ "items: [ { shape: [x] } ]", "f.yaml:1:20: items.shape: \"x\" is not a whole number" },
	{ "words: ls -l", "f.yaml:1:8: words: must be a list of words" },
	{ "words: [a, [b]]", "f.yaml:1:12: words: must be a list of words" },
	{ "words: [a, '']", "f.yaml:1:12: words: must not be empty" },
	{ "labels: { a: b, a: c }", "f.yaml:1:17: labels: \"a\" is given twice" },
	{ "labels: { a: 123456789 }", "f.yaml:1:14: labels: is 9 bytes long: must be 1..8" },
	{ "section: { inside: '' }", "f.yaml:1:20: section.inside: must not be empty" },
	{ "title: \"a\\nb\"", "f.yaml:1:8: title: control characters are not allowed: 0x0a at byte 1" },
	{ "title: \"a\\0b\"", "f.yaml:1:8: title: must be one value" },
	{ "? [a]\n: b", "f.yaml:1:3: keys must be words" },
	{ "title: a\n---\ntitle: b", "f.yaml:3:1: a second document: one file is one document" },
	{ "title: [a", "f.yaml:2:1: did not find expected ',' or ']'" },
	{ "title: \"\xff\"", "f.yaml: byte 8: invalid leading UTF-8 octet: 0xff" },
};

START_TEST(mistakes_are_named)
{
	ck_assert_int_eq(read_text(wrong[_i].text), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(error.text, wrong[_i].error);
}
END_TEST

START_TEST(a_key_is_set_from_text)
{
	ck_assert_int_eq(yaml_set(table, &t, "section.deeper.deepest", "9", "--set", &origins, &error), ST_OK);
	ck_assert_int_eq(yaml_set(table, &t, "little", "10", "--set", &origins, &error), ST_OK);
	ck_assert_int_eq(yaml_set(table, &t, "title", "%H: {not yaml", "GACC_TITLE", &origins, &error), ST_OK);
	ck_assert_int_eq(yaml_set(table, &t, "betas", "[0.5, 0.6]", "--set", &origins, &error), ST_OK);
	ck_assert_int_eq(yaml_set(table, &t, "items", "[{name: z}]", "--set", &origins, &error), ST_OK);
	ck_assert_int_eq(yaml_set(table, &t, "items", "[{name: y}, {name: x}]", "--set", &origins, &error), ST_OK);
	ck_assert_uint_eq(t.section.deeper.deepest, 9);
	ck_assert_uint_eq(t.small, 10);
	ck_assert_str_eq(t.title, "%H: {not yaml");
	ck_assert_double_eq(t.betas[0], 0.5);
	ck_assert_uint_eq(t.items.n, 2);
	ck_assert_str_eq(yaml_origin(&origins, deeper), "--set");
	ck_assert_str_eq(yaml_origin(&origins, field("title")), "GACC_TITLE");
}
END_TEST

static const struct {
	const char *key, *text, *error;
} wrong_set[] = {
	{ "section.insyde", "x", "--set: unknown key \"insyde\" in section; did you mean \"inside\"?" },
	{ "smal", "1", "--set: unknown key \"smal\"; did you mean \"small\"?" },
	{ "small", "0", "--set: small: \"0\" must be in 1..100" },
	{ "title.x", "0", "--set: title has no keys below it" },
	{ "", "0",
	  "--set: unknown key \"\"; there are title, on, color, small, little, mode, big, size, time, "
	  "ratio, betas, unset, section, items, words, labels" },
	{ "betas", "[1", "--set: did not find expected ',' or ']'" },
};

/* libyaml would take a second for 20,000 and a day for what a file may hold. */
START_TEST(too_many_brackets_are_refused_at_once)
{
	char text[400] = "# a line\nitems: ";
	memset(text + strlen(text), '[', 300);
	ck_assert_int_eq(read_text(text), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(error.text, "f.yaml:2:264: more than 256 open brackets");
}
END_TEST

START_TEST(mistakes_in_a_set_are_named)
{
	ck_assert_int_eq(yaml_set(table, &t, wrong_set[_i].key, wrong_set[_i].text, "--set", &origins, &error),
			 ST_INVALID_ARGUMENT);
	ck_assert_str_eq(error.text, wrong_set[_i].error);
}
END_TEST

START_TEST(what_is_printed_can_be_read)
{
	char *text = NULL;
	size_t n = 0;
	ck_assert_int_eq(read_text("title: 'say \"hi\" \\'\nbig: 12\nratio: 0.1\nsize: 1500MB\ntime: 90s\nunset: 0"),
			 ST_OK);
	FILE *f = open_memstream(&text, &n);
	yaml_print(table, &t, &origins, f);
	fclose(f);
	ck_assert_ptr_nonnull(strstr(text, "# A title.\ntitle: \"say \\\"hi\\\" \\\\\"  # f.yaml:1:8\n"));
	ck_assert_ptr_nonnull(strstr(text, "\nsize: 1500MB  # f.yaml:4:7\n"));
	ck_assert_ptr_nonnull(strstr(text, "\ntime: 90s  # "));
	ck_assert_ptr_nonnull(strstr(text, "\nsection:\n  # Inside.\n  inside: \"here\"  # default\n"));
	yaml_fini(table, &t);
	setup();
	ck_assert_msg(read_text(text) == ST_OK, "%s\n%s", error.text, text);
	ck_assert_str_eq(t.title, "say \"hi\" \\");
	ck_assert_uint_eq(t.big, 12);
	ck_assert_double_eq(t.ratio, 0.1);
	ck_assert_uint_eq(t.size, 1500000000);
	ck_assert_uint_eq(t.time, 90000);
	ck_assert_uint_eq(t.mode, 0660);
	free(text);
}
END_TEST

START_TEST(nearest_is_near)
{
	static const char *const words[] = { "micro_size", "ranks", "steps", NULL };
	ck_assert_str_eq(yaml_nearest("micro_sise", words), "micro_size");
	ck_assert_str_eq(yaml_nearest("rank", words), "ranks");
	ck_assert_ptr_null(yaml_nearest("optimizer", words));
	ck_assert_ptr_null(yaml_nearest("", words));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("yaml_table");
	TCase *c = tcase_create("yaml_table");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, defaults_are_set);
	tcase_add_test(c, a_file_is_read);
	tcase_add_test(c, json_and_empty_files_are_files);
	tcase_add_test(c, too_many_brackets_are_refused_at_once);
	tcase_add_loop_test(c, mistakes_are_named, 0, sizeof(wrong) / sizeof(*wrong));
	tcase_add_test(c, a_key_is_set_from_text);
	tcase_add_loop_test(c, mistakes_in_a_set_are_named, 0, sizeof(wrong_set) / sizeof(*wrong_set));
	tcase_add_test(c, what_is_printed_can_be_read);
	tcase_add_test(c, nearest_is_near);
	return suite_run(s);
}

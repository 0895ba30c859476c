/* SPDX-License-Identifier: Apache-2.0 */
/* Job files made from what the library knows: the JSON Schema of its table, and a job's specification as a file again.
 */
#include "gacc/gacc_admin.h"
#include "lib/spec.h"
#include "text/yaml_table.h"
#include "support/suite.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <gacc/v1/common.pb-c.h>

static Gacc__V1__JobSpec *parse(const char *text)
{
	Gacc__V1__JobSpec *m = NULL;
	char why[512] = "";
	enum status st = spec_parse(text, strlen(text), "job.yaml", &m, why, sizeof(why));

	ck_assert_msg(st == ST_OK, "%s\n%s", why, text);
	return m;
}

static const char *const files[] = {
	"{}",
	"spec: { optimizer: { type: client }, gradient_dtype: bf16, master: none, tensors: [ { name: w, shape: [784, "
	"10] }, "
	"{ name: tied, dtype: bf16, shape: [784, 10], alias_of: w }, { name: scalar } ] }",
	"metadata: { name: 'a: b', labels: { team: vision, '1': '' } }\n"
	"spec: { ranks: 4, micro_size: 8, max_micro_size: 128, steps: 177, batch: 32, reduction: fixed_divisor, "
	"fixed_divisor: 1000.1, grad_of: sum, uneven: drop, accumulate_dtype: f64, clip_norm: 0.1, clip_value: 0.5, "
	"nonfinite: reject_micro, loss_scale: 1024, seed: 18446744073709551615, deterministic: false, slots_per_rank: "
	"1, "
	"optimizer: { type: sgd, lr: 0, momentum: 0.9, nesterov: true }, host_memory: 1.5GiB, "
	"timeouts: { stall_warn: 1500ms, stall_abort: 1h, abandoned: 90s }, output: { log_dir: /var/log/gacc/%j-%x } }",
	"spec: { optimizer: { type: adam, betas: [0.8, 0.99], eps: 1e-7 }, schedule: { type: step, warmup_steps: 3, "
	"warmup_start_factor: 0, step_size: 10 }, init: [ { pattern: '*.b', type: zeros }, { pattern: '*', type: "
	"normal, a: -1, "
	"b: 0.02 } ], param_groups: [ { pattern: '*.bias', weight_decay: 0 }, { pattern: 'emb*', lr_scale: 0.1, "
	"frozen: true }, { tensors: [head, 'w[0]'], lr_scale: 2 } ], dynamic_loss_scale: { enabled: true, "
	"growth_factor: 4, hysteresis: 2 }, outlier_skip: { "
	"factor: 5 } }",
	("spec: { optimizer: { type: adamw, weight_decay: 0 }, launch: { mode: daemon, command: [sh, -c, 'a \"b\"'], "
	 "working_dir: /tmp, environment: { A: '1', B: '' }, max_restarts: 2, grace: 250ms, no_torch_env: true } }"),
};

START_TEST(a_file_made_from_a_job_gives_the_same_job)
{
	uint8_t one[4096], two[4096];
	Gacc__V1__JobSpec *m = parse(files[_i]), *again;
	char *text = spec_text(m);
	size_t n = gacc__v1__job_spec__pack(m, one);

	again = parse(text);
	ck_assert_uint_lt(n, sizeof(one));
	ck_assert_msg(gacc__v1__job_spec__pack(again, two) == n && !memcmp(one, two, n), "not the same:\n%s", text);
	free(text);
	spec_free(m);
	spec_free(again);
}
END_TEST

/* ---- a checkpoint's manifest ---- */

static gacc_status of_manifest(const char *packed, const char *format, gacc_spec **out, char *why, size_t n)
{
	char text[4096];

	snprintf(text, sizeof(text), "{\"format\": \"%s\", \"version\": 1, \"spec\": \"%s\"}", format, packed);
	return gacc_spec_of_manifest(text, "m.json", out, why, n);
}

START_TEST(a_manifest_gives_the_saved_job_without_its_tensors)
{
	static const char *const packed[] = { "CgFhEAMYAg==", "CgJhYhADGAI=", "CgNhYmMQAxgC",
					      /* a, ab, abc of 3 ranks; abc with tensor w[2][3] */
					      "CgNhYmMQAxgC6gEHCgF3GgICAw==" };
	static const char *const names[] = { "a", "ab", "abc", "abc" };
	char why[256] = "";
	gacc_spec *spec = NULL;

	ck_assert_msg(of_manifest(packed[_i], "gacc checkpoint", &spec, why, sizeof(why)) == GACC_OK, "%s", why);
	ck_assert_uint_eq(spec_message(spec)->n_tensors, 0);
	ck_assert_uint_eq(spec_message(spec)->ranks, 3);
	ck_assert_uint_eq(spec_message(spec)->micro_size, 2);
	ck_assert_str_eq(spec_message(spec)->name, names[_i]);
	gacc_spec_free(spec);
}
END_TEST

START_TEST(what_is_no_manifest_is_refused)
{
	static const struct {
		const char *packed, *format, *says;
	} rows[] = {
		{ "CAMQAg==", "other", "m.json: not the manifest" }, { "", "gacc checkpoint", "\"spec\" is missing" },
		{ "CAMQAg=", "gacc checkpoint", "\"spec\"" },	     { "CAM-Ag==", "gacc checkpoint", "\"spec\"" },
		{ "====", "gacc checkpoint", "\"spec\"" },	     { "CA==Ag==", "gacc checkpoint", "\"spec\"" },
		{ "/////w==", "gacc checkpoint", "\"spec\"" },	     { "\"", "gacc checkpoint", "m.json:1:" },
	};
	char why[256] = "";
	gacc_spec *spec = NULL;

	ck_assert_int_eq(of_manifest(rows[_i].packed, rows[_i].format, &spec, why, sizeof(why)), GACC_EINVAL);
	ck_assert_msg(strstr(why, rows[_i].says) && !spec, "%s", why);
}
END_TEST

/* ---- the schema ---- */

static const json_t *at(const json_t *schema, const char *const *path)
{
	for (; *path; path++)
		schema = json_object_get(json_object_get(schema, "properties"), *path);
	return schema;
}

#define AT(...) at(schema, (const char *const[]){ __VA_ARGS__, NULL })
#define TEXT(o, key) json_string_value(json_object_get(o, key))

static void same_keys(const struct yaml_field *table, const json_t *schema)
{
	size_t n = 0;

	for (const struct yaml_field *f = table; f->name; f++, n++) {
		const json_t *o = json_object_get(json_object_get(schema, "properties"), f->name);

		ck_assert_msg(o != NULL, "no %s", f->name);
		ck_assert_str_eq(TEXT(o, "description"), f->doc);
		if (f->type == YAML_SECTION)
			same_keys(f->fields, o);
		if (f->type == YAML_LIST)
			same_keys(f->fields, json_object_get(o, "items"));
	}
	ck_assert_uint_eq(json_object_size(json_object_get(schema, "properties")), n);
	ck_assert(json_is_false(json_object_get(schema, "additionalProperties")));
}

START_TEST(the_schema_has_every_key_and_no_other)
{
	char *text = gacc_spec_schema();
	json_t *schema = json_loads(text, 0, NULL);

	same_keys(spec_table(), schema);
	json_decref(schema);
	free(text);
}
END_TEST

START_TEST(the_schema_knows_types_ranges_and_defaults)
{
	char *text = gacc_spec_schema();
	json_t *schema = json_loads(text, 0, NULL);
	const json_t *ranks = AT("spec", "ranks"), *betas = AT("spec", "optimizer", "betas");

	ck_assert_str_eq(TEXT(ranks, "type"), "integer");
	ck_assert_int_eq(json_integer_value(json_object_get(ranks, "minimum")), 1);
	ck_assert_int_eq(json_integer_value(json_object_get(ranks, "maximum")), 65536);
	ck_assert_int_eq(json_integer_value(json_object_get(ranks, "default")), 1);
	ck_assert_int_eq(json_integer_value(json_object_get(betas, "minItems")), 2);
	ck_assert_ptr_null(json_object_get(AT("spec", "optimizer", "lr"), "default"));
	ck_assert_ptr_null(json_object_get(AT("spec", "optimizer", "lr"), "maximum"));
	ck_assert_str_eq(TEXT(AT("spec", "reduction"), "default"), "weighted_mean");
	ck_assert_uint_eq(json_array_size(json_object_get(AT("spec", "reduction"), "enum")), 4);
	ck_assert(json_is_true(json_array_get(json_object_get(AT("spec", "deterministic"), "enum"), 0)));
	ck_assert_str_eq(TEXT(AT("spec", "gradient_accumulation_steps"), "type"), "integer");
	ck_assert_uint_eq(json_array_size(json_object_get(AT("spec", "timeouts", "stall_warn"), "anyOf")), 2);
	json_decref(schema);
	free(text);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("spec_text");
	TCase *tc = tcase_create("all");

	tcase_add_loop_test(tc, a_file_made_from_a_job_gives_the_same_job, 0, sizeof(files) / sizeof(*files));
	tcase_add_loop_test(tc, a_manifest_gives_the_saved_job_without_its_tensors, 0, 4);
	tcase_add_loop_test(tc, what_is_no_manifest_is_refused, 0, 8);
	tcase_add_test(tc, the_schema_has_every_key_and_no_other);
	tcase_add_test(tc, the_schema_knows_types_ranges_and_defaults);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as JSON, and jobs as the public struct. */
#include "gacc/v1/job.pb-c.h"
#include "lib/job_info.h"
#include "lib/json.h"
#include "proto/bytes.h"
#include "support/suite.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *as_json(const ProtobufCMessage *m)
{
	char *text = json_of(m);
	json_t *j;

	ck_assert_ptr_nonnull(text);
	ck_assert_ptr_null(strchr(text, '\n'));
	j = json_loads(text, 0, NULL);
	ck_assert_ptr_nonnull(j);
	free(text);
	return j;
}

START_TEST(every_kind_of_field)
{
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	Gacc__V1__StepResult last = GACC__V1__STEP_RESULT__INIT;
	uint32_t missing[] = { 1, 3 };
	json_t *j, *l;

	job.id = UINT64_C(9007199254740993); /* not a double */
	job.state = GACC__V1__JOB_STATE__JOB_STATE_NODE_FAIL;
	job.created_unix_nanos = INT64_C(1763674548123456789);
	job.missing_ranks = missing;
	job.n_missing_ranks = 2;
	job.wait_fraction = NAN;
	last.params_digest = UINT64_C(0xfedcba9876543210);
	last.grad_norm = 0.5;
	job.last = &last;
	j = as_json(&job.base);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "id")), INT64_C(9007199254740993));
	ck_assert_str_eq(json_string_value(json_object_get(j, "state")), "NODE_FAIL");
	ck_assert_str_eq(json_string_value(json_object_get(j, "created_time")), "2025-11-20T21:35:48.123456789Z");
	ck_assert(json_is_null(json_object_get(j, "ended_time")));
	ck_assert_ptr_null(json_object_get(j, "created_unix_nanos"));
	ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(j, "missing_ranks"), 1)), 3);
	ck_assert(json_is_null(json_object_get(j, "wait_fraction")));
	ck_assert(json_is_null(json_object_get(j, "spec")));
	ck_assert(json_is_array(json_object_get(j, "ranks")));
	l = json_object_get(j, "last");
	ck_assert_str_eq(json_string_value(json_object_get(l, "params_digest")), "fedcba9876543210");
	ck_assert_double_eq(json_real_value(json_object_get(l, "grad_norm")), 0.5);
	json_decref(j);
}
END_TEST

START_TEST(the_upper_half_of_64_bits)
{
	Gacc__V1__MicroBatch m = GACC__V1__MICRO_BATCH__INIT;
	Gacc__V1__JobSpec s = GACC__V1__JOB_SPEC__INIT;
	json_t *j;

	m.data_key = UINT64_C(0xfedcba9876543210);
	m.lag_ns = -1;
	j = as_json(&m.base);
	ck_assert_str_eq(json_string_value(json_object_get(j, "data_key")), "fedcba9876543210");
	ck_assert_int_eq(json_integer_value(json_object_get(j, "lag_ns")), -1);
	json_decref(j);
	s.seed = UINT64_MAX;
	j = as_json(&s.base);
	ck_assert_str_eq(json_string_value(json_object_get(j, "seed")), "18446744073709551615");
	json_decref(j);
	s.seed = INT64_MAX;
	j = as_json(&s.base);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "seed")), INT64_MAX);
	json_decref(j);
}
END_TEST
START_TEST(an_event_has_a_time)
{
	Gacc__V1__Event e = GACC__V1__EVENT__INIT;
	json_t *j;

	e.unix_nanos = 1;
	j = as_json(&e.base);
	ck_assert_str_eq(json_string_value(json_object_get(j, "time")), "1970-01-01T00:00:00.000000001Z");
	ck_assert(json_is_false(json_object_get(j, "warning")));
	json_decref(j);
}
END_TEST

START_TEST(bytes_and_times)
{
	Gacc__V1__SubmitRequest r = GACC__V1__SUBMIT_REQUEST__INIT;
	uint8_t id[] = { 0, 0xff, 0x10 };
	char text[40];
	json_t *j;

	r.request_id.data = id;
	r.request_id.len = sizeof(id);
	j = as_json(&r.base);
	ck_assert_str_eq(json_string_value(json_object_get(j, "request_id")), "00ff10");
	json_decref(j);
	rfc3339(-1, text, sizeof(text));
	ck_assert_str_eq(text, "1969-12-31T23:59:59.999999999Z");
}
END_TEST

static gacc_jobs *as_jobs(const Gacc__V1__Job *job)
{
	Gacc__V1__GetResponse r = GACC__V1__GET_RESPONSE__INIT;
	struct ProtobufCMessage *copy;
	uint8_t packed[4096];
	size_t n;

	r.job = (Gacc__V1__Job *)(uintptr_t)job;
	n = gacc__v1__get_response__pack(&r, packed);
	ck_assert_int_eq(bytes_decode(&gacc__v1__get_response__descriptor, packed, n, &copy), ST_OK);
	return jobs_new(copy, &((Gacc__V1__GetResponse *)copy)->job, 1);
}

START_TEST(a_job_as_struct)
{
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	Gacc__V1__JobSpec spec = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__RankStatus rank = GACC__V1__RANK_STATUS__INIT, *ranks[] = { &rank };
	Gacc__V1__Event event = GACC__V1__EVENT__INIT, *events[] = { &event };
	const gacc_job_info *info;
	gacc_jobs *jobs;

	spec.name = (char[]){ "mlp" };
	spec.log_dir = (char[]){ "/logs/%j-%x/100%%%q" };
	spec.micro_size = 8;
	job.spec = &spec;
	job.id = 42;
	job.state = GACC__V1__JOB_STATE__JOB_STATE_CANCELLED;
	rank.rank = 3;
	rank.state = GACC__V1__RANK_STATE__RANK_STATE_LATE;
	job.ranks = ranks;
	job.n_ranks = 1;
	event.message = (char[]){ "hello" };
	job.events = events;
	job.n_events = 1;
	jobs = as_jobs(&job);
	ck_assert_ptr_nonnull(jobs);
	info = &jobs->job[0];
	ck_assert_str_eq(info->log_dir, "/logs/42-mlp/100%%q");
	ck_assert_str_eq(info->state_name, "CANCELLED");
	ck_assert_int_eq(info->state, GACC_JOB_CANCELLED);
	ck_assert(info->ended && !info->has_last);
	ck_assert_uint_eq(info->micro_size, 8); /* the spec's, as no window is open */
	ck_assert(info->n_rank == 1 && info->rank[0].rank == 3);
	ck_assert_str_eq(info->rank[0].state, "LATE");
	ck_assert_str_eq(info->event[0].message, "hello");
	ck_assert_ptr_nonnull(strstr(info->json, "\"id\":42"));
	gacc_jobs_free(jobs);
}
END_TEST

START_TEST(an_empty_job_has_no_null)
{
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	gacc_jobs *jobs = as_jobs(&job);
	const gacc_job_info *i = &jobs->job[0];

	ck_assert_str_eq(i->name, "");
	ck_assert_str_eq(i->log_dir, "");
	ck_assert_str_eq(i->uuid, "");
	ck_assert_str_eq(i->user, "");
	ck_assert_str_eq(i->reason, "");
	ck_assert_str_eq(i->optimizer, "");
	ck_assert_str_eq(i->reduction, "");
	ck_assert_str_eq(i->last_outcome, "");
	ck_assert_str_eq(i->state_name, "UNSPECIFIED");
	ck_assert(!i->ended);
	gacc_jobs_free(jobs);
	gacc_jobs_free(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client json");
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, every_kind_of_field);
	tcase_add_test(tc, the_upper_half_of_64_bits);
	tcase_add_test(tc, an_event_has_a_time);
	tcase_add_test(tc, bytes_and_times);
	tcase_add_test(tc, a_job_as_struct);
	tcase_add_test(tc, an_empty_job_has_no_null);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}

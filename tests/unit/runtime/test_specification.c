/* SPDX-License-Identifier: Apache-2.0 */
/* Specifications on their way to be jobs (prepared.h), and as jobs hold them (specification.h). */
#include "runtime/specification.h"

#include "proto/bytes.h"
#include "runtime/prepared.h"
#include "support/small_job.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define LARGE (16u << 10) /* bytes: from here on the packed message is kept */

static struct small_job small;
static Gacc__V1__JobSpec *const spec = &small.spec;
static Gacc__V1__ParamGroup group, *groups[] = { &group };
static Gacc__V1__Label label, *labels[] = { &label };
static char name[] = "held", pattern[] = "w*", text[1 << 17];

static void setup(void)
{
	small_job(&small);
	small_job_add(&small, "weight", 4, 6);
	gacc__v1__param_group__init(&group);
	gacc__v1__label__init(&label);
	group.pattern = pattern;
	group.lr_scale = 2;
	spec->name = name;
	spec->ranks = 3;
	spec->n_init = 0;
	spec->param_groups = groups;
	spec->n_param_groups = 1;
}

/* A label makes the packed message so long. */
static void make_as_long_as(size_t n)
{
	label.value = text;
	spec->labels = labels;
	spec->n_labels = 1;
	memset(text, 'x', sizeof(text));
	size_t length = n;
	for (text[length] = '\0'; gacc__v1__job_spec__get_packed_size(spec) > n; text[--length] = '\0')
		;
	ck_assert_uint_eq(gacc__v1__job_spec__get_packed_size(spec), n);
}

/* ---- prepared ---- */

START_TEST(a_message_is_prepared)
{
	uint8_t sum[16];
	struct prepared *p = prepared_new(spec);
	ck_assert_int_eq(p->status, ST_OK);
	ck_assert_uint_eq(p->n, gacc__v1__job_spec__get_packed_size(spec));
	spec_message_sum(p->bytes, p->n, sum);
	ck_assert_mem_eq(p->sum, sum, 16);
	ck_assert_str_eq(p->pb->name, name);
	ck_assert_ptr_ne(p->pb, spec);
	ck_assert_uint_eq(p->spec.ranks, 3);
	ck_assert_uint_eq(p->spec.n_groups, 1);
	ck_assert_uint_eq(p->set.n, 1);
	ck_assert(p->set.matched);
	ck_assert_uint_eq(p->set.arena.n_parameters, 24);
	prepared_free(p);
	prepared_free(NULL);
}
END_TEST

START_TEST(without_tensors_there_is_no_set)
{
	spec->n_tensors = 0;
	struct prepared *p = prepared_new(spec);
	ck_assert_int_eq(p->status, ST_OK);
	ck_assert_uint_eq(p->set.n, 0);
	prepared_free(p);
}
END_TEST

START_TEST(what_is_wrong_is_said)
{
	struct prepared *p;
	spec->ranks = 0;
	p = prepared_new(spec);
	ck_assert_int_eq(p->status, ST_INVALID_SPEC);
	ck_assert_str_eq(p->field, "ranks");
	ck_assert_ptr_nonnull(strstr(p->why, "ranks is 0"));
	prepared_free(p);
	setup();
	small.shape[0][1] = 0;
	p = prepared_new(spec);
	small.shape[0][1] = 6;
	ck_assert_int_eq(p->status, ST_INVALID_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(p->why, "weight"));
	prepared_free(p);
	setup();
	spec->init = (Gacc__V1__InitRule *[]){ &(Gacc__V1__InitRule)GACC__V1__INIT_RULE__INIT };
	spec->init[0]->type = GACC__V1__INIT_TYPE__INIT_TYPE_ONES;
	spec->init[0]->pattern = pattern + 1; /* "*" */
	spec->n_init = 1;
	p = prepared_new(spec);
	ck_assert_int_eq(p->status, ST_OK);
	prepared_free(p);
	spec->init[0]->pattern = name; /* no rule is left for the tensor */
	p = prepared_new(spec);
	ck_assert_int_eq(p->status, ST_INVALID_SPEC);
	ck_assert_ptr_nonnull(strstr(p->why, "weight"));
	prepared_free(p);
}
END_TEST

START_TEST(the_journals_bytes_are_prepared_without_the_set)
{
	size_t n;
	void *bytes = bytes_pack(&spec->base, &n);
	struct prepared *p = prepared_from_journal(bytes, n);
	ck_assert_int_eq(p->status, ST_OK);
	ck_assert_uint_eq(p->n, n);
	ck_assert_mem_eq(p->bytes, bytes, n);
	ck_assert_ptr_ne(p->bytes, bytes);
	ck_assert_uint_eq(p->spec.ranks, 3);
	ck_assert_uint_eq(p->set.n, 0);
	prepared_free(p);
	for (size_t cut = 1; cut < n; cut++) { /* a shorter message may be one; no cut is read beyond its end */
		p = prepared_from_journal(bytes, cut);
		ck_assert(p->status == ST_OK || p->status == ST_MALFORMED || p->status == ST_INVALID_SPEC);
		prepared_free(p);
	}
	p = prepared_from_journal("\xff\xff", 2);
	ck_assert_int_eq(p->status, ST_MALFORMED);
	prepared_free(p);
	p = prepared_from_journal("", 0);
	ck_assert_int_eq(p->status, ST_INVALID_SPEC);
	prepared_free(p);
	free(bytes);
}
END_TEST

/* ---- held ---- */

static struct specification *hold(struct prepared **out_prepared)
{
	*out_prepared = prepared_new(spec);
	ck_assert_int_eq((*out_prepared)->status, ST_OK);
	return specification_new(*out_prepared);
}

START_TEST(it_takes_message_and_values)
{
	struct prepared *p;
	struct specification *s = hold(&p);
	ck_assert_uint_eq(s->holders, 1);
	ck_assert_ptr_null(p->pb);
	ck_assert_ptr_null(p->spec.group);
	ck_assert_uint_eq(p->set.n, 1); /* not its */
	ck_assert_mem_eq(s->sum, p->sum, 16);
	prepared_free(p);
	ck_assert_str_eq(s->pb->name, name);
	ck_assert_str_eq(s->spec.group[0].pattern, pattern);
	ck_assert_ptr_eq(specification_hold(s), s);
	ck_assert_uint_eq(s->holders, 2);
	specification_drop(s);
	ck_assert_uint_eq(s->holders, 1);
	ck_assert_str_eq(s->spec.group[0].pattern, pattern);
	specification_drop(s);
	specification_drop(NULL);
}
END_TEST

START_TEST(one_of_a_job_that_is_over)
{
	struct specification *s = specification_new(NULL);
	ck_assert_uint_eq(s->holders, 1);
	ck_assert_ptr_null(s->pb);
	ck_assert_ptr_null(s->field);
	s->spec.ranks = 5;
	ck_assert_ptr_null(specification_strip(s));
	ck_assert_uint_eq(s->spec.ranks, 5);
	specification_drop(s);
}
END_TEST

/* Just too small, just large enough, lengths of two and of three bytes. */
START_TEST(it_is_packed_as_it_came)
{
	static const size_t length[] = { 0, LARGE - 1, LARGE, LARGE + 1, 100000 };
	struct prepared *p;
	size_t n;
	if (length[_i])
		make_as_long_as(length[_i]);
	struct specification *s = hold(&p);
	uint8_t *bytes = specification_pack(s, &n);
	ck_assert_uint_eq(n, p->n);
	ck_assert_mem_eq(bytes, p->bytes, n);
	ck_assert_int_eq(s->field != NULL, length[_i] >= LARGE);
	if (s->field) { /* as protobuf writes the length of a field */
		uint64_t told = 0;
		for (size_t i = 0; i < s->at; i++)
			told |= (uint64_t)(s->field[i] & 0x7f) << 7 * i;
		ck_assert_uint_eq(told, n);
		ck_assert_uint_eq(s->at, 3); /* 2^14 and more */
		ck_assert(s->field[0] & 0x80 && s->field[1] & 0x80 && !(s->field[2] & 0x80));
		ck_assert_uint_eq(s->n_field, s->at + n);
		ck_assert_mem_eq(s->field + s->at, bytes, n);
	}
	free(bytes);
	prepared_free(p);
	specification_drop(s);
}
END_TEST

START_TEST(the_plain_values_stay)
{
	struct prepared *p;
	make_as_long_as(LARGE);
	struct specification *s = hold(&p);
	prepared_free(p);
	Gacc__V1__JobSpec *pb = specification_strip(s);
	ck_assert_str_eq(pb->name, name);
	gacc__v1__job_spec__free_unpacked(pb, NULL);
	ck_assert_ptr_null(s->pb);
	ck_assert_ptr_null(s->field);
	ck_assert_uint_eq(s->n_field + s->at, 0);
	ck_assert_ptr_null(s->spec.group);
	ck_assert_uint_eq(s->spec.n_groups, 0);
	ck_assert_str_eq(s->spec.name, name);
	ck_assert_uint_eq(s->spec.ranks, 3);
	ck_assert_double_eq(s->spec.optim.lr, 0.5);
	specification_drop(s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("specification");
	TCase *t = tcase_create("specification");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, a_message_is_prepared);
	tcase_add_test(t, without_tensors_there_is_no_set);
	tcase_add_test(t, what_is_wrong_is_said);
	tcase_add_test(t, the_journals_bytes_are_prepared_without_the_set);
	tcase_add_test(t, it_takes_message_and_values);
	tcase_add_test(t, one_of_a_job_that_is_over);
	tcase_add_loop_test(t, it_is_packed_as_it_came, 0, 5);
	tcase_add_test(t, the_plain_values_stay);
	return suite_run(s);
}

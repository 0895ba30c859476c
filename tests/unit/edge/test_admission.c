/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a job of several parts may have what all of them need. The limits are small, and no part takes memory: what
 * one would have is written into it. */
#include "edge_rig.h"

#include "edge/hosted_life.h"
#include "edge/hosted_queue.h"
#include "edge/part_ports.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>

Suite *admission_suite(void);

enum { DIVIDED = 7, WHOLE = 8, PARTS = 3, WORLD = 5 }; /* parts of one, two and two ranks */

static struct hosted *job, *whole;
static char why[400];

static void with_three_parts(Gacc__V1__JobSpec *spec)
{
	spec->ranks = WORLD;
	spec->parts = PARTS;
}

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	with_three_parts(spec);
	spec->n_tensors = 0;
}

static void five_ranks(Gacc__V1__JobSpec *spec)
{
	spec->ranks = WORLD;
}

static void setup(void)
{
	rig_open();
	job = rig_job(DIVIDED, 1000, "ana", with_three_parts);
	whole = rig_job(WHOLE, 1001, "bob", five_ranks);
	why[0] = '\0';
}

static uint64_t need_of(uint32_t i)
{
	struct part *p = hosted_part_here(job, i);
	uint64_t need;
	ck_assert_int_eq(part_need(&d.node, p->spec, job_arena(p->job), &need), ST_OK);
	return need;
}

/* As part_allocate asks: the part's bytes count already. */
static enum status fits(uint32_t i)
{
	struct part *p = hosted_part_here(job, i);
	p->mem.allocating = true;
	p->mem.bytes = need_of(i);
	enum status st = p->ports.fits(p, p->mem.bytes, why, sizeof(why));
	p->mem.allocating = false;
	p->mem.bytes = st ? 0 : p->mem.bytes;
	return st;
}

static enum status admit(struct hosted *h)
{
	return hosted_queue_admit(h, why, sizeof(why));
}

static void place_all(void)
{
	for (uint32_t i = 0; i < PARTS; i++)
		rig_part_of(job, i);
}

static void forget_memory(void)
{
	for (uint32_t i = 0; i < PARTS; i++)
		hosted_part_here(job, i)->mem.bytes = 0;
}

START_TEST(it_needs_what_all_its_parts_need)
{
	place_all();
	const uint64_t need = need_of(0) + need_of(1) + need_of(2);
	ck_assert_uint_lt(need_of(0), need_of(1));
	ck_assert_uint_eq(job->place.need, need);
	ck_assert_uint_lt(whole->place.need, need);
	conf->limits.host_memory = need - 1;
	ck_assert_int_eq(admit(job), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "can never run here") != NULL, "%s", why);
	conf->limits.host_memory = need;
	ck_assert_int_eq(admit(job), ST_OK);
	ck_assert_uint_eq(job->admission.need, need);
	ck_assert_uint_eq(job->admission.reserved, need);
}
END_TEST

/* Each has segments, among them two slots more than its ranks need, an engine and a plan; ranks connect once. */
START_TEST(its_descriptors_are_those_of_all_parts)
{
	ck_assert_int_eq(admit(job), ST_OK);
	ck_assert_int_eq(admit(whole), ST_OK);
	ck_assert_uint_eq(job->admission.stored, whole->admission.stored + (PARTS - 1) * (8 + 2));
	ck_assert_uint_eq(job->admission.descriptors, whole->admission.descriptors + (PARTS - 1) * (8 + 2 + 3));
}
END_TEST

/* One whose memory is not there yet has it set aside. */
START_TEST(its_reservation_stays_until_all_have_memory)
{
	place_all();
	ck_assert_int_eq(admit(job), ST_OK);
	conf->limits.host_memory = job->place.need + whole->place.need - 1;
	ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
	for (uint32_t i = 0; i < PARTS; i++) {
		ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
		hosted_part_here(job, i)->mem.bytes = 1000; /* less than was set aside */
	}
	ck_assert_int_eq(admit(whole), ST_OK); /* what they have counts */
	hosted_part_here(job, 2)->mem.bytes = job->place.need - 2000;
	ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
	conf->limits.host_memory++;
	ck_assert_int_eq(admit(whole), ST_OK);
	hosted_part_here(job, 2)->mem.bytes++;
	ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
	forget_memory();
}
END_TEST

/* The first that asks hears that the others would not fit. */
START_TEST(one_part_does_not_fit_alone)
{
	place_all();
	for (uint32_t i = 0; i < PARTS; i++) {
		conf->limits.host_memory = job->place.need - 1;
		ck_assert_int_eq(fits(i), ST_RESOURCE_EXHAUSTED);
		conf->limits.host_memory = job->place.need;
		ck_assert_msg(fits(i) == ST_OK, "%s", why);
	}
	forget_memory();
}
END_TEST

/* Its tensors become known when its ranks register them: then it is known how much all parts need. */
START_TEST(what_the_others_need_is_set_aside)
{
	const struct tensor_spec w = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { RIG_ELEMENTS } };
	const uint64_t need = job->place.need;
	job = rig_job(WHOLE + 1, 1000, "ana", without_tensors);
	place_all();
	ck_assert_int_eq(admit(job), ST_OK);
	ck_assert_uint_eq(job->admission.reserved, 0);
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert_int_eq(job_set_tensors(hosted_part_here(job, i)->job, &w, 1, why, sizeof(why)), ST_OK);
	conf->limits.host_memory = need + whole->place.need - 1;
	ck_assert_msg(fits(1) == ST_OK, "%s", why);
	ck_assert_uint_eq(job->admission.reserved, need);
	ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
	conf->limits.host_memory++;
	ck_assert_int_eq(admit(whole), ST_OK);
	ck_assert_int_eq(fits(0), ST_OK); /* its share is there, although there is no more */
	ck_assert_int_eq(fits(2), ST_OK);
	forget_memory();
}
END_TEST

/* What is over has only what it has not given back. */
START_TEST(a_part_that_remains_counts_alone)
{
	place_all();
	ck_assert_int_eq(admit(job), ST_OK);
	conf->limits.host_memory = job->place.need + whole->place.need - 1;
	hosted_part_here(job, 1)->mem.bytes = need_of(1);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	rig_run();
	ck_assert(hosted_ended(job));
	ck_assert_int_eq(admit(whole), ST_OK);
	conf->limits.host_memory = need_of(1) + whole->place.need - 1;
	ck_assert_int_eq(admit(whole), ST_RESOURCE_EXHAUSTED);
	forget_memory();
}
END_TEST

Suite *admission_suite(void)
{
	Suite *s = suite_create("admission");
	TCase *t = tcase_create("admission");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, rig_close);
	tcase_add_test(t, it_needs_what_all_its_parts_need);
	tcase_add_test(t, its_descriptors_are_those_of_all_parts);
	tcase_add_test(t, its_reservation_stays_until_all_have_memory);
	tcase_add_test(t, one_part_does_not_fit_alone);
	tcase_add_test(t, what_the_others_need_is_set_aside);
	tcase_add_test(t, a_part_that_remains_counts_alone);
	return s;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a part asks of the rest of gaccd: whether it may have memory, above all. The limits are small, so that a wrong
 * answer costs some KiB and not the machine. */
#include "edge_rig.h"

#include "cluster/event_message.h"
#include "edge/hosted_life.h"
#include "edge/part_ports.h"
#include "support/suite.h"

#include <check.h>
#include <string.h>

Suite *admission_suite(void);

#define MIB (UINT64_C(1) << 20)
enum { HERE = 7, OTHER = 8 };

static struct hosted *job;
static struct part *part;  /* of `job` */
static struct part *alone; /* of a job that is not coordinated here */
static char why[400];

static void setup(void)
{
	rig_open();
	conf->limits.host_memory = MIB;
	job = rig_job(HERE, 1000, "ana", NULL);
	part = rig_part(job);
	const struct part_origin o = {
		.job = 99, .epoch = 1, .n_parts = 1, .uid = 1000, .user = "ana", .text = job->text
	};
	ck_assert_int_eq(part_new(&d.node, &o, part_ports(), &alone), ST_OK);
	why[0] = '\0';
}

static void teardown(void)
{
	part_free(alone);
	rig_close();
}

static enum status fits(struct part *p, uint64_t bytes)
{
	return p->ports.fits(p, bytes, why, sizeof(why));
}

/* ---- memory ---- */

START_TEST(a_part_may_have_what_the_limit_allows)
{
	ck_assert_int_eq(fits(part, MIB), ST_OK);
	ck_assert_str_eq(why, "");
	ck_assert_int_eq(fits(part, MIB + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "limits.host_memory is 1.0 MiB") != NULL, "%s", why);
}
END_TEST

START_TEST(a_part_may_have_what_its_user_may)
{
	conf->limits.host_memory_per_user = MIB / 2;
	ck_assert_int_eq(fits(part, MIB / 2), ST_OK);
	ck_assert_int_eq(fits(part, MIB / 2 + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "limits.host_memory_per_user is 512.0 KiB") != NULL, "%s", why);
}
END_TEST

/* What is set aside for others counts, what is for itself does not. */
START_TEST(a_part_may_have_what_others_leave)
{
	struct hosted *other = rig_job(OTHER, 1001, "bob", NULL);
	other->admission.reserved = MIB * 3 / 4;
	job->admission.reserved = MIB / 4;
	ck_assert_int_eq(fits(part, MIB / 4), ST_OK);
	ck_assert_int_eq(fits(part, MIB / 4 + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "256.0 KiB of limits.host_memory (1.0 MiB) are free; in use: bob 768.0 KiB") != NULL,
		      "%s", why);
	hosted_drop_machines(other); /* it is over */
	other->admission.reserved = 0;
	ck_assert_int_eq(fits(part, MIB), ST_OK);
}
END_TEST

/* Whoever coordinates its job: the limits are this node's. */
START_TEST(a_part_of_elsewhere_may_have_the_same)
{
	ck_assert_int_eq(fits(alone, MIB), ST_OK);
	ck_assert_int_eq(fits(alone, MIB + 1), ST_RESOURCE_EXHAUSTED);
	job->admission.reserved = MIB / 2;
	ck_assert_int_eq(fits(alone, MIB / 2), ST_OK);
	ck_assert_int_eq(fits(alone, MIB / 2 + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_int_eq(part_publish(alone), ST_OK);
	alone->mem.bytes = MIB / 4; /* and what it has counts for others */
	job->admission.reserved = 0;
	ck_assert_int_eq(fits(part, MIB - MIB / 4), ST_OK);
	ck_assert_int_eq(fits(part, MIB - MIB / 4 + 1), ST_RESOURCE_EXHAUSTED);
	alone->mem.bytes = 0;
}
END_TEST

/* The limits are this machine's: what a job has of another one does not count here. */
START_TEST(what_a_job_has_elsewhere_is_not_here)
{
	struct hosted *other = rig_job(OTHER, 1001, "bob", NULL);
	const struct part_view v = {
		.job_id = OTHER, .epoch = 1, .incarnation = 1, .number = 1, .bytes = MIB, .allocating = true
	};
	size_t n;
	void *bytes = part_view_pack(&v, &n);
	links_send(&d, LINK_VIEW, OTHER, 0, bytes, n);
	rig_run();
	ck_assert_uint_eq(hosted_host_bytes(other), MIB);
	ck_assert_int_eq(fits(part, MIB), ST_OK);
	part->mem.bytes = MIB / 2; /* and what it has here counts before the coordinator has heard of it */
	ck_assert_uint_eq(hosted_host_bytes(job), 0);
	ck_assert_int_eq(fits(alone, MIB / 2), ST_OK);
	ck_assert_int_eq(fits(alone, MIB / 2 + 1), ST_RESOURCE_EXHAUSTED);
	part->mem.bytes = 0;
}
END_TEST

/* As it comes to pass: the tensors are known, and there is no room for them. */
START_TEST(a_job_without_room_takes_no_memory)
{
	uint64_t need;
	ck_assert_int_eq(part_need(&d.node, part->spec, job_arena(part->job), &need), ST_OK);
	ck_assert_uint_lt(need, MIB);
	conf->limits.host_memory = need - 1;
	ck_assert(job_has_tensors(part->job));
	job_allocate(part->job);
	ck_assert(!part->mem.allocating);
	ck_assert_int_eq(part->mem.n, 0);
	ck_assert_uint_eq(d.node.host_bytes, 0);
	rig_run();
	const struct event *e = events_at(&job->events, job->events.n - 1);
	ck_assert_str_eq(e->reason, "AllocationFailed");
	ck_assert_msg(strstr(e->message, "can never run here: limits.host_memory is ") != NULL, "%s", e->message);
	rig_run();
	ck_assert(!hosted_ended(job)); /* whoever registered has heard it, and may try again */
}
END_TEST

/* ---- what is shown ---- */

START_TEST(events_of_a_part_are_its_jobs)
{
	const uint64_t n = job->events.n;
	job->changed = false;
	alone->ports.event(alone, true, "Elsewhere", 1, "not ours");
	part->ports.event(part, true, "Lost", 1, "its process is gone");
	ck_assert_uint_eq(job->events.n, n); /* they are on their way */
	rig_run();
	ck_assert_uint_eq(job->events.n, n + 1);
	const struct event *e = events_at(&job->events, n);
	ck_assert_str_eq(e->reason, "Lost");
	ck_assert_str_eq(e->object, "rank 1");
	ck_assert_str_eq(e->message, "its process is gone");
	ck_assert(e->warning);
	ck_assert(job->changed);
	part->ports.event(part, false, "Over", -1, "and out");
	rig_run();
	ck_assert_str_eq(events_at(&job->events, n + 1)->object, "job");
	ck_assert(!events_at(&job->events, n + 1)->warning);
}
END_TEST

/* Which may be ahead of the coordinator's. */
START_TEST(an_event_is_of_the_window_of_its_part)
{
	const struct part_event e = { .job_id = HERE, .epoch = 1, .window = 44, .rank = 1, .reason = "Lost" };
	size_t n;
	void *bytes = event_pack(&e, &n);
	links_send(&d, LINK_EVENT, HERE, 0, bytes, n);
	rig_run();
	ck_assert_uint_eq(events_at(&job->events, job->events.n - 1)->window, 44);
}
END_TEST

/* A rank that the job does not have, an earlier epoch. */
START_TEST(wrong_events_are_dropped)
{
	const uint64_t n = job->events.n;
	struct part_event e = { .job_id = HERE, .epoch = 1, .rank = 2, .reason = "Lost" };
	for (int i = 0; i < 3; i++) {
		size_t size;
		void *bytes = event_pack(&e, &size);
		links_send(&d, LINK_EVENT, HERE, 0, bytes, size);
		e.rank = 1;
		e.epoch = i ? 1 : 2;
		e.job_id = i ? OTHER : HERE;
	}
	rig_run();
	ck_assert_uint_eq(job->events.n, n);
}
END_TEST

START_TEST(a_part_that_is_up_changes_what_is_shown)
{
	part->ports.placed(part, ST_OK, NULL); /* its first view is news, too */
	rig_run();
	job->changed = false;
	alone->ports.placed(alone, ST_OK, NULL);
	rig_run();
	ck_assert(!job->changed);
	part->ports.placed(part, ST_OK, NULL);
	rig_run();
	ck_assert(job->changed);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("part_ports");
	TCase *t = tcase_create("part_ports");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_part_may_have_what_the_limit_allows);
	tcase_add_test(t, a_part_may_have_what_its_user_may);
	tcase_add_test(t, a_part_may_have_what_others_leave);
	tcase_add_test(t, a_part_of_elsewhere_may_have_the_same);
	tcase_add_test(t, what_a_job_has_elsewhere_is_not_here);
	tcase_add_test(t, a_job_without_room_takes_no_memory);
	tcase_add_test(t, events_of_a_part_are_its_jobs);
	tcase_add_test(t, an_event_is_of_the_window_of_its_part);
	tcase_add_test(t, wrong_events_are_dropped);
	tcase_add_test(t, a_part_that_is_up_changes_what_is_shown);
	return suite_run(s, admission_suite());
}

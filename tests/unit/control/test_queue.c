/* SPDX-License-Identifier: Apache-2.0 */
#include "control/queue.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static struct queue_limits limits;
static struct queue_job job[64];
static size_t n_jobs;
static uint64_t last_id;

static void setup(void)
{
	limits = (struct queue_limits){ .host_memory = 10 * GIB,
					.available = UINT64_MAX,
					.jobs = 8,
					.jobs_per_user = 4,
					.mapped = 1000,
					.queued_per_user = 10 };
	n_jobs = 0;
	last_id = 0;
}

static struct queue_job make(uint32_t uid, uint64_t bytes, bool waiting)
{
	static const char *const names[] = { "root", "alice", "bob", "carol" };
	return (struct queue_job){
		.id = ++last_id, .uid = uid, .user = names[uid], .bytes = bytes, .waiting = waiting
	};
}

static uint64_t add(uint32_t uid, uint64_t bytes, bool waiting)
{
	job[n_jobs++] = make(uid, bytes, waiting);
	return last_id;
}

/* Id of the job that starts, 0: none. */
static uint64_t start(void)
{
	queue_judge(&limits, job, n_jobs);
	uint32_t i = queue_next(&limits, job, n_jobs);
	if (i == QUEUE_NONE)
		return 0;
	ck_assert(job[i].waiting);
	job[i].waiting = false;
	return job[i].id;
}

static void end(uint64_t id)
{
	for (size_t i = 0; i < n_jobs; i++)
		if (job[i].id == id) {
			memmove(&job[i], &job[i + 1], (--n_jobs - i) * sizeof(*job));
			return;
		}
	ck_abort_msg("no job %d", (int)id);
}

static const char *submit(uint32_t uid, uint64_t bytes, bool may_wait)
{
	static struct queue_verdict v;
	struct queue_job c = make(uid, bytes, true);
	queue_judge(&limits, job, n_jobs);
	queue_submit(&limits, job, n_jobs, &c, may_wait, &v);
	ck_assert_int_eq(v.status == ST_OK, !*v.why);
	ck_assert(v.status == ST_OK || v.status == ST_RESOURCE_EXHAUSTED);
	return v.why;
}

static const char *explain(uint64_t id, uint32_t *place)
{
	static char why[200];
	queue_judge(&limits, job, n_jobs);
	for (size_t i = 0; i < n_jobs; i++)
		if (job[i].id == id)
			*place = queue_explain(&limits, job, n_jobs, i, why, sizeof(why));
	return why;
}

/* ---- submission ---- */

START_TEST(what_can_never_fit_is_refused_in_any_mode)
{
	for (int may_wait = 0; may_wait < 2; may_wait++)
		ck_assert_str_eq(submit(1, 11 * GIB, may_wait),
				 "needs 11.0 GiB and can never run here: limits.host_memory is 10.0 GiB");
	limits.host_memory_per_user = 2 * GIB;
	ck_assert_str_eq(submit(1, 3 * GIB, true),
			 "needs 3.0 GiB and can never run here: limits.host_memory_per_user is 2.0 GiB");
	ck_assert_str_eq(submit(1, 2 * GIB, false), "");
}
END_TEST

START_TEST(what_may_not_wait_is_refused_with_the_numbers)
{
	add(1, 6 * GIB, false);
	add(2, 1 * GIB, false);
	add(1, 1 * GIB, false);
	ck_assert_str_eq(submit(2, 3 * GIB, false),
			 "needs 3.0 GiB, 2.0 GiB of limits.host_memory (10.0 GiB) are free; in use: "
			 "alice 7.0 GiB (2 jobs), bob 1.0 GiB (1 job)");
	ck_assert_str_eq(submit(2, 3 * GIB, true), "");
	ck_assert_str_eq(submit(2, 2 * GIB, false), "");
	limits.available = GIB / 2;
	ck_assert_str_eq(
		submit(2, 1 * GIB, false),
		"needs 1.0 GiB, 512.0 MiB are free (limits.host_memory is 10.0 GiB, but the machine has no more); in "
		"use: alice 7.0 GiB (2 jobs), bob 1.0 GiB (1 job)");
	limits.host_memory_per_user = 8 * GIB;
	limits.available = UINT64_MAX;
	ck_assert_str_eq(
		submit(1, 2 * GIB, false),
		"needs 2.0 GiB, 1.0 GiB of limits.host_memory_per_user (8.0 GiB) are free for alice; in use: alice "
		"7.0 GiB (2 jobs), bob 1.0 GiB (1 job)");
}
END_TEST

START_TEST(numbers_of_jobs_are_limited)
{
	for (int i = 0; i < 4; i++)
		add(1, 0, false);
	ck_assert_str_eq(submit(1, 0, false),
			 "alice has 4 jobs running, limits.jobs_per_user is 4; in use: alice 0 B (4 jobs)");
	ck_assert_str_eq(submit(2, 0, false), "");
	for (int i = 0; i < 4; i++)
		add(2, 0, false);
	ck_assert_str_eq(submit(3, 0, false),
			 "8 jobs are running, limits.jobs is 8; in use: alice 0 B (4 jobs), bob 0 B (4 jobs)");
	for (int i = 0; i < 10; i++) {
		ck_assert_str_eq(submit(3, 0, true), "");
		add(3, 0, true);
	}
	ck_assert_str_eq(submit(3, 0, true), "carol has 10 jobs waiting, limits.queued_per_user is 10");
}
END_TEST

/* ---- order ---- */

START_TEST(the_user_with_the_least_memory_is_first)
{
	add(1, 4 * GIB, false);
	uint64_t a = add(1, 1 * GIB, true), b = add(2, 1 * GIB, true), c = add(2, 1 * GIB, true);
	uint32_t place;
	explain(a, &place);
	ck_assert_uint_eq(place, 3);
	ck_assert_str_eq(explain(b, &place), "its turn has not come; 0 jobs before it");
	ck_assert_uint_eq(place, 1);
	ck_assert_uint_eq(start(), b);
	ck_assert_uint_eq(start(), c); /* 1 GiB against 4 */
	ck_assert_uint_eq(start(), a);
	ck_assert_uint_eq(start(), 0);
}
END_TEST

START_TEST(users_alike_start_in_the_order_of_submission)
{
	uint64_t a = add(2, 1 * GIB, true), b = add(1, 1 * GIB, true), c = add(3, 1 * GIB, true);
	ck_assert_uint_eq(start(), a);
	ck_assert_uint_eq(start(), b);
	ck_assert_uint_eq(start(), c);
}
END_TEST

START_TEST(a_small_job_passes_a_big_one_that_does_not_fit)
{
	add(1, 8 * GIB, false);
	uint64_t big = add(2, 5 * GIB, true), small = add(2, 2 * GIB, true);
	uint32_t place;
	ck_assert_str_eq(explain(big, &place),
			 "needs 5.0 GiB, 2.0 GiB of limits.host_memory (10.0 GiB) are free; 0 jobs before it");
	ck_assert_str_eq(explain(small, &place), "its turn has not come; 1 job before it");
	ck_assert_uint_eq(place, 2);
	ck_assert_uint_eq(start(), small);
	ck_assert_uint_eq(start(), 0);
}
END_TEST

/* One small job ends and another comes, for ever: the big one must get its turn all the same. */
START_TEST(a_big_job_is_not_starved)
{
	uint64_t first = add(1, 4 * GIB, false), running = add(3, 4 * GIB, false), big = add(2, 9 * GIB, true);
	for (int i = 0; i < QUEUE_MAX_OVERTAKES; i++) {
		end(running);
		running = add(3, 4 * GIB, true);
		ck_assert_uint_eq(start(), running);
	}
	end(running);
	add(3, 1 * GIB, true);
	ck_assert_uint_eq(start(), 0); /* it would fit, and waits */
	ck_assert_str_eq(submit(1, 1 * GIB, false),
			 "job 3 of bob has been overtaken 8 times and is next: nothing starts before it");
	end(first);
	ck_assert_uint_eq(start(), big);
	ck_assert_uint_ne(start(), 0);
}
END_TEST

/* Fairness overtakes, too: users who have nothing in use, one after the other. */
START_TEST(a_user_with_memory_in_use_is_not_starved)
{
	add(1, 2 * GIB, false);
	uint64_t mine = add(1, 8 * GIB, true), other = 0;
	int starts = 0;
	for (; starts < 100; starts++) {
		if (other)
			end(other);
		add(2 + (uint32_t)starts % 2, 1 * GIB, true);
		other = start();
		if (other == mine)
			break;
		ck_assert_uint_ne(other, 0);
	}
	ck_assert_int_eq(starts, QUEUE_MAX_OVERTAKES);
}
END_TEST

START_TEST(who_is_held_by_limits_of_its_own_is_passed_without_end)
{
	limits.jobs_per_user = 1;
	uint64_t running = add(1, 1 * GIB, false), held = add(1, 1 * GIB, true), other;
	for (int i = 0; i < 3 * QUEUE_MAX_OVERTAKES; i++) {
		other = add(2, 1 * GIB, true);
		ck_assert_uint_eq(start(), other);
		end(other);
	}
	uint32_t place;
	ck_assert_str_eq(explain(held, &place),
			 "alice has 1 jobs running, limits.jobs_per_user is 1; 0 jobs before it");
	end(running);
	ck_assert_uint_eq(start(), held);
}
END_TEST

START_TEST(limits_hold_for_the_queue)
{
	limits.jobs = 2;
	limits.host_memory_per_user = 3 * GIB;
	uint64_t a = add(1, 2 * GIB, true);
	add(1, 2 * GIB, true);
	uint64_t c = add(2, 1 * GIB, true);
	add(3, 1 * GIB, true);
	ck_assert_uint_eq(start(), a);
	ck_assert_uint_eq(start(), c);
	ck_assert_uint_eq(start(), 0); /* limits.jobs */
	limits.jobs = 8;
	ck_assert_uint_ne(start(), 0);
	ck_assert_uint_eq(start(), 0); /* the second of alice: 4 of 3 GiB */
	limits.available = 0;
	add(2, 1, true);
	ck_assert_uint_eq(start(), 0);
}
END_TEST

START_TEST(a_running_job_may_take_what_is_left)
{
	struct queue_verdict v;
	struct queue_job c = make(1, 3 * GIB, false);
	limits.jobs = 1; /* it is one of them itself */
	add(2, 7 * GIB, false);
	queue_fits(&limits, job, n_jobs, &c, &v);
	ck_assert_int_eq(v.status, ST_OK);
	c.bytes++;
	queue_fits(&limits, job, n_jobs, &c, &v);
	ck_assert_int_eq(v.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(
		v.why, "needs 3.0 GiB, 3.0 GiB of limits.host_memory (10.0 GiB) are free; in use: bob 7.0 GiB (1 job)");
	limits.host_memory_per_user = GIB;
	queue_fits(&limits, job, n_jobs, &c, &v);
	ck_assert_str_eq(v.why, "needs 3.0 GiB and can never run here: limits.host_memory_per_user is 1.0 GiB");
}
END_TEST

/* A job of user 1 with so many descriptors, of these so many stored. */
static struct queue_job with_descriptors(uint64_t n, uint64_t stored, bool waiting)
{
	struct queue_job c = make(1, 0, waiting);
	c.descriptors = n;
	c.stored = stored;
	return c;
}

static const char *submit_with(uint64_t n, uint64_t stored, bool may_wait)
{
	static struct queue_verdict v;
	struct queue_job c = with_descriptors(n, stored, true);
	queue_judge(&limits, job, n_jobs);
	queue_submit(&limits, job, n_jobs, &c, may_wait, &v);
	ck_assert_int_eq(v.status, *v.why ? ST_RESOURCE_EXHAUSTED : ST_OK);
	return v.why;
}

START_TEST(descriptors_are_limited)
{
	limits.descriptors = 100;
	limits.stored = UINT64_MAX;
	for (int may_wait = 0; may_wait < 2; may_wait++)
		ck_assert_str_eq(submit_with(101, 1, may_wait),
				 "needs 101 descriptors and can never run here: gaccd has 100 for jobs (RLIMIT_NOFILE "
				 "less 128); raise "
				 "LimitNOFILE= of its unit (ulimit -Hn), or ask for fewer ranks");
	ck_assert_str_eq(submit_with(100, 100, false), "");
	job[n_jobs++] = with_descriptors(60, 0, false);
	ck_assert_str_eq(submit_with(40, 0, false), "");
	ck_assert_str_eq(submit_with(41, 0, false), "needs 41 descriptors, other jobs hold 60 of the 100 that gaccd "
						    "has for jobs (LimitNOFILE= of its unit, ulimit "
						    "-Hn); in use: alice 0 B (1 job)");
	ck_assert_str_eq(submit_with(41, 0, true), "");
	limits.descriptors = 50; /* gaccd was started anew with less: what runs goes on */
	struct queue_verdict v;
	queue_fits(&limits, job, n_jobs, &job[0], &v);
	ck_assert_int_eq(v.status, ST_OK);
}
END_TEST

START_TEST(places_with_the_service_manager_are_limited)
{
	limits.descriptors = 1000;
	limits.stored = 100;
	ck_assert_str_eq(submit_with(101, 101, true),
			 "needs 101 places in the descriptor store and can never run here: it has 100 "
			 "(FileDescriptorStoreMax= of gaccd's "
			 "unit, or half its supervisor's RLIMIT_NOFILE); ask for slots_per_rank: 1 or fewer ranks");
	job[n_jobs++] = with_descriptors(60, 60, false);
	ck_assert_str_eq(submit_with(900, 40, false), "");
	ck_assert_str_eq(submit_with(41, 41, false), "needs 41 places in the descriptor store, other jobs hold 60 of "
						     "100 (FileDescriptorStoreMax= of gaccd's unit); in "
						     "use: alice 0 B (1 job)");
}
END_TEST

START_TEST(mappings_are_limited)
{
	limits.descriptors = limits.stored = UINT64_MAX; /* no service manager, and no limit of descriptors */
	limits.mapped = 100;
	for (int may_wait = 0; may_wait < 2; may_wait++)
		ck_assert_str_eq(submit_with(101, 101, may_wait),
				 "needs 101 mappings and can never run here: a process has 100 for jobs "
				 "(vm.max_map_count less 2048); raise it with "
				 "sysctl, or ask for slots_per_rank: 1 or fewer ranks");
	job[n_jobs++] = with_descriptors(60, 60, false);
	ck_assert_str_eq(submit_with(900, 40, false), "");
	ck_assert_str_eq(submit_with(41, 41, false), "needs 41 mappings, other jobs hold 60 of the 100 that gaccd has "
						     "for jobs (sysctl vm.max_map_count); in use: alice 0 B "
						     "(1 job)");
	job[n_jobs++] = with_descriptors(41, 41, true);
	ck_assert_uint_eq(start(), 0);
	limits.mapped = 101;
	ck_assert_uint_eq(start(), last_id);
	limits.mapped = 50; /* the sysctl was lowered: what runs goes on */
	struct queue_verdict v;
	queue_fits(&limits, job, n_jobs, &job[0], &v);
	ck_assert_int_eq(v.status, ST_OK);
}
END_TEST

START_TEST(who_waits_for_descriptors_starts_when_they_are_free)
{
	uint32_t place;
	limits.descriptors = 100;
	job[n_jobs++] = with_descriptors(60, 50, false);
	uint64_t first = last_id;
	job[n_jobs++] = with_descriptors(50, 50, true);
	uint64_t waiting = last_id;
	limits.stored = UINT64_MAX;
	ck_assert_uint_eq(start(), 0);
	ck_assert_str_eq(explain(waiting, &place), "needs 50 descriptors, other jobs hold 60 of the 100 that gaccd has "
						   "for jobs (LimitNOFILE= of its unit, ulimit "
						   "-Hn); 0 jobs before it");
	limits.descriptors = 110;
	limits.stored = 99;
	ck_assert_uint_eq(start(), 0);
	end(first);
	ck_assert_uint_eq(start(), waiting);
}
END_TEST

START_TEST(an_ended_job_counts_until_its_memory_is_back)
{
	limits.jobs = 1;
	add(1, 8 * GIB, false);
	job[0].ended = true;
	uint64_t big = add(2, 3 * GIB, true);
	ck_assert_uint_eq(start(), 0);
	uint64_t small = add(2, 2 * GIB, true);
	ck_assert_uint_eq(start(), small);
	ck_assert_uint_eq(start(), 0);
	end(small);
	end(1);
	ck_assert_uint_eq(start(), big);
}
END_TEST

/* Else who cancels has ranks beyond every limit, for as long as they take to end. */
START_TEST(an_ended_job_whose_ranks_live_counts_as_one_that_runs)
{
	for (int i = 0; i < 4; i++)
		add(1, 0, false);
	job[0].leaving = job[1].leaving = true;
	ck_assert_str_eq(
		submit(1, 1, false),
		"alice has 4 jobs running (2 of them over, but with ranks that have not ended), limits.jobs_per_user "
		"is 4; in use: alice 0 B (4 jobs)");
	uint64_t waits = add(1, 1, true);
	ck_assert_uint_eq(start(), 0);
	end(1);
	ck_assert_uint_eq(start(), waits);
	limits.jobs = 4;
	ck_assert_str_eq(
		submit(2, 1, false),
		"4 jobs are running (1 of them over, but with ranks that have not ended), limits.jobs is 4; in use: "
		"alice 1 B (4 jobs)");
}
END_TEST

START_TEST(sizes_are_written_for_people)
{
	char out[24];
	queue_bytes(1023, out);
	ck_assert_str_eq(out, "1023 B");
	queue_bytes(1536, out);
	ck_assert_str_eq(out, "1.5 KiB");
	queue_bytes(UINT64_C(3) << 50, out);
	ck_assert_str_eq(out, "3072.0 TiB");
}
END_TEST

/* ---- memory of GPUs ---- */

static const char *fits_on_device(uint32_t uid, uint64_t bytes)
{
	static struct queue_verdict v;
	struct queue_job c = make(uid, GIB, false);
	c.device_bytes = bytes;
	queue_judge(&limits, job, n_jobs);
	queue_fits(&limits, job, n_jobs, &c, &v);
	ck_assert_int_eq(v.status, *v.why ? ST_RESOURCE_EXHAUSTED : ST_OK);
	return v.why;
}

static void add_on_device(uint32_t uid, uint64_t bytes)
{
	add(uid, GIB, false);
	job[n_jobs - 1].device_bytes = bytes;
}

START_TEST(memory_of_gpus_is_counted_by_itself)
{
	add_on_device(1, 30 * GIB);
	ck_assert_str_eq(fits_on_device(1, 1000 * GIB), ""); /* the GPU says */
	limits.device_memory = 80 * GIB;
	limits.device_memory_per_user = 50 * GIB;
	ck_assert_str_eq(fits_on_device(1, 20 * GIB), "");
	ck_assert_str_eq(fits_on_device(1, 20 * GIB + 1),
			 "needs 20.0 GiB of GPUs' memory, 20.0 GiB of limits.device_memory_per_user (50.0 GiB) are "
			 "free for alice");
	ck_assert_str_eq(fits_on_device(2, 50 * GIB), "");
	add_on_device(3, 10 * GIB);
	ck_assert_str_eq(fits_on_device(2, 40 * GIB), "");
	ck_assert_str_eq(fits_on_device(2, 41 * GIB),
			 "needs 41.0 GiB of GPUs' memory, 40.0 GiB of limits.device_memory (80.0 GiB) are free");
	ck_assert_str_eq(fits_on_device(2, 0), ""); /* a job on the host */
	add_on_device(3, 60 * GIB);		    /* from before a limit was lowered */
	ck_assert_str_eq(fits_on_device(2, 0), "");
	ck_assert_msg(strstr(fits_on_device(2, 1), "0 B of limits.device_memory (") != NULL, "%s",
		      fits_on_device(2, 1));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("queue");
	TCase *c = tcase_create("queue");
	tcase_add_checked_fixture(c, setup, NULL);
	suite_add_tcase(s, c);
	tcase_add_test(c, what_can_never_fit_is_refused_in_any_mode);
	tcase_add_test(c, what_may_not_wait_is_refused_with_the_numbers);
	tcase_add_test(c, numbers_of_jobs_are_limited);
	tcase_add_test(c, the_user_with_the_least_memory_is_first);
	tcase_add_test(c, users_alike_start_in_the_order_of_submission);
	tcase_add_test(c, a_small_job_passes_a_big_one_that_does_not_fit);
	tcase_add_test(c, a_big_job_is_not_starved);
	tcase_add_test(c, a_user_with_memory_in_use_is_not_starved);
	tcase_add_test(c, who_is_held_by_limits_of_its_own_is_passed_without_end);
	tcase_add_test(c, limits_hold_for_the_queue);
	tcase_add_test(c, a_running_job_may_take_what_is_left);
	tcase_add_test(c, descriptors_are_limited);
	tcase_add_test(c, places_with_the_service_manager_are_limited);
	tcase_add_test(c, mappings_are_limited);
	tcase_add_test(c, who_waits_for_descriptors_starts_when_they_are_free);
	tcase_add_test(c, an_ended_job_counts_until_its_memory_is_back);
	tcase_add_test(c, an_ended_job_whose_ranks_live_counts_as_one_that_runs);
	tcase_add_test(c, memory_of_gpus_is_counted_by_itself);
	tcase_add_test(c, sizes_are_written_for_people);
	return suite_run(s);
}

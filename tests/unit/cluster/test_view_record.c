/* SPDX-License-Identifier: Apache-2.0 */
/* VIEW: both forms are read, and what is wrong with one is said. */
#include "cluster/raw_records.h"
#include "cluster/view_record.h"
#include "gacc/v1/job.pb-c.h"
#include "support/suite.h"
#include "unit/cluster/altered.h"

#include <stdlib.h>
#include <string.h>

static struct view_head full_head(void)
{
	struct view_head h = { true, 3, 4, 5, LAUNCH_DAEMON, OPTIM_LAMB, INT64_C(6) << 33, { 0 } };
	for (unsigned i = 0; i < sizeof(h.spec_sum); i++)
		h.spec_sum[i] = (uint8_t)(200 + i);
	return h;
}

static void *pack(const struct view_head *h, size_t *n)
{
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	job.id = 77;
	return view_record_pack(h, &job, n);
}

static void expect_same(const void *bytes, size_t n, const struct view_head *h)
{
	struct view_head back;
	Gacc__V1__Job *job = NULL;
	char why[200];
	ck_assert_msg(!view_record_read(bytes, n, &back, &job, why, sizeof(why)), "%s", why);
	ck_assert(back.settled == h->settled && back.ranks == h->ranks && back.micro_size == h->micro_size);
	ck_assert(back.max_micro_size == h->max_micro_size && back.launch_mode == h->launch_mode);
	ck_assert(back.optimizer == h->optimizer && back.grace_ns == h->grace_ns);
	ck_assert_mem_eq(back.spec_sum, h->spec_sum, sizeof(h->spec_sum));
	ck_assert_uint_eq(job->id, 77);
	gacc__v1__job__free_unpacked(job, NULL);
}

static void expect_refused(const void *bytes, size_t n, const char *text)
{
	struct view_head back;
	Gacc__V1__Job *job = NULL;
	char why[200] = "";
	ck_assert_int_eq(view_record_read(bytes, n, &back, &job, why, sizeof(why)), ST_VERSION_SKEW);
	ck_assert_msg(strstr(why, text) != NULL, "%s, not: %s", why, text);
	ck_assert_ptr_null(job);
}

static void expect_head_refused(struct view_head h, const char *text)
{
	size_t n;
	void *bytes = pack(&h, &n);
	expect_refused(bytes, n, text);
	free(bytes);
}

START_TEST(a_view_comes_back)
{
	struct view_head h = full_head();
	size_t n;
	void *bytes = pack(&h, &n);
	expect_same(bytes, n, &h);
	free(bytes);
}
END_TEST

/* As earlier gaccds wrote it: a head of 56 bytes, then the job. */
START_TEST(a_raw_view_is_read)
{
	const uint32_t words[8] = { 1, 1, 3, 4, 5, LAUNCH_DAEMON, OPTIM_LAMB, 0 };
	struct view_head h = full_head();
	uint8_t bytes[56 + 2] = { 0 };
	memcpy(bytes, words, sizeof(words));
	memcpy(bytes + 32, &h.grace_ns, 8);
	memcpy(bytes + 40, h.spec_sum, 16);
	memcpy(bytes + 56, "\x08\x4d", 2);
	expect_same(bytes, sizeof(bytes), &h);
	expect_refused(bytes, 55, "it has another form: 1 in 55 bytes");
	expect_refused(bytes, 57, "ViewRecord.job is no gacc.v1.Job");
	bytes[8] = 0;
	expect_refused(bytes, sizeof(bytes), "ViewRecord.ranks is 0");
	bytes[0] = 2;
	expect_refused(bytes, sizeof(bytes), "it has another form: 2 in 58 bytes");
}
END_TEST

START_TEST(senseless_views_are_refused)
{
	struct view_head h = full_head();
	h.ranks = 0, expect_head_refused(h, "ViewRecord.ranks is 0, and must be 1 to 65536"), h = full_head();
	h.ranks = SPEC_MAX_RANKS + 1, expect_head_refused(h, "ViewRecord.ranks is 65537"), h = full_head();
	h.launch_mode = 4, expect_head_refused(h, "ViewRecord.launch_mode is 4, and must be 1 to 3"), h = full_head();
	h.launch_mode = 0, expect_head_refused(h, "ViewRecord.launch_mode is 0"), h = full_head();
	h.optimizer = 9, expect_head_refused(h, "ViewRecord.optimizer is 9");
}
END_TEST

static unsigned try_bytes(const uint8_t *bytes, size_t n)
{
	struct view_head back;
	Gacc__V1__Job *job = NULL;
	char why[200] = "";
	enum status st = view_record_read(bytes, n, &back, &job, why, sizeof(why));
	ck_assert(st == ST_OK || (st == ST_VERSION_SKEW && *why && !job));
	ck_assert(st || (job && back.ranks && back.ranks <= SPEC_MAX_RANKS));
	if (job)
		gacc__v1__job__free_unpacked(job, NULL);
	return !st;
}

START_TEST(any_bytes_are_read_or_refused)
{
	struct view_head h = full_head();
	size_t n;
	void *bytes = pack(&h, &n);
	for (size_t cut = 0; cut < n; cut++)
		expect_refused(bytes, cut, "");
	altered_try(bytes, n, 5000, try_bytes);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("view record");
	TCase *c = tcase_create("view record");
	suite_add_tcase(s, c);
	tcase_add_test(c, a_view_comes_back);
	tcase_add_test(c, a_raw_view_is_read);
	tcase_add_test(c, senseless_views_are_refused);
	tcase_add_test(c, any_bytes_are_read_or_refused);
	return suite_run(s);
}

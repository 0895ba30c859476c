/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the journal is the one of the memory and the launchers that are there: ids that it has never had, memory of
 * another job of the same id; and what changes when the operator has accepted a loss. */
#include "edge/journal_keep.h"
#include "edge_rig.h"

#include "engine/segment.h"
#include "runtime/stored.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOB = 7, LAST = 9 };
static const uint8_t ours[16] = "of this journal", theirs[16] = "of another one.";

static struct hosted *job;

static void setup(void)
{
	rig_open();
	job = rig_job(JOB, 1000, "ana", NULL);
	memcpy(job->uuid, ours, sizeof(ours));
	d.last_job = LAST;
	d.node.stored = calloc(4, sizeof(*d.node.stored));
}

static void teardown(void)
{
	for (size_t i = 0; i < d.node.n_stored; i++)
		if (d.node.stored[i].fd >= 0)
			close(d.node.stored[i].fd);
	rig_close();
}

/* Memory of this job with the manager. uuid NULL: it does not say whose it is. */
static struct fdstore_fd *store(uint64_t id, uint32_t role, const uint8_t *uuid)
{
	struct segment s = SEGMENT_NONE;
	struct fdstore_fd *at = &d.node.stored[d.node.n_stored++];
	char why[200];
	ck_assert_int_eq(segment_create(&s, id, 1, 1, role, 0, 4096, true, why, sizeof(why)), ST_OK);
	if (uuid)
		ck_assert_int_eq(segment_set_owner(&s, uuid, why, sizeof(why)), ST_OK);
	stored_name(id, 0, 1, &(struct plan_segment){ .role = role }, at->name);
	at->fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 3);
	segment_close(&s);
	return at;
}

static void ignore(void *arg, const char *line)
{
}

/* As after gaccd --accept-journal-loss. */
static void accept_loss(void)
{
	char path[SCRATCH_PATH + 64];
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_state);
	persist_free(d.persist);
	journal_close(d.journal);
	ck_assert_int_eq(journal_accept(path, JOB_FAILED, 1, ignore, NULL), ST_OK);
	ck_assert_int_eq(journal_open(path, &d.journal), ST_OK);
	ck_assert(journal_was_accepted(d.journal));
	ck_assert_int_eq(persist_new(&d.node.loop, d.journal, d.term, &d.persist), ST_OK);
}

static void launcher_file(const char *name)
{
	char path[200];
	snprintf(path, sizeof(path), "%s/%s", rig_runtime, name);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

/* ---- opening ---- */

START_TEST(without_a_manager_the_journal_is_opened_as_it_is)
{
	char path[SCRATCH_PATH + 64];
	struct daemon other = { .node = { .conf = conf, .fdstore = d.node.fdstore } };
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_runtime);
	ck_assert_int_eq(journal_keep_open(&other, path), ST_OK);
	ck_assert_int_eq(journal_kept(other.journal), -1);
	ck_assert(!other.journal_lost);
	journal_close(other.journal);
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_state);
	ck_assert_int_eq(journal_keep_open(&other, path), ST_UNAVAILABLE); /* it is ours already */
	ck_assert(!other.journal_lost);
}
END_TEST

/* ---- ids ---- */

START_TEST(memory_of_jobs_that_the_journal_has_had)
{
	ck_assert_int_eq(journal_keep_check(&d), ST_OK);
	store(LAST, SEG_CONTROL, ours);
	ck_assert_int_eq(journal_keep_check(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert_uint_eq(d.last_job, LAST);
}
END_TEST

START_TEST(memory_of_a_job_that_it_has_never_had)
{
	store(JOB, SEG_CONTROL, ours);
	store(LAST + 1, SEG_SLOT, ours);
	store(LAST, SEG_PARAMS, ours);
	ck_assert_int_eq(journal_keep_check(&d), ST_MALFORMED);
	ck_assert(d.journal_lost);
	ck_assert_uint_eq(d.last_job, LAST);
}
END_TEST

START_TEST(an_accepted_journal_passes_the_ids_of_the_memory)
{
	accept_loss();
	store(LAST + 5, SEG_SLOT, ours);
	store(LAST + 1, SEG_SLOT, ours);
	ck_assert_int_eq(journal_keep_check(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert_uint_eq(d.last_job, LAST + 5);
}
END_TEST

START_TEST(ids_go_on_behind_launchers_that_may_live)
{
	launcher_file("launch-12.0123456789abcdef.sock");
	launcher_file("launch-14.state"); /* named as by an older gaccd */
	launcher_file("launch-8.sock");
	launcher_file("launch-99.other");
	launcher_file("lunch-98.sock");
	ck_assert_int_eq(journal_keep_check(&d), ST_OK);
	ck_assert_uint_eq(d.last_job, 14);
}
END_TEST

START_TEST(a_file_of_an_impossible_job_is_passed_over)
{
	launcher_file("launch-9223372036854775808.sock");
	ck_assert_int_eq(journal_keep_check(&d), ST_OK);
	ck_assert_uint_eq(d.last_job, LAST);
}
END_TEST

/* ---- owners ---- */

START_TEST(memory_of_the_job_itself)
{
	const struct fdstore_fd *own = store(JOB, SEG_CONTROL, ours), *unnamed = store(JOB, SEG_PARAMS, NULL),
				*other = store(LAST, SEG_CONTROL, theirs); /* of no job here */
	ck_assert_int_eq(journal_keep_owners(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert(own->fd >= 0 && unnamed->fd >= 0 && other->fd >= 0);
}
END_TEST

/* The control segment says surely whose journal it is; gaccd does not start, and all memory is kept. */
START_TEST(memory_of_another_journals_job)
{
	const struct fdstore_fd *s = store(JOB, SEG_CONTROL, theirs);
	ck_assert_int_eq(journal_keep_owners(&d), ST_MALFORMED);
	ck_assert(d.journal_lost);
	ck_assert_int_ge(s->fd, 0);
}
END_TEST

/* A trainer can write to its slots, so that they prove nothing. */
START_TEST(a_slot_of_another_job_is_dropped)
{
	const struct fdstore_fd *slot = store(JOB, SEG_SLOT, theirs), *own = store(JOB, SEG_CONTROL, ours);
	int fd = slot->fd;
	ck_assert_int_eq(journal_keep_owners(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert_int_eq(slot->fd, -1);
	ck_assert(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
	ck_assert_int_ge(own->fd, 0);
}
END_TEST

START_TEST(damaged_memory_is_dropped)
{
	const struct fdstore_fd *s = store(JOB, SEG_CONTROL, ours);
	ck_assert_int_eq(pwrite(s->fd, "x", 1, sizeof(struct segment_header)), 1);
	ck_assert_int_eq(journal_keep_owners(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert_int_eq(s->fd, -1);
}
END_TEST

START_TEST(an_accepted_journal_drops_what_is_not_its_own)
{
	accept_loss();
	const struct fdstore_fd *other = store(JOB, SEG_CONTROL, theirs), *own = store(JOB, SEG_PARAMS, ours);
	ck_assert_int_eq(journal_keep_owners(&d), ST_OK);
	ck_assert(!d.journal_lost);
	ck_assert_int_eq(other->fd, -1);
	ck_assert_int_ge(own->fd, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal_keep");
	TCase *t = tcase_create("journal_keep");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, without_a_manager_the_journal_is_opened_as_it_is);
	tcase_add_test(t, memory_of_jobs_that_the_journal_has_had);
	tcase_add_test(t, memory_of_a_job_that_it_has_never_had);
	tcase_add_test(t, an_accepted_journal_passes_the_ids_of_the_memory);
	tcase_add_test(t, ids_go_on_behind_launchers_that_may_live);
	tcase_add_test(t, a_file_of_an_impossible_job_is_passed_over);
	tcase_add_test(t, memory_of_the_job_itself);
	tcase_add_test(t, memory_of_another_journals_job);
	tcase_add_test(t, a_slot_of_another_job_is_dropped);
	tcase_add_test(t, damaged_memory_is_dropped);
	tcase_add_test(t, an_accepted_journal_drops_what_is_not_its_own);
	return suite_run(s);
}

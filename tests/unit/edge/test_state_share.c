/* SPDX-License-Identifier: Apache-2.0 */
/* What a user has in state_dir, what is admitted there, and what is left for logs. The files are real ones of the user
 * who runs the test; the limits are some KiB. */
#include "edge/checkpoints_impl.h"
#include "edge/disk_watch.h"
#include "edge/state_share.h"
#include "edge_rig.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define KIB UINT64_C(1024)
#define LIMIT (1024 * KIB)
#define ANA 70001 /* no user of this machine, and without files */
enum { MINE = 7, ANAS = 8 };

static struct hosted *mine, *anas; /* jobs of the user who runs this, and of ana */
static char dir[SCRATCH_PATH + 48], why[400];
static struct now now;

static void setup(void)
{
	rig_open();
	conf->limits.state_per_user = LIMIT;
	mine = rig_job(MINE, geteuid(), "me", NULL);
	anas = rig_job(ANAS, ANA, "ana", NULL);
	snprintf(dir, sizeof(dir), "%s/checkpoints/8", rig_state);
	now = daemon_now(&d);
}

/* A file of so many KiB, with the folder that it is in. */
static void make_file(const char *kind, const char *job, const char *name, int kib)
{
	char path[300];
	snprintf(path, sizeof(path), "%s/%s", rig_state, kind);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/%s/%s", rig_state, kind, job);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/%s/%s/%s", rig_state, kind, job, name);
	FILE *f = fopen(path, "w");
	ck_assert(f && fprintf(f, "%*d", kib * 1024, 0) == kib * 1024 && !fclose(f));
}

/* The next look, which is due so many seconds after the one before. */
static void look(int64_t after_s)
{
	now.mono_ns += after_s * SECOND;
	state_share_tick(&d, now);
	rig_run();
}

static enum status admit(struct hosted *h, uint64_t bytes)
{
	why[0] = '\0';
	return state_share_admit(h, dir, bytes, why, sizeof(why));
}

static struct state_use use_of(uint32_t uid)
{
	return state_share_of(&d, uid);
}

/* ---- what is there ---- */

START_TEST(files_are_counted_by_kind)
{
	make_file("checkpoints", "7", "0.safetensors", 100);
	make_file("logs", "7", "worker_0.log", 10);
	ck_assert_uint_eq(use_of(geteuid()).checkpoints, 0); /* nobody has looked */
	look(0);
	struct state_use u = use_of(geteuid());
	ck_assert_uint_ge(u.checkpoints, 100 * KIB);
	ck_assert_uint_lt(u.checkpoints, 150 * KIB); /* with its folder */
	ck_assert_uint_ge(u.logs, 10 * KIB);
	ck_assert_uint_lt(u.logs, 60 * KIB);
	ck_assert_uint_eq(u.limit, LIMIT);
	u = use_of(ANA);
	ck_assert_uint_eq(u.checkpoints, 0);
	ck_assert_uint_eq(u.logs, 0);
}
END_TEST

START_TEST(half_of_the_disk_is_the_limit_when_none_is_set)
{
	conf->limits.state_per_user = 0;
	ck_assert_uint_gt(use_of(ANA).limit, 0);
	ck_assert_uint_eq(use_of(ANA).limit, disk_watch_state(&d).total / 2);
}
END_TEST

START_TEST(it_looks_every_ten_seconds_or_when_told_to)
{
	look(0);
	make_file("checkpoints", "7", "0.safetensors", 100);
	look(9);
	ck_assert_uint_eq(use_of(geteuid()).checkpoints, 0);
	look(2);
	ck_assert_uint_ge(use_of(geteuid()).checkpoints, 100 * KIB);
	make_file("checkpoints", "7", "1.safetensors", 100);
	state_share_changed(&d);
	look(0);
	ck_assert_uint_ge(use_of(geteuid()).checkpoints, 200 * KIB);
}
END_TEST

START_TEST(it_is_busy_while_the_pool_looks)
{
	ck_assert(!state_share_busy(&d));
	state_share_tick(&d, now);
	ck_assert(state_share_busy(&d));
	state_share_changed(&d);
	state_share_tick(&d, now); /* one look at a time */
	rig_run();
	ck_assert(!state_share_busy(&d));
}
END_TEST

/* ---- checkpoints ---- */

START_TEST(checkpoints_elsewhere_are_not_counted)
{
	snprintf(dir, sizeof(dir), "/nonexistent/checkpoints");
	ck_assert_int_eq(admit(anas, 100 * LIMIT), ST_OK);
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
}
END_TEST

START_TEST(checkpoints_fill_their_users_share)
{
	ck_assert_int_eq(admit(anas, LIMIT + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "ana has 0.0 MiB of checkpoints") != NULL, "%s", why);
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
	ck_assert_int_eq(admit(anas, LIMIT / 4), ST_OK);
	ck_assert_uint_eq(use_of(ANA).checkpoints, LIMIT / 4); /* before it is written */
	ck_assert_uint_eq(use_of(geteuid()).checkpoints, 0);
	ck_assert_int_eq(admit(anas, LIMIT * 3 / 4 + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "limits.state_per_user is 1.0 MiB") != NULL, "%s", why);
	ck_assert_int_eq(admit(mine, LIMIT), ST_OK);
	ck_assert_int_eq(admit(anas, LIMIT * 3 / 4), ST_OK);
	ck_assert_int_eq(admit(anas, 1), ST_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(files_that_are_there_count_as_well)
{
	make_file("checkpoints", "7", "0.safetensors", 600);
	look(0);
	ck_assert_int_eq(admit(mine, LIMIT / 2), ST_RESOURCE_EXHAUSTED);
	ck_assert_int_eq(admit(anas, LIMIT / 2), ST_OK);
}
END_TEST

/* The look has seen its files, or nothing came of it. */
START_TEST(a_look_counts_what_was_begun)
{
	ck_assert_int_eq(admit(anas, LIMIT), ST_OK);
	look(0);
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
	ck_assert_int_eq(admit(anas, LIMIT), ST_OK);
}
END_TEST

/* It is begun after the look has started: that one cannot have seen it. The next comes soon. */
START_TEST(what_begins_during_a_look_stays_counted)
{
	state_share_tick(&d, now);
	ck_assert_int_eq(admit(anas, LIMIT), ST_OK);
	rig_run();
	ck_assert_uint_eq(use_of(ANA).checkpoints, LIMIT);
	look(10);
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
}
END_TEST

/* A job that is being saved writes the last that it began. */
START_TEST(what_is_being_written_stays_counted)
{
	ck_assert_int_eq(admit(anas, LIMIT / 4), ST_OK);
	ck_assert_int_eq(admit(anas, LIMIT / 2), ST_OK);
	enum saver_state idle = anas->saving->saver.state;
	anas->saving->saver.state = SAVER_WRITING;
	look(0);
	ck_assert_uint_eq(use_of(ANA).checkpoints, LIMIT / 2);
	anas->saving->saver.state = idle;
	look(1); /* soon: something is counted that no look has seen */
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
}
END_TEST

START_TEST(a_full_disk_takes_no_checkpoint)
{
	conf->limits.journal_reserve = 64 * disk_watch_state(&d).free;
	disk_watch_tick(&d, now);
	rig_run();
	ck_assert_int_eq(admit(anas, 1), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, DISK_WATCH_FULL) != NULL, "%s", why);
	ck_assert_uint_eq(use_of(ANA).checkpoints, 0);
}
END_TEST

/* ---- logs ---- */

static uint64_t log_max(const struct hosted *h)
{
	return state_share_log_max(&d, h->uid, h->spec->ranks);
}

/* Half of what is left, in equal parts for the job's two ranks: a log is there twice, as .log and .log.1. */
START_TEST(logs_get_what_checkpoints_leave)
{
	conf->log.rank_max = LIMIT;
	ck_assert_uint_eq(log_max(anas), LIMIT / 2 / 2);
	ck_assert_int_eq(admit(anas, LIMIT / 2), ST_OK);
	ck_assert_uint_eq(log_max(anas), LIMIT / 2 / 2 / 2);
	ck_assert_int_eq(admit(anas, LIMIT / 2), ST_OK);
	ck_assert_uint_eq(log_max(anas), 0);
	ck_assert_uint_eq(log_max(mine), LIMIT / 2 / 2);
	conf->log.rank_max = 10 * KIB;
	ck_assert_uint_eq(log_max(mine), 10 * KIB);
}
END_TEST

START_TEST(logs_of_earlier_jobs_count)
{
	conf->log.rank_max = LIMIT;
	make_file("logs", "7", "worker_0.log", 512);
	look(0);
	ck_assert_uint_lt(log_max(mine), LIMIT / 2 / 2 / 2 + 1);
	ck_assert_uint_gt(log_max(mine), LIMIT / 2 / 2 / 4);
	ck_assert_uint_eq(log_max(anas), LIMIT / 2 / 2);
}
END_TEST

/* While the disk is full the user who has most there writes no more. */
START_TEST(who_has_most_on_a_full_disk_logs_nothing)
{
	make_file("logs", "7", "worker_0.log", 64);
	look(0);
	conf->limits.journal_reserve = 64 * disk_watch_state(&d).free;
	disk_watch_tick(&d, now);
	rig_run();
	ck_assert(disk_watch_state(&d).full);
	ck_assert_uint_eq(log_max(mine), 0);
	ck_assert_uint_gt(log_max(anas), 0);
}
END_TEST

START_TEST(logs_of_jobs_that_nobody_knows_are_deleted)
{
	char path[300];
	struct stat st;
	make_file("logs", "5", "worker_0.log", 4);
	make_file("logs", "7", "worker_0.log", 4);
	make_file("logs", "9", "worker_0.log", 4); /* of a job to come */
	look(0);
	snprintf(path, sizeof(path), "%s/logs/5", rig_state);
	ck_assert_int_eq(stat(path, &st), -1);
	snprintf(path, sizeof(path), "%s/logs/7/worker_0.log", rig_state);
	ck_assert_int_eq(stat(path, &st), 0);
	snprintf(path, sizeof(path), "%s/logs/9/worker_0.log", rig_state);
	ck_assert_int_eq(stat(path, &st), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("state_share");
	TCase *t = tcase_create("state_share");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, rig_close);
	tcase_add_test(t, files_are_counted_by_kind);
	tcase_add_test(t, half_of_the_disk_is_the_limit_when_none_is_set);
	tcase_add_test(t, it_looks_every_ten_seconds_or_when_told_to);
	tcase_add_test(t, it_is_busy_while_the_pool_looks);
	tcase_add_test(t, checkpoints_elsewhere_are_not_counted);
	tcase_add_test(t, checkpoints_fill_their_users_share);
	tcase_add_test(t, files_that_are_there_count_as_well);
	tcase_add_test(t, a_look_counts_what_was_begun);
	tcase_add_test(t, what_begins_during_a_look_stays_counted);
	tcase_add_test(t, what_is_being_written_stays_counted);
	tcase_add_test(t, a_full_disk_takes_no_checkpoint);
	tcase_add_test(t, logs_get_what_checkpoints_leave);
	tcase_add_test(t, logs_of_earlier_jobs_count);
	tcase_add_test(t, who_has_most_on_a_full_disk_logs_nothing);
	tcase_add_test(t, logs_of_jobs_that_nobody_knows_are_deleted);
	return suite_run(s);
}

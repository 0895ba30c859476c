/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of a part's sessions, with a real engine: made once for a session, read by each engine, closed with a bell,
 * bounded; and what gaccd learns from the record of what came in them. */
#include "part_rig.h"

#include "engine/progress.h"
#include "support/box.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

Suite *mailbox_suite(void);

static struct box_trainer trainer;

/* A part that runs, whose rank 0 has a mailbox that the engine reads. */
static struct part *part_with_mailbox(void)
{
	struct part *p = rig_running_part();
	const struct mailbox_fds *f = part_mailbox(p, 0);
	ck_assert_ptr_nonnull(f);
	box_trainer_open(&trainer, f, job_arena(p->job)->n_tensors);
	job_on_mailbox(p->job, 0, job_generation(p->job, 0));
	return p;
}

/* Of rank 0, in cell 0; its slot holds what it holds. */
static uint64_t publish(const struct part *p, uint32_t micro)
{
	const struct gacc_box_request q = {
		.kind = GACC_BOX_PUSH, .window = job_window(p->job), .micro = micro, .slot = micro % 2, .weight = 2
	};
	return box_publish(&trainer, 0, q, NULL);
}

static bool is_answered(uint64_t seq)
{
	return __atomic_load_n(&trainer.mem->answer[0].seq, __ATOMIC_ACQUIRE) == seq;
}

static int open_fds(void)
{
	int n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* ---- one for a session ---- */

START_TEST(a_session_has_one_mailbox)
{
	struct part *p = part_with_mailbox();
	const struct gacc_box_header *h = &trainer.mem->header;
	const struct mailbox_fds *f = part_mailbox(p, 0);
	ck_assert(h->magic == GACC_BOX_MAGIC && h->job == RIG_JOB && h->rank == 0 && h->slots == 2 && !h->closed);
	ck_assert_uint_eq(h->sgen, job_generation(p->job, 0));
	int memory = f->memory;
	ck_assert(part_mailbox(p, 0) == f && f->memory == memory); /* asked for again, it is the same */
	ck_assert_ptr_ne(part_mailbox(p, 1), f);
	ck_assert_ptr_null(part_mailbox(p, RIG_RANKS)); /* no rank */
	ck_assert_uint_eq(p->n_boxes, 2);
	box_trainer_close(&trainer);
}
END_TEST

/* As another process of rank 0. */
static void attach_anew(struct part *p)
{
	const struct attach_args a = {
		.world_size = RIG_RANKS, .uid = getuid(), .nonce = { 77 }, .shared_memory = true
	};
	uint64_t before = job_generation(p->job, 0);
	job_attach(p->job, RIG_CALLS - 1, &a, node_now());
	UNTIL(job_generation(p->job, 0) != before);
}

static bool bell_rang(int waits)
{
	struct epoll_event e;
	return epoll_wait(waits, &e, 1, 0) == 1;
}

/* The trainer before is told, even when it sleeps: the bell's descriptor is still there. */
START_TEST(a_newer_session_closes_it)
{
	struct part *p = part_with_mailbox();
	int waits = dup(part_mailbox(p, 0)->waits);
	UNTIL(bell_rang(waits)); /* by the engine, once it has the mailbox */
	ck_assert(!bell_rang(waits));
	attach_anew(p);
	ck_assert_uint_eq(trainer.mem->header.closed, 1);
	ck_assert(bell_rang(waits));
	const struct engine_command again = { .op = ENGINE_MAILBOX, .sgen = 1 };
	int fds[3];
	ck_assert_int_eq(part_mailbox_fds(p, &again, fds), 0); /* no engine reads it any more */
	const struct mailbox_fds *f = part_mailbox(p, 0);
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(p->n_boxes, 1); /* the old one's descriptors are gone */
	struct gacc_box_header h;
	ck_assert_int_eq(pread(f->memory, &h, sizeof(h), 0), sizeof(h));
	ck_assert(h.sgen == job_generation(p->job, 0) && !h.closed);
	box_trainer_close(&trainer);
	close(waits);
}
END_TEST

START_TEST(the_jobs_end_closes_it)
{
	struct part *p = part_with_mailbox();
	struct order end = rig_order(p, WANT_END);
	part_on_order(p, &end);
	ck_assert_uint_eq(trainer.mem->header.closed, 1);
	ck_assert_ptr_null(part_mailbox(p, 0));
	ck_assert_ptr_null(part_mailbox(p, 1)); /* nobody gets one now */
	box_trainer_close(&trainer);
}
END_TEST

/* What is counted for a job at its submission is not exceeded. */
START_TEST(a_job_has_no_more_than_it_is_charged_for)
{
	conf->listen.connections_per_user = 1;
	struct part *p = part_with_mailbox();
	ck_assert_ptr_null(part_mailbox(p, 1));
	ck_assert_uint_eq(p->n_boxes, 1);
	conf->listen.connections_per_user = 2;
	ck_assert_ptr_nonnull(part_mailbox(p, 1)); /* there is room again */
	box_trainer_close(&trainer);
	uint64_t n = job_arena(p->job)->n_tensors;
	ck_assert_uint_eq(part_mailboxes_need(p->spec, n), RIG_RANKS * gacc_box_bytes(n));
	struct job_spec wide = *p->spec;
	wide.ranks = 60000;
	ck_assert_uint_eq(part_mailboxes_need(&wide, n), 0);
}
END_TEST

START_TEST(it_leaves_no_descriptor)
{
	struct part *p = rig_running_part();
	int before = open_fds();
	ck_assert_ptr_nonnull(part_mailbox(p, 0));
	ck_assert_ptr_nonnull(part_mailbox(p, 1));
	ck_assert_int_eq(open_fds(), before + 8);
	part_mailboxes_free(p);
	ck_assert_int_eq(open_fds(), before);
	ck_assert_uint_eq(p->n_boxes, 0);
}
END_TEST

/* ---- what comes in it ---- */

START_TEST(a_push_counts_and_the_record_says_so)
{
	struct part *p = part_with_mailbox();
	struct record_view v;
	struct control_page page;
	ck_assert(part_control_page(p, &page) && part_record(p, 0, &v));
	uint64_t seq = publish(p, 0), was = v.state->r.seq;
	box_bell(&trainer);
	UNTIL(is_answered(seq));
	ck_assert_uint_eq(trainer.mem->answer[0].status, ST_OK);
	ck_assert(part_record(p, was, &v) && v.state);
	ck_assert(v.state->r.seq > was && v.state->rank[0].counted == 1);
	ck_assert_double_eq(v.ledger[0].weight, 2);
	ck_assert(atomic_load(&v.rank[0].last_push_unix_ns) > 0);
	/* An engine may die after it wrote the record and before it raised `told`: gaccd, which has read it, does so.
	 */
	struct status_progress *shown =
		(struct status_progress *)((char *)part_map(p, SEG_STATUS, 0, true) + STATUS_PROGRESS_OFFSET);
	atomic_store(&shown->told, was);
	ck_assert(part_record(p, was, &v) && v.state);
	ck_assert_uint_eq(atomic_load(&shown->told), v.state->r.seq);
	ck_assert(part_record(p, v.state->r.seq, &v) && !v.state); /* nothing newer */
	UNTIL(said.rank[0].counted == 1);			   /* with the tick, as no answer came to gaccd */
	ck_assert_double_eq(said.rank[0].weight, 2);
	box_trainer_close(&trainer);
}
END_TEST

/* The bell is lost with the engine: its successor looks at every cell. */
START_TEST(the_next_engine_reads_it_too)
{
	struct part *p = part_with_mailbox();
	uint32_t before = said.engine_up;
	kill((pid_t)rig_engine_pid(p), SIGKILL);
	uint64_t seq = publish(p, 0);
	UNTIL(said.engine_up > before);
	UNTIL(is_answered(seq));
	ck_assert_uint_eq(trainer.mem->answer[0].status, ST_OK);
	UNTIL(said.rank[0].counted == 1);
	box_trainer_close(&trainer);
}
END_TEST

/* A trainer may know from its mailbox what gaccd has not read yet. */
START_TEST(the_engine_is_heard_on_request)
{
	struct part *p = part_with_mailbox();
	uint64_t call = rig_push(p, 0, 0, 1);
	struct record_view v;
	do
		ck_assert(part_record(p, 0, &v));
	while (!v.state || !v.state->rank[0].counted);
	for (int ms = 0; ms < 5000 && !said.answered[call]; ms++, usleep(1000)) /* no turn of the loop */
		part_hear_engine(p);
	ck_assert(said.answered[call]);
	ck_assert_uint_eq(said.reply[call].push.result, PUSH_COUNTED);
	box_trainer_close(&trainer);
}
END_TEST

Suite *mailbox_suite(void)
{
	Suite *s = suite_create("mailboxes");
	TCase *t = tcase_create("mailboxes");
	suite_add_tcase(s, t);
	tcase_set_timeout(t, 150);
	tcase_add_checked_fixture(t, rig_open, rig_close);
	tcase_add_test(t, a_session_has_one_mailbox);
	tcase_add_test(t, a_newer_session_closes_it);
	tcase_add_test(t, the_jobs_end_closes_it);
	tcase_add_test(t, a_job_has_no_more_than_it_is_charged_for);
	tcase_add_test(t, it_leaves_no_descriptor);
	tcase_add_test(t, a_push_counts_and_the_record_says_so);
	tcase_add_test(t, the_next_engine_reads_it_too);
	tcase_add_test(t, the_engine_is_heard_on_request);
	return s;
}

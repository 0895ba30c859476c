/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of packing and reading fails once: the caller is told so, nothing is taken for damaged, and the next
 * try succeeds. */
#include "cluster/event_message.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "cluster/ledger_message.h"
#include "cluster/order_message.h"
#include "cluster/part_view_message.h"
#include "cluster/report_message.h"
#include "cluster/save_message.h"
#include "cluster/tensors_message.h"
#include "cluster/view_record.h"
#include "gacc/v1/job.pb-c.h"
#include "support/nth.h"
#include "support/suite.h"
#include "unit/cluster/no_memory.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 20, MAX_MICRO = 4, WORDS = 2 };
static uint64_t words[WORDS] = { 1, 2 };
static const struct message_bounds bounds = { RANKS, MAX_MICRO, 1 };
static const struct part_ranks part = { RANKS, NULL };

static struct commit some_commit(void)
{
	return (struct commit){ .job_id = 1,
				.window = 7,
				.outcome = OUTCOME_APPLIED,
				.next_micro_size = 1,
				.next = {
					.scale = { 1, 0, 0 }, .norms = { 1, 1, 1, 0 }, .counters = { .applied = 1 } } };
}

static void *pack_commit(size_t *n)
{
	const struct commit k = some_commit();
	return commit_record_pack(&k, words, WORDS, n);
}

static enum status read_commit(const void *bytes, size_t n, char *why)
{
	struct decided k;
	enum status st = commit_record_read(bytes, n, &bounds, 7, &k, why, 200);
	if (!st)
		free(k.counted);
	return st;
}

static const struct update some_update = { 9, 15, { 4, 0.1, 0.2, 0.3 } };

static void *pack_update(size_t *n)
{
	return update_record_pack(&some_update, n);
}

static enum status read_update(const void *bytes, size_t n, char *why)
{
	struct update u;
	return update_record_read(bytes, n, 9, &u, why, 200);
}

static void *pack_restored(size_t *n)
{
	const struct restored b = {
		.window = 8, .has_last = true, .last = some_commit(), .n_updates = 1, .update = { some_update }
	};
	return restored_record_pack(&b, n);
}

static enum status read_restored(const void *bytes, size_t n, char *why)
{
	struct restored b;
	return restored_record_read(bytes, n, &b, why, 200);
}

static void *pack_view(size_t *n)
{
	const struct view_head h = { .ranks = 1, .launch_mode = LAUNCH_CLIENT, .optimizer = OPTIM_SGD };
	Gacc__V1__Job job = GACC__V1__JOB__INIT;
	job.uuid = (char *)"its uuid";
	return view_record_pack(&h, &job, n);
}

static enum status read_view(const void *bytes, size_t n, char *why)
{
	struct view_head h;
	Gacc__V1__Job *job = NULL;
	enum status st = view_record_read(bytes, n, &h, &job, why, 200);
	if (job)
		gacc__v1__job__free_unpacked(job, NULL);
	return st;
}

static void *pack_report(size_t *n)
{
	struct rank_progress rank[RANKS] = { 0 };
	for (uint32_t i = 0; i < RANKS; i++)
		rank[i].rank = i;
	const struct report r = { .rank = rank, .n_ranks = RANKS, .counted = words, .n_words = WORDS };
	return report_pack(&r, n);
}

static enum status read_report(const void *bytes, size_t n, char *why)
{
	struct report r;
	enum status st = report_unpack(bytes, n, &part, &bounds, &r, why, 200);
	if (!st)
		report_release(&r);
	return st;
}

static void *pack_order(size_t *n)
{
	const struct late_rank late = { .rank = 1 };
	struct order o = { .job_id = 1, .window = 7, .want = WANT_COMMIT, .late = &late, .n_late = 1 };
	o.commit = some_commit();
	return order_pack(&o, n);
}

static enum status read_order(const void *bytes, size_t n, char *why)
{
	struct held_order o;
	return order_unpack(bytes, n, &bounds, &o, why, 200);
}

static void *pack_placement(size_t *n)
{
	const uint32_t rank = 3;
	const struct decided window = { some_commit(), words, 1 };
	const struct part_restore restore = { { .micro_size = 1 }, "/x", 2 };
	const struct placement p = { .job_id = 1,
				     .epoch = 1,
				     .n_parts = 1,
				     .ranks = RANKS,
				     .max_micro_size = MAX_MICRO,
				     .begin = PLACEMENT_RESTORE,
				     .user = "ann",
				     .node = "b",
				     .rank = &rank,
				     .n_ranks = 1,
				     .spec = { "x", 1 },
				     .window = &window,
				     .n_windows = 1,
				     .restore = &restore };
	return placement_pack(&p, n);
}

static enum status read_placement(const void *bytes, size_t n, char *why)
{
	struct held_placement p;
	enum status st = placement_unpack(bytes, n, NULL, &p, why, 200);
	if (!st)
		placement_release(&p);
	return st;
}

static void *pack_placed(size_t *n)
{
	const struct placed p = { .job_id = 1, .epoch = 1, .refused = true, .status = ST_INTERNAL, .text = "why" };
	return placed_pack(&p, n);
}

static enum status read_placed(const void *bytes, size_t n, char *why)
{
	struct placed p;
	return placed_unpack(bytes, n, &p, why, 200);
}

static void *pack_drop(size_t *n)
{
	return drop_pack(&(struct drop){ .job_id = 1, .epoch = 1 }, n);
}

static enum status read_drop(const void *bytes, size_t n, char *why)
{
	struct drop d;
	return drop_unpack(bytes, n, &d, why, 200);
}

static void *pack_event(size_t *n)
{
	const struct part_event e = { .epoch = 1, .rank = 1, .reason = "Lost", .text = "why" };
	return event_pack(&e, n);
}

static enum status read_event(const void *bytes, size_t n, char *why)
{
	struct part_event e;
	return event_unpack(bytes, n, RANKS, &e, why, 200);
}

/* Whole, as from a stream. */
static void *pack_set(size_t *n)
{
	char *data = malloc(3);
	struct shared *set = data ? shared_new(memcpy(data, "set", 3), 3) : NULL;
	void *head = set ? tensor_set_pack(&(struct part_tensor_set){ 1, 1, 0 }, set, n) : NULL;
	void *whole = head ? malloc(*n + 3) : NULL;
	if (whole) {
		memcpy(whole, head, *n);
		memcpy((char *)whole + *n, "set", 3);
		*n += 3;
	}
	if (!set)
		free(data);
	free(head);
	shared_drop(set);
	return whole;
}

static enum status read_set(const void *bytes, size_t n, char *why)
{
	struct part_tensor_set t;
	struct shared *set;
	enum status st = tensor_set_unpack(bytes, n, NULL, &t, &set, why, 200);
	if (!st)
		shared_drop(set);
	return st;
}

static void *pack_kept(size_t *n)
{
	return tensors_kept_pack(&(struct tensors_kept){ 1, 1, 0, ST_INTERNAL }, n);
}

static enum status read_kept(const void *bytes, size_t n, char *why)
{
	struct tensors_kept k;
	return tensors_kept_unpack(bytes, n, &k, why, 200);
}

static void *pack_save(size_t *n)
{
	return save_pack(&(struct save){ .epoch = 1, .term = 1, .number = 1, .path = "/a" }, n);
}

static enum status read_save(const void *bytes, size_t n, char *why)
{
	struct save s;
	return save_unpack(bytes, n, &s, why, 200);
}

static void *pack_saved(size_t *n)
{
	return saved_pack(&(struct part_saved){ .epoch = 1, .term = 1, .number = 1 }, n);
}

static enum status read_saved(const void *bytes, size_t n, char *why)
{
	struct part_saved s;
	return saved_unpack(bytes, n, RANKS, &s, why, 200);
}

static void *pack_part_view(size_t *n)
{
	const struct part_view v = {
		.epoch = 1, .incarnation = 1, .number = 1, .n_buffers = 1, .buffer = { { .kind = "slots" } }
	};
	return part_view_pack(&v, n);
}

static enum status read_part_view(const void *bytes, size_t n, char *why)
{
	struct part_view v;
	return part_view_unpack(bytes, n, &v, why, 200);
}

static void *pack_ledger(size_t *n)
{
	uint32_t index = 1;
	double value = 1;
	uint64_t key = 1;
	int64_t when = 1;
	const struct part_ledger l = { .epoch = 1,
				       .incarnation = 1,
				       .total = 1,
				       .n = 1,
				       .rank = &index,
				       .micro = &index,
				       .weight = &value,
				       .loss = &value,
				       .data_key = &key,
				       .unix_nanos = &when };
	return ledger_pack(&l, n);
}

static enum status read_ledger(const void *bytes, size_t n, char *why)
{
	struct part_ledger l;
	enum status st = ledger_unpack(bytes, n, &bounds, &l, why, 200);
	if (!st)
		ledger_release(&l);
	return st;
}

static const struct no_memory_kind kinds[] = {
	{ "COMMIT", pack_commit, read_commit },
	{ "UPDATE", pack_update, read_update },
	{ "RESTORED", pack_restored, read_restored },
	{ "VIEW", pack_view, read_view },
	{ "Report", pack_report, read_report },
	{ "Order", pack_order, read_order },
	{ "Placement", pack_placement, read_placement },
	{ "Placed", pack_placed, read_placed },
	{ "Drop", pack_drop, read_drop },
	{ "PartEvent", pack_event, read_event },
	{ "TensorSet", pack_set, read_set },
	{ "TensorsKept", pack_kept, read_kept },
	{ "Save", pack_save, read_save },
	{ "Saved", pack_saved, read_saved },
	{ "PartView", pack_part_view, read_part_view },
	{ "PartLedger", pack_ledger, read_ledger },
};

#define KINDS (sizeof(kinds) / sizeof(*kinds))

START_TEST(no_memory_is_said)
{
	const struct no_memory_kind *kind = _i < (int)KINDS ? &kinds[_i] : &no_memory_links[_i - (int)KINDS];
	char why[200] = "";
	size_t n = 0;
	unsigned k;
	void *bytes = NULL;
	for (k = 1; k < 10 && !bytes; k++) {
		nth_alloc_arm(k, true);
		bytes = kind->pack(&n);
		nth_alloc_disarm();
	}
	ck_assert_msg(bytes && k > 2, "%s: packed at try %u", kind->name, k - 1);
	enum status st = ST_NO_MEMORY;
	for (k = 1; k < 100 && st; k++) {
		nth_alloc_arm(k, true);
		st = kind->read(bytes, n, why);
		nth_alloc_disarm();
		ck_assert_msg(!st || st == ST_NO_MEMORY, "%s: allocation %u: %s", kind->name, k, why);
	}
	ck_assert_msg(!st && k > 2, "%s: read at try %u", kind->name, k - 1);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("no memory");
	TCase *c = tcase_create("no memory");
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, no_memory_is_said, 0, (int)(KINDS + no_memory_n_links));
	return suite_run(s);
}

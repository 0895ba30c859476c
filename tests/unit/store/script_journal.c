/* SPDX-License-Identifier: Apache-2.0 */
/* What torture_journal.c and cuts_journal.c write into a journal, and what it says then. */
#include "script_journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- writing ---- */

static struct journal_record job(uint64_t id)
{
	struct journal_record r = { .kind = JOURNAL_JOB };
	r.job = (struct journal_job){
		.id = id, .uid = 1000, .user = "ana", .created_unix_ns = 5, .spec = { "spec", 4 }
	};
	memset(r.job.uuid, (int)id, 16);
	memset(r.job.request_id, (int)id + 100, 16);
	return r;
}

static enum status tensors(struct journal *j, uint64_t term)
{
	static char set[40000]; /* several pages */
	memset(set, 't', sizeof(set));
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { 1, { set, sizeof(set) } } };
	return journal_commit(j, term, &r, 1);
}

static enum status window(struct journal *j, uint64_t term, uint64_t number)
{
	uint64_t payload[100];
	for (int i = 0; i < 100; i++)
		payload[i] = number * 1000003 + (uint64_t)i;
	struct journal_record r = { .kind = JOURNAL_COMMIT };
	r.commit = (struct journal_window){ 1,		1,    number,
					    number + 1, term, number + 7,
					    1,		1234, { payload, sizeof(payload) } };
	return journal_commit(j, term, &r, 1);
}

static struct journal_record part(uint32_t number)
{
	static char placement[9000];
	memset(placement, 'p', sizeof(placement));
	return (struct journal_record){
		.kind = JOURNAL_PART,
		.part = { .job = 5, .part = number, .placement = { placement, sizeof(placement) } }
	};
}

static enum status batch(struct journal *j, uint64_t term)
{
	struct journal_record r[] = { job(2),
				      { .kind = JOURNAL_PARAMS_READY, .params_ready = { 2 } },
				      { .kind = JOURNAL_END,
					.end = { .job = 2, .state = 7, .reason = "cancelled", .unix_ns = 99 } },
				      part(0),
				      part(1),
				      { .kind = JOURNAL_PART_TENSORS, .part_tensors = { 5, 1, { "set", 3 } } },
				      { .kind = JOURNAL_PART_BEGUN, .part_begun = { 5, 1 } },
				      { .kind = JOURNAL_PART_GONE, .part_gone = { 5, 0 } } };
	_Static_assert(sizeof(r) / sizeof(*r) == SCRIPT_BATCH_RECORDS, "as the header says");
	return journal_commit(j, term, r, SCRIPT_BATCH_RECORDS);
}

static enum status end(struct journal *j, uint64_t term)
{
	struct journal_record r = { .kind = JOURNAL_END,
				    .end = { .job = 1, .state = 7, .reason = "steps reached", .unix_ns = 99 } };
	return journal_commit(j, term, &r, 1);
}

static enum status ready(struct journal *j, uint64_t term)
{
	struct journal_record r = { .kind = JOURNAL_PARAMS_READY, .params_ready = { 1 } };
	return journal_commit(j, term, &r, 1);
}

static enum status update(struct journal *j, uint64_t term)
{
	struct journal_record r = { .kind = JOURNAL_UPDATE, .update = { 1, 3, { "update", 6 } } };
	return journal_commit(j, term, &r, 1);
}

enum status script_operation(struct journal *j, int at, uint64_t *term)
{
	uint64_t unused;
	struct journal_record first = job(1);
	if (at >= 6 && at < 6 + SCRIPT_WINDOWS)
		return window(j, *term, (uint64_t)at - 6);
	switch (at) {
	case 0:
		return journal_take_incarnation(j, &unused);
	case 1:
		return journal_take_term(j, term);
	case 2:
		return journal_commit(j, *term, &first, 1);
	case 3:
		return tensors(j, *term);
	case 4:
		return ready(j, *term);
	case 5:
		return update(j, *term);
	case 6 + SCRIPT_WINDOWS:
		return batch(j, *term);
	default:
		return end(j, *term);
	}
}
/* ---- reading ---- */

static void add_bytes(struct script_text *t, const char *name, struct journal_bytes b)
{
	uint64_t sum = b.n;
	for (size_t i = 0; i < b.n; i++)
		sum = sum * 31 + ((const unsigned char *)b.data)[i];
	t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n, " %s %zu:%" PRIx64, name, b.n, sum);
}

static enum status add_job(void *arg, const struct journal_job *b)
{
	struct script_text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n,
				 "job %" PRIu64 " user %s uuid %u ready %d next %" PRIu64 " ended %d %u %s", b->id,
				 b->user, b->uuid[15], b->params_ready, b->next_window, b->ended, b->end_state,
				 b->end_reason);
	add_bytes(t, "spec", b->spec);
	add_bytes(t, "tensors", b->tensors);
	t->s[t->n++] = '\n';
	return ST_OK;
}

static enum status add_window(void *arg, const struct journal_window *w)
{
	struct script_text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n, "window %" PRIu64 " step %" PRIu64 " term %" PRIu64,
				 w->window, w->applied_step, w->term);
	add_bytes(t, "payload", w->payload);
	t->s[t->n++] = '\n';
	return ST_OK;
}

static enum status add_update(void *arg, const struct journal_update *u)
{
	struct script_text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n, "update from %" PRIu64, u->window);
	add_bytes(t, "payload", u->payload);
	t->s[t->n++] = '\n';
	return ST_OK;
}

static enum status add_part(void *arg, const struct journal_part *p)
{
	struct script_text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n, "part %" PRIu64 ".%u begun %d", p->job, p->part,
				 p->begun);
	add_bytes(t, "placement", p->placement);
	add_bytes(t, "tensors", p->tensors);
	t->s[t->n++] = '\n';
	return ST_OK;
}

enum status script_describe(struct journal *j, struct script_text *t)
{
	uint64_t last = 0;
	memset(t, 0, sizeof(*t));
	enum status st = journal_last_job(j, &last);
	t->n = (size_t)snprintf(t->s, sizeof(t->s), "last job %" PRIu64 "\n", last);
	if (!st)
		st = journal_each_job(j, true, add_job, t);
	if (!st)
		st = journal_each_window(j, 1, UINT64_MAX, add_window, t);
	if (!st)
		st = journal_each_update(j, 1, add_update, t);
	if (!st)
		st = journal_each_part(j, add_part, t);
	return st;
}

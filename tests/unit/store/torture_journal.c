/* The journal while calls fail: what was acknowledged is there, nothing else but perhaps the batch that failed, and the next life
 * can write. */
#include "store/journal.h"

#include "torture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS 20 /* more than JOURNAL_KEEP_PAYLOADS */

/* ---- the script ---- */

static struct journal_record job(uint64_t id)
{
	struct journal_record r = { .kind = JOURNAL_JOB };
	r.job = (struct journal_job){ .id = id, .uid = 1000, .user = "ana", .created_unix_ns = 5, .spec = { "spec", 4 } };
	memset(r.job.uuid, (int)id, 16);
	memset(r.job.request_id, (int)id + 100, 16);
	return r;
}

static enum status tensors(struct journal *j, uint64_t term)
{
	static char set[40000]; /* several pages */
	memset(set, 't', sizeof set);
	struct journal_record r = { .kind = JOURNAL_TENSORS, .tensors = { 1, { set, sizeof set } } };
	return journal_commit(j, term, &r, 1);
}

static enum status window(struct journal *j, uint64_t term, uint64_t number)
{
	uint64_t payload[100];
	for (int i = 0; i < 100; i++)
		payload[i] = number * 1000003 + (uint64_t)i;
	struct journal_record r = { .kind = JOURNAL_COMMIT };
	r.commit = (struct journal_window){ 1, 1, number, number + 1, term, number + 7, 1, 1234, { payload, sizeof payload } };
	return journal_commit(j, term, &r, 1);
}

static enum status batch(struct journal *j, uint64_t term)
{
	struct journal_record r[3] = { job(2), { .kind = JOURNAL_PARAMS_READY, .params_ready = { 2 } },
				       { .kind = JOURNAL_END, .end = { .job = 2, .state = 7, .reason = "cancelled", .unix_ns = 99 } } };
	return journal_commit(j, term, r, 3);
}

static enum status end(struct journal *j, uint64_t term)
{
	struct journal_record r = { .kind = JOURNAL_END, .end = { .job = 1, .state = 7, .reason = "steps reached", .unix_ns = 99 } };
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

/* Operation `at` of the script; the term is taken once and kept. */
static enum status operation(struct journal *j, int at, uint64_t *term)
{
	uint64_t unused;
	struct journal_record first = job(1);
	if (at >= 6 && at < 6 + WINDOWS)
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
	case 6 + WINDOWS:
		return batch(j, *term);
	default:
		return end(j, *term);
	}
}
#define OPERATIONS (6 + WINDOWS + 2)

static void path_of(const char *dir, char out[128])
{
	snprintf(out, 128, "%s/journal.sqlite", dir);
}

/* As gaccd: after the first failure of the store it goes no further than to close. */
static void script(const char *dir, struct torture_log *log)
{
	struct journal *j = NULL;
	char path[128];
	uint64_t term = 0;
	path_of(dir, path);
	enum status st = journal_open(path, &j);
	torture_note(log, st);
	for (int i = 0; i < OPERATIONS && !st; i++) {
		st = operation(j, i, &term);
		torture_note(log, st);
	}
	if (st == ST_STORE_FAILED && j && journal_take_term(j, &term) != ST_STORE_FAILED)
		torture_fail("the journal works on after a failure");
	journal_close(j);
}

/* ---- what is in the journal, as a text ---- */

struct text {
	char s[16384];
	size_t n;
};

static void add_bytes(struct text *t, const char *name, struct journal_bytes b)
{
	uint64_t sum = b.n;
	for (size_t i = 0; i < b.n; i++)
		sum = sum * 31 + ((const unsigned char *)b.data)[i];
	t->n += (size_t)snprintf(t->s + t->n, sizeof t->s - t->n, " %s %zu:%" PRIx64, name, b.n, sum);
}

static enum status add_job(void *arg, const struct journal_job *b)
{
	struct text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof t->s - t->n, "job %" PRIu64 " user %s uuid %u ready %d next %" PRIu64 " ended %d %u %s", b->id,
				 b->user, b->uuid[15], b->params_ready, b->next_window, b->ended, b->end_state, b->end_reason);
	add_bytes(t, "spec", b->spec);
	add_bytes(t, "tensors", b->tensors);
	t->s[t->n++] = '\n';
	return ST_OK;
}

static enum status add_window(void *arg, const struct journal_window *w)
{
	struct text *t = arg;
	t->n += (size_t)snprintf(t->s + t->n, sizeof t->s - t->n, "window %" PRIu64 " step %" PRIu64 " term %" PRIu64, w->window, w->applied_step,
				 w->term);
	add_bytes(t, "payload", w->payload);
	t->s[t->n++] = '\n';
	return ST_OK;
}

static enum status describe(struct journal *j, struct text *t)
{
	uint64_t last = 0;
	memset(t, 0, sizeof *t);
	enum status st = journal_last_job(j, &last);
	t->n = (size_t)snprintf(t->s, sizeof t->s, "last job %" PRIu64 "\n", last);
	if (!st)
		st = journal_each_job(j, true, add_job, t);
	if (!st)
		st = journal_each_window(j, 1, UINT64_MAX, add_window, t);
	return st;
}

/* ---- the judge ---- */

static struct text after[OPERATIONS + 1]; /* what the journal says after each operation of an undisturbed run */

static void prepare(const char *dir)
{
	struct journal *j;
	char path[128];
	uint64_t term;
	path_of(dir, path);
	if (journal_open(path, &j) || describe(j, &after[0]))
		torture_fail("cannot make what is expected");
	for (int i = 0; i < OPERATIONS; i++)
		if (operation(j, i, &term) || describe(j, &after[i + 1]))
			torture_fail("operation %d of the undisturbed run failed", i);
	journal_close(j);
}

static void judge(const char *dir, const struct torture_log *log)
{
	static struct text found;
	struct journal *j;
	char path[128];
	uint64_t term, incarnation;
	int acked = -1; /* operations after the opening */
	while (acked + 1 < log->n && log->status[acked + 1] == ST_OK)
		acked++;
	bool refused = (acked == 2 || acked == 3) && acked + 1 < log->n && log->status[acked + 1] == ST_RESOURCE_EXHAUSTED; /* JOB, TENSORS */
	for (int i = acked + 1 + refused; i < log->n; i++)
		if (log->status[i] != ST_STORE_FAILED && log->status[i] != ST_NO_MEMORY)
			torture_fail("operation %d: %s", i, status_info(log->status[i])->name);
	path_of(dir, path);
	if (journal_open(path, &j))
		torture_fail("it cannot be opened again");
	if (describe(j, &found))
		torture_fail("it cannot be read");
	int low = acked < 0 ? 0 : acked, high = low < OPERATIONS && !refused ? low + 1 : low;
	if (strcmp(found.s, after[low].s) && strcmp(found.s, after[high].s))
		torture_fail("after %d operations:\n%s\nnot\n%s", acked, found.s, after[low].s);
	if (journal_take_term(j, &term) || journal_take_incarnation(j, &incarnation))
		torture_fail("it cannot be written");
	if (term < (acked >= 2 ? 2u : 1u) || incarnation < (acked >= 1 ? 2u : 1u))
		torture_fail("term %" PRIu64 ", incarnation %" PRIu64 " go back", term, incarnation);
	journal_close(j);
}

int main(int argc, char **argv)
{
	static const struct torture t = { .name = "journal", .prepare = prepare, .script = script, .judge = judge,
					  .may_lose = "-wal" /* laid out in advance: zeros */ };
	return torture_main(argc, argv, &t, 3, 17);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The journal while calls fail: what was acknowledged is there, nothing else but perhaps the batch that failed, and the
 * next life can write. */
#include "store/journal.h"

#include "script.h"
#include "script_journal.h"
#include "torture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void path_of(const char *dir, char out[128])
{
	snprintf(out, 128, "%s/journal.sqlite", dir);
}

/* ---- the script ---- */

/* As gaccd: after the first failure of the store it goes no further than to close. */
static void script(const char *dir, struct torture_log *log)
{
	struct journal *j = NULL;
	char path[128];
	uint64_t term = 0;
	path_of(dir, path);
	enum status st = journal_open(path, &j);
	torture_note(log, st);
	for (int i = 0; i < SCRIPT_OPERATIONS && !st; i++) {
		st = script_operation(j, i, &term);
		torture_note(log, st);
	}
	if (st == ST_STORE_FAILED && j && journal_take_term(j, &term) != ST_STORE_FAILED)
		script_fail("the journal works on after a failure");
	journal_close(j);
}

/* ---- the judge ---- */

/* what the journal says after each operation of an undisturbed run */
static struct script_text after[SCRIPT_OPERATIONS + 1];

static void prepare(const char *dir)
{
	struct journal *j;
	char path[128];
	uint64_t term;
	path_of(dir, path);
	if (journal_open(path, &j) || script_describe(j, &after[0]))
		script_fail("cannot make what is expected");
	for (int i = 0; i < SCRIPT_OPERATIONS; i++)
		if (script_operation(j, i, &term) || script_describe(j, &after[i + 1]))
			script_fail("operation %d of the undisturbed run failed", i);
	journal_close(j);
}

static void judge(const char *dir, const struct torture_log *log)
{
	static struct script_text found;
	struct journal *j;
	char path[128];
	uint64_t term, incarnation;
	int acked = -1; /* operations after the opening */
	while (acked + 1 < log->n && log->status[acked + 1] == ST_OK)
		acked++;
	/* JOB, TENSORS */
	bool refused =
		(acked == 2 || acked == 3) && acked + 1 < log->n && log->status[acked + 1] == ST_RESOURCE_EXHAUSTED;
	for (int i = acked + 1 + refused; i < log->n; i++)
		if (log->status[i] != ST_STORE_FAILED && log->status[i] != ST_NO_MEMORY)
			script_fail("operation %d: %s", i, status_info(log->status[i])->name);
	path_of(dir, path);
	if (journal_open(path, &j))
		script_fail("it cannot be opened again");
	if (script_describe(j, &found))
		script_fail("it cannot be read");
	int low = acked < 0 ? 0 : acked, high = low < SCRIPT_OPERATIONS && !refused ? low + 1 : low;
	if (strcmp(found.s, after[low].s) && strcmp(found.s, after[high].s))
		script_fail("after %d operations:\n%s\nnot\n%s", acked, found.s, after[low].s);
	if (journal_take_term(j, &term) || journal_take_incarnation(j, &incarnation))
		script_fail("it cannot be written");
	if (term < (acked >= 2 ? 2u : 1u) || incarnation < (acked >= 1 ? 2u : 1u))
		script_fail("term %" PRIu64 ", incarnation %" PRIu64 " go back", term, incarnation);
	journal_close(j);
}

int main(int argc, char **argv)
{
	static const struct torture t = { .name = "journal",
					  .prepare = prepare,
					  .script = script,
					  .judge = judge,
					  .may_lose = "-wal" /* laid out in advance: zeros */ };
	return torture_main(argc, argv, &t, 23, 127);
}

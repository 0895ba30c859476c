/* SPDX-License-Identifier: Apache-2.0 */
/* The journal after power cuts: it opens, it has what was acknowledged and nothing but perhaps the batch that was under
 * way, it can be written, and it is never taken for damaged. */
#include "store/anchor.h"
#include "store/journal.h"
#include "cuts.h"
#include "script.h"
#include "script_journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the operations: the script's, with larger ones between, so that the log is moved into the file on the way ----
 */

#define LARGE_EVERY 3 /* windows */
#define LARGE_BYTES 700000
#define LARGE (SCRIPT_WINDOWS / LARGE_EVERY)
#define OPERATIONS (SCRIPT_OPERATIONS + LARGE)

/* Which of the script's, or -1. */
static int of_script(int at)
{
	int window = at - SCRIPT_FIRST_WINDOW;
	if (window < 0)
		return at;
	if (window >= LARGE * (LARGE_EVERY + 1))
		return at - LARGE;
	return window % (LARGE_EVERY + 1) == LARGE_EVERY ? -1
							 : SCRIPT_FIRST_WINDOW + window - window / (LARGE_EVERY + 1);
}

static enum status large(struct journal *j, uint64_t term, int at)
{
	static char data[LARGE_BYTES];
	memset(data, 'a' + at % 26, sizeof(data));
	struct journal_record r = { .kind = JOURNAL_UPDATE, .update = { 1, (uint64_t)at, { data, sizeof(data) } } };
	return journal_commit(j, term, &r, 1);
}

static enum status operation(struct journal *j, int at)
{
	uint64_t term = 1;
	return of_script(at) < 0 ? large(j, term, at) : script_operation(j, of_script(at), &term);
}

static uint64_t records_of(int at)
{
	return of_script(at) == SCRIPT_BATCH ? SCRIPT_BATCH_RECORDS : 1;
}

/* ---- what is expected ---- */

/* what the journal says after so many operations of an undisturbed run */
static struct script_text after[OPERATIONS + 1];
static uint64_t records_after[OPERATIONS + 1];

static void path_of(const char *dir, char out[128])
{
	snprintf(out, 128, "%s/journal.sqlite", dir);
}

static void prepare(const char *dir)
{
	struct journal *j;
	char path[128];
	path_of(dir, path);
	if (journal_open(path, &j) || script_describe(j, &after[0]))
		script_fail("cannot make what is expected");
	for (int i = 0; i < OPERATIONS; i++) {
		if (operation(j, i) || script_describe(j, &after[i + 1]))
			script_fail("operation %d of the undisturbed run failed", i);
		records_after[i + 1] = records_after[i] + records_of(i);
	}
	journal_close(j);
}

/* What its anchor file says. */
static uint64_t noted(const char *path)
{
	char name[140];
	struct anchor a;
	snprintf(name, sizeof(name), "%s.anchor", path);
	if (anchor_read(&a, name, -1))
		script_fail("its anchor cannot be read");
	uint64_t records = a.file.found ? a.file.mark.records : 0;
	anchor_close(&a);
	return records;
}

/* How many operations it has. Opening it brings the anchor up to what it has. */
static int operations_in(struct journal *j, const char *path)
{
	static struct script_text found;
	uint64_t records = noted(path);
	int k = 0;
	while (k <= OPERATIONS && records_after[k] != records)
		k++;
	if (k > OPERATIONS)
		script_fail("it has %" PRIu64 " records: half a batch, or more than were written", records);
	if (script_describe(j, &found))
		script_fail("it cannot be read");
	if (strcmp(found.s, after[k].s) != 0)
		script_fail("after %d operations:\n%s\nnot\n%s", k, found.s, after[k].s);
	return k;
}

/* ---- life and judge ---- */

static bool settles(int at)
{
	return at % 5 == 4;
}

static void life(const char *dir, int from)
{
	struct journal *j;
	char path[128];
	path_of(dir, path);
	if (journal_open(path, &j))
		script_fail("it cannot be opened again");
	for (int at = operations_in(j, path); at < OPERATIONS; at++) {
		cuts_begins(at);
		if (operation(j, at) || (settles(at) && journal_settle(j)))
			script_fail("operation %d failed", at);
		cuts_done(at);
	}
	journal_close(j);
}

static void judge(const char *dir, int low, int high)
{
	struct journal *j;
	char path[128];
	path_of(dir, path);
	for (int at = low - 1, settled = 0; at >= 0 && !settled; at--) {
		settled = settles(at);
		if (settled && noted(path) < records_after[at + 1])
			script_fail("the anchor has %" PRIu64 " records, and %" PRIu64 " had been settled", noted(path),
				    records_after[at + 1]);
	}
	if (journal_open(path, &j))
		script_fail("it cannot be opened again");
	int k = operations_in(j, path);
	if (k < low || k > high)
		script_fail("it has %d operations", k);
	if (k < OPERATIONS && operation(j, k))
		script_fail("operation %d cannot be made", k);
	journal_close(j);
	if (journal_open(path, &j) || operations_in(j, path) != (k < OPERATIONS ? k + 1 : k))
		script_fail("the next life's operation is not there");
	journal_close(j);
}

int main(int argc, char **argv)
{
	static const struct cuts c = {
		.name = "journal", .operations = OPERATIONS, .prepare = prepare, .life = life, .judge = judge
	};
	return cuts_main(argc, argv, &c);
}

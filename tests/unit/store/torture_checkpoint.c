/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints while calls fail: one that was acknowledged is there whole, one that was not is there whole or not at
 * all, and what a failure leaves behind is swept away. */
#include "store/checkpoint.h"

#include "script.h"
#include "script_checkpoint.h"
#include "torture.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the script ---- */

enum { MAKE_1, MAKE_2, LOAD_1, DROP_1, MAKE_3, SWEEP, LOAD_2, OPERATIONS };

/* Whose files the second one becomes: another user's, where this process may do that. */
static uint32_t other(void)
{
	return geteuid() ? geteuid() : 12345;
}

/* As a job: a failed checkpoint is reported, and training goes on to the next. */
static void script(const char *root, struct torture_log *log)
{
	char dir[128];
	snprintf(dir, sizeof(dir), "%s/job/here", root);
	for (int i = 0; i < OPERATIONS; i++)
		torture_note(log, i == MAKE_1	? script_make(dir, 1, geteuid())
				  : i == MAKE_2 ? script_make(dir, 2, other())
				  : i == LOAD_1 ? script_load(dir, 1)
				  : i == DROP_1 ? script_drop(dir, 1)
				  : i == MAKE_3 ? script_make(dir, 3, geteuid())
				  : i == SWEEP	? script_sweep(dir)
						: script_load(dir, 2));
}

/* ---- the judge ---- */

static void judge(const char *root, const struct torture_log *log)
{
	char dir[128], why[512];
	int fd, failures = 0;
	snprintf(dir, sizeof(dir), "%s/job/here", root);
	if (log->n != OPERATIONS)
		script_fail("%d operations", log->n);
	for (int i = 0; i < log->n; i++) {
		failures += log->status[i] != ST_OK;
		if (log->status[i] && log->status[i] != ST_IO_ERROR && log->status[i] != ST_NO_MEMORY && i != LOAD_1 &&
		    i != LOAD_2)
			script_fail("operation %d: %s", i, status_info(log->status[i])->name);
	}
	if (failures > 2)
		script_fail("one fault, %d failures", failures);
	if (checkpoint_open_dir(dir, true, &fd, why, sizeof(why)))
		script_fail("%s", why);
	close(fd);
	if (script_is_there(dir, 1) && log->status[DROP_1] == ST_OK)
		script_fail("checkpoint 1 is still there");
	for (uint64_t id = 2; id <= 3; id++)
		if (!script_is_there(dir, id) && log->status[id == 2 ? MAKE_2 : MAKE_3] == ST_OK)
			script_fail("checkpoint %" PRIu64 " is not there", id);
	if (log->status[LOAD_1] != ST_OK && log->status[MAKE_1] == ST_OK && !log->fired)
		script_fail("checkpoint 1 could not be read");
	if (script_sweep(dir))
		script_fail("the sweep fails");
	script_check_swept(dir);
	if (script_make(dir, 4, geteuid()) || !script_is_there(dir, 4))
		script_fail("no new checkpoint can be made");
}

static void prepare(const char *root)
{
	struct torture_log log = { .n = 0 };
	script(root, &log);
	for (int i = 0; i < OPERATIONS; i++)
		if (log.status[i] != ST_OK)
			script_fail("operation %d of the undisturbed run failed", i);
	judge(root, &log);
}

int main(int argc, char **argv)
{
	static const struct torture t = { .name = "checkpoint", .prepare = prepare, .script = script, .judge = judge };
	return torture_main(argc, argv, &t, 3, 7);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints after power cuts: one that was acknowledged is there whole, one that was deleted is gone whole, one under
 * way is there whole or not at all, and what a cut leaves behind is swept away by the next life. */
#include "store/checkpoint.h"

#include "cuts.h"
#include "script.h"
#include "script_checkpoint.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Even ones make the next checkpoint, odd ones delete the one before the last. */
#define OPERATIONS 20
#define OPERATIONS_OF_A_LIFE 6
#define KEEP 2

static uint64_t makes(int at)
{
	return at % 2 ? 0 : (uint64_t)at / 2 + 1;
}

static uint64_t drops(int at)
{
	return at % 2 && at / 2 + 1 > KEEP ? (uint64_t)(at / 2 + 1 - KEEP) : 0;
}

/* Whose files they become: every other one another user's, where this process may do that. Giving them away syncs them
 * once more. */
static uint32_t owner(uint64_t id)
{
	return geteuid() || id % 2 ? geteuid() : 12345;
}

static enum status operation(const char *dir, int at)
{
	if (makes(at))
		return script_make(dir, makes(at), owner(makes(at)));
	return drops(at) ? script_drop(dir, drops(at)) : ST_OK;
}

static void dir_of(const char *root, char out[128])
{
	snprintf(out, 128, "%s/job/here", root);
}

/* As gaccd at a job's start. What was under way is made again. */
static void begin(const char *dir, int at)
{
	if (!access(dir, F_OK) && script_sweep(dir))
		script_fail("the sweep fails");
	if (at < OPERATIONS && makes(at) && script_is_there(dir, makes(at)) && script_drop(dir, makes(at)))
		script_fail("what nobody has heard of cannot be deleted");
}

static void life(const char *root, int from)
{
	char dir[128];
	dir_of(root, dir);
	begin(dir, from);
	for (int at = from; at < OPERATIONS && at < from + OPERATIONS_OF_A_LIFE; at++) {
		cuts_begins(at);
		if (operation(dir, at))
			script_fail("operation %d failed", at);
		cuts_done(at);
	}
}

/* What must be true of a checkpoint after so many operations. */
static bool is_made(uint64_t id, int n)
{
	return n >= 2 * (int)id - 1;
}

static bool is_dropped(uint64_t id, int n)
{
	return n >= 2 * ((int)id + KEEP);
}

static void judge(const char *root, int low, int high)
{
	char dir[128];
	dir_of(root, dir);
	for (uint64_t id = 1; id <= OPERATIONS / 2; id++) {
		bool there = script_is_there(dir, id);
		if (!there && is_made(id, low) && !is_dropped(id, high))
			script_fail("checkpoint %" PRIu64 " is not there", id);
		if (there && (!is_made(id, high) || is_dropped(id, low)))
			script_fail("checkpoint %" PRIu64 " is there", id);
		if (is_dropped(id, low) && script_has_files(dir, id))
			script_fail("files of checkpoint %" PRIu64 " are there", id);
	}
	int at = low;
	begin(dir, at);
	script_check_swept(dir);
	if (at < OPERATIONS && operation(dir, at))
		script_fail("operation %d cannot be made", at);
	if (at < OPERATIONS && makes(at) && !script_is_there(dir, makes(at)))
		script_fail("the next life's checkpoint is not there");
}

int main(int argc, char **argv)
{
	static const struct cuts c = {
		.name = "checkpoint", .operations = OPERATIONS, .each = true, .life = life, .judge = judge
	};
	return cuts_main(argc, argv, &c);
}

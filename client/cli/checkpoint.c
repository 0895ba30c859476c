/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl checkpoint save, list, restore: asks gaccd for a checkpoint and waits for it, or starts a job from one.
 * gaccctl's main thread. */
#include "command.h"
#include "job_file.h"
#include "output.h"
#include "signals.h"
#include "submit.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVE_TIMEOUT_MS 600000

static const char *color_of(const gacc_checkpoint_info *c)
{
	return !strcmp(c->state, "FAILED") ? "red" : NULL;
}

static void view_checkpoints(struct invocation *inv, const gacc_checkpoints *all)
{
	static const struct column columns[] = {
		{ "ID", true, false },	     { "STATE", false, false },	 { "STEP", true, false },
		{ "WINDOW", true, false },   { "CARRIED", true, false }, { "SIZE", true, false },
		{ "TRAINERS", true, false }, { "TOOK", true, false },	 { "AGE", true, false },
		{ "PATH", false, false },    { "MESSAGE", false, true }, { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);
	char size[SHORT], when[SHORT];

	for (size_t i = 0; i < all->n; i++) {
		const gacc_checkpoint_info *c = &all->checkpoint[i];

		sheet_row(s, color_of(c));
		sheet_cell(s, "%" PRIu64, c->id);
		sheet_cell(s, "%s", c->state);
		sheet_cell(s, "%" PRIu64, c->applied_step);
		sheet_cell(s, "%" PRIu64, c->window);
		sheet_cell(s, "%" PRIu64, c->carried_micros);
		sheet_cell(s, "%s", bytes(size, c->bytes));
		sheet_cell(s, "%s", c->state_bytes ? bytes(size, c->state_bytes) : "-");
		if (c->ended_unix_nanos)
			sheet_cell(s, "%.2f s", (double)(c->ended_unix_nanos - c->started_unix_nanos) / 1e9);
		else
			sheet_cell(s, "-");
		sheet_cell(s, "%s", age_since(when, c->started_unix_nanos));
		sheet_cell(s, "%s", c->path);
		sheet_cell(s, "%s", *c->message ? c->message : "-");
	}
	sheet_print(s);
}

/* ---- save ---- */

static int say_saved(struct invocation *inv, const char *job, const gacc_checkpoint_info *c)
{
	if (!strcmp(c->state, "FAILED"))
		return fail_with(inv, EXIT_FAILED, "CHECKPOINT_FAILED", NULL, "checkpoint %" PRIu64 ": %s", c->id,
				 c->message);
	if (wants_data(inv))
		return print_json(inv, c->json);
	if (inv->format == FORMAT_NAME)
		tell(inv->out, "%s\n", c->path);
	else if (!*c->path) /* it begins with the next window */
		tell(inv->out, "checkpoint %" PRIu64 " is %s; see: gaccctl checkpoint list %s\n", c->id, c->state, job);
	else
		tell(inv->out, "checkpoint %" PRIu64 " is %s: step %" PRIu64 ", %s\n", c->id, c->state, c->applied_step,
		     c->path);
	return EXIT_OK;
}

static int save(struct invocation *inv, const char *job)
{
	gacc_checkpoints *one;
	int st;

	if (!open_client_for(inv, SAVE_TIMEOUT_MS, &st))
		return st;
	if (gacc_checkpoint_save(inv->client, job, opt_flag(inv, "inside-window"), !opt_flag(inv, "no-wait"), &one))
		return fail_client(inv);
	st = say_saved(inv, job, &one->checkpoint[0]);
	gacc_checkpoints_free(one);
	return st;
}

/* ---- list ---- */

static int list(struct invocation *inv, const char *job)
{
	gacc_checkpoints *all;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_checkpoint_list(inv->client, job, &all))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json_list(inv, "checkpoints", all->checkpoint, all->n);
	else if (inv->format == FORMAT_NAME)
		for (size_t i = 0; i < all->n; i++)
			tell(inv->out, "%s\n", all->checkpoint[i].path);
	else if (!all->n)
		tell(inv->err, "job %s has no checkpoints\n", job);
	else
		view_checkpoints(inv, all);
	gacc_checkpoints_free(all);
	return st;
}

/* ---- restore ---- */

/* The checkpoint with --id, else the newest complete one: its path, malloc'ed. NULL: fail_with() was called. */
static char *choose(struct invocation *inv, const char *job, int *st)
{
	const gacc_checkpoint_info *found = NULL;
	gacc_checkpoints *all;
	char *path = NULL;
	uint64_t id;

	if (!opt_uint(inv, "id", 1, UINT64_MAX, 0, &id, st))
		return NULL;
	if (gacc_checkpoint_list(inv->client, job, &all)) {
		*st = fail_client(inv);
		return NULL;
	}
	for (size_t i = 0; i < all->n; i++)
		if (id ? all->checkpoint[i].id == id : !strcmp(all->checkpoint[i].state, "COMPLETE"))
			found = &all->checkpoint[i];
	if (found)
		path = strdup(found->path);
	gacc_checkpoints_free(all);
	if (!path)
		*st = fail_with(inv, EXIT_NOT_FOUND, "CHECKPOINT_NOT_FOUND", "see: gaccctl checkpoint list JOB",
				"job %s has no %scheckpoint%s", job, id ? "" : "complete ", id ? " of that id" : "");
	return path;
}

/* What the checkpoint in this directory says. */
static gacc_spec *spec_saved(struct invocation *inv, const char *directory, int *st)
{
	char path[PATH_MAX + 16], why[512] = "";
	gacc_spec *spec = NULL;
	char *text;

	snprintf(path, sizeof(path), "%s/manifest.json", directory);
	if (access(path, F_OK) && (errno == ENOENT || errno == ENOTDIR)) {
		*st = fail_with(inv, EXIT_NOT_FOUND, "CHECKPOINT_NOT_FOUND", "see: gaccctl checkpoint list JOB",
				"%s is no checkpoint: there is no manifest.json in it", directory);
		return NULL;
	}
	text = read_file(inv, path, st);
	if (text && gacc_spec_of_manifest(text, path, &spec, why, sizeof(why)))
		*st = fail_with(inv, EXIT_FAILED, "MALFORMED", "give the job file with -f", "%s", why);
	free(text);
	return spec;
}

static gacc_spec *spec_of_job(struct invocation *inv, const char *job, int *st)
{
	gacc_spec *spec = NULL;

	if (gacc_spec_of_job(inv->client, job, &spec))
		*st = fail_client(inv);
	return spec;
}

/* Of the job file with -f, else the one that was saved, with what the command line changes. */
static gacc_spec *spec_to_restore(struct invocation *inv, const char *job, const char *directory, int *st)
{
	gacc_spec *spec;

	if (opt(inv, "file"))
		return submit_spec(inv, st);
	spec = directory ? spec_saved(inv, directory, st) : spec_of_job(inv, job, st);
	if (!spec)
		return NULL;
	if (spec_apply(inv, spec, st) && spec_has_optimizer(inv, spec, st))
		return spec;
	gacc_spec_free(spec);
	return NULL;
}

static int no_directory(struct invocation *inv, const char *path, int error)
{
	if (error == EACCES)
		return fail_denied(inv, path);
	return fail_with(inv, EXIT_NOT_FOUND, "CHECKPOINT_NOT_FOUND", NULL, "no such directory: %s", path);
}

/* From a job, or from a directory. */
static int restore(struct invocation *inv, const char *from)
{
	bool is_path = *from == '/' || *from == '.';
	gacc_spec *spec;
	char *path;
	int st;

	if (opt_flag(inv, "wait"))
		signals_block();				       /* before the library makes threads */
	if (!is_path && !open_client_for(inv, SUBMIT_TIMEOUT_MS, &st)) /* else submit_job does, if it submits */
		return st;
	path = is_path ? realpath(from, NULL) : choose(inv, from, &st);
	if (!path)
		return is_path ? no_directory(inv, from, errno) : st;
	spec = spec_to_restore(inv, from, is_path ? path : NULL, &st);
	if (spec && spec_set(inv, spec, "restore_from", path, &st))
		st = submit_job(inv, spec);
	gacc_spec_free(spec);
	free(path);
	return st;
}

int cmd_checkpoint(struct invocation *inv)
{
	const char *word = inv->operand[0], *job = job_operand(inv->operand[1]);

	if (!strcmp(word, "save"))
		return save(inv, job);
	if (!strcmp(word, "list"))
		return list(inv, job);
	if (!strcmp(word, "restore"))
		return restore(inv, job);
	return fail_usage(inv, "checkpoint %s: save, list or restore is needed", word);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which job and rank this process is, from the environment that gaccd, mpirun, torchrun or Slurm set, and
 * what its user has switched off. Called by gacc_attach and session_run on the caller's thread. */
#include "lib/env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In order of precedence. PMI comes last: srun and mpirun set it beside their own variables. */
static const struct {
	const char *rank, *world;
} pairs[] = {
	{ "GACC_RANK", "GACC_WORLD_SIZE" }, { "RANK", "WORLD_SIZE" },
	{ "SLURM_PROCID", "SLURM_NTASKS" }, { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
	{ "PMI_RANK", "PMI_SIZE" },
};

static const char *const job_vars[] = { "GACC_JOB_ID", "TORCHELASTIC_RUN_ID" };

#define N(a) (sizeof(a) / sizeof((a)[0]))

const char *env_process(void *ctx, const char *name)
{
	return getenv(name);
}

static const char *lookup(env_get get, void *ctx, const char *name)
{
	const char *value = get(ctx, name);

	return value && *value ? value : NULL;
}

static enum status parse(const char *name, const char *text, int *out, char *err, size_t err_size)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (errno || *end || end == text || v < 0 || v > INT_MAX) {
		snprintf(err, err_size, "%s=%s is not a number from 0 on", name, text);
		return ST_INVALID_ARGUMENT;
	}
	*out = (int)v;
	return ST_OK;
}

/* Takes what is still -1 in `id` from pair `i`. Only a half that is needed is read. */
static enum status from_pair(size_t i, const char *rank, const char *world, struct identity *id, char *err,
			     size_t err_size)
{
	enum status st = ST_OK;

	if ((id->rank < 0 && !rank) || (id->world < 0 && !world)) {
		snprintf(err, err_size, "%s is set but %s is not: set both, or give rank and world size",
			 rank ? pairs[i].rank : pairs[i].world, rank ? pairs[i].world : pairs[i].rank);
		return ST_INVALID_ARGUMENT;
	}
	if (id->rank < 0) {
		st = parse(pairs[i].rank, rank, &id->rank, err, err_size);
		id->source = pairs[i].rank;
	}
	if (!st && id->world < 0)
		st = parse(pairs[i].world, world, &id->world, err, err_size);
	return st;
}

static enum status find_rank(struct identity *id, env_get get, void *ctx, char *err, size_t err_size)
{
	for (size_t i = 0; i < N(pairs); i++) {
		const char *rank = lookup(get, ctx, pairs[i].rank), *world = lookup(get, ctx, pairs[i].world);

		if (rank || world)
			return from_pair(i, rank, world, id, err, err_size);
	}
	snprintf(err, err_size,
		 "no rank: give rank and world size, set RANK and WORLD_SIZE, or start with "
		 "\"gaccctl run\", torchrun, srun or mpirun");
	return ST_INVALID_ARGUMENT;
}

enum status identity_find(const char *job, int rank, int world, env_get get, void *ctx, struct identity *out_id,
			  char *err, size_t err_size)
{
	struct identity id = { .job = job && *job ? job : NULL, .rank = rank, .world = world, .source = "argument" };
	enum status st;

	if (rank < 0 || world < 0) {
		st = find_rank(&id, get, ctx, err, err_size);
		if (st)
			return st;
	}
	if (id.world < 1 || id.rank >= id.world) {
		snprintf(err, err_size, "rank %d (from %s) is not in a world of %d", id.rank, id.source, id.world);
		return ST_INVALID_ARGUMENT;
	}
	for (size_t i = 0; !id.job && i < N(job_vars); i++)
		id.job = lookup(get, ctx, job_vars[i]);
	*out_id = id;
	return ST_OK;
}

bool env_may_say(void)
{
	return !lookup(env_process, NULL, "GACC_QUIET");
}

bool env_wants_mailbox(void)
{
	const char *wanted = lookup(env_process, NULL, "GACC_MAILBOX");

	return !wanted || strcmp(wanted, "0") != 0;
}

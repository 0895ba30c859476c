/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank has given to the open window and what it still owes, updated with each change, so that a push looks
 * only at its own rank. Used only by struct job's files, on the loop thread. The bitmaps of the mirror remain the
 * truth; job_counts_wrong compares. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

/* with more ranks job_counts_wrong does not check the canonical order, as that takes time cubic in the ranks */
#define WALK_MAX_RANKS 64

/* ---- what the mirror says of a rank ---- */

bool rank_counted(const struct job *j, const struct rank *r, uint32_t micro)
{
	return control_bit(j->mirror.counted, j->spec->max_micro_size, r->index, micro);
}

bool rank_voided(const struct job *j, const struct rank *r, uint32_t micro)
{
	return control_bit(j->mirror.voided, j->spec->max_micro_size, r->index, micro);
}

bool rank_settled(const struct job *j, const struct rank *r, uint32_t micro)
{
	return rank_counted(j, r, micro) || rank_voided(j, r, micro);
}

uint32_t rank_progress_count(const struct job *j, const struct rank *r)
{
	return j->mirror.rank[r->index].counted + r->voided;
}

bool rank_owes(const struct job *j, const struct rank *r)
{
	return !j->mirror.rank[r->index].flushed && rank_progress_count(j, r) < job_micro_size(j);
}

/* Optimizer CLIENT: it still reads the reduced gradient of the last step. */
static bool rank_reads(const struct job *j, const struct rank *r)
{
	const struct control_rank *c = &j->mirror.rank[r->index];
	return r->has_session && !r->detached && c->flushed != RANK_LEFT && !c->session.step_acked;
}

/* ---- totals over all ranks ---- */

/* One member of a total changes from *was to is. */
static void recount(bool *was, bool is, uint32_t *total)
{
	*total += (uint32_t)is - (uint32_t)*was;
	*was = is;
}

void rank_changed(struct job *j, struct rank *r)
{
	bool left = j->mirror.rank[r->index].flushed == RANK_LEFT;
	recount(&r->owes, rank_owes(j, r), &j->n_owing);
	recount(&r->left, left, &j->n_left);
	recount(&r->reads, rank_reads(j, r), &j->n_reading);
	if (!r->owes && !left && !r->ready_ns && j->run)
		r->ready_ns = j->clock_ns;
}

void rank_settle(struct job *j, struct rank *r, uint32_t micro, bool is_void)
{
	if (rank_settled(j, r, micro))
		return;
	control_set_bit(is_void ? j->mirror.voided : j->mirror.counted, j->spec->max_micro_size, r->index, micro);
	if (is_void) {
		r->first_void = !r->voided || micro < r->first_void ? micro : r->first_void;
		r->voided++;
	} else {
		j->mirror.rank[r->index].counted++;
		j->mirror.r.count++;
	}
	rank_changed(j, r);
}

static void count_voided(struct job *j, struct rank *r)
{
	uint32_t size = job_micro_size(j);
	r->voided = control_count(j->mirror.voided, j->spec->max_micro_size, r->index, size);
	r->first_void = r->voided ? 0 : size;
	while (r->first_void < size && !rank_voided(j, r, r->first_void))
		r->first_void++;
}

void rank_recount(struct job *j, struct rank *r)
{
	count_voided(j, r);
	rank_changed(j, r);
}

void job_recount(struct job *j)
{
	memset(j->missing_at, 0, j->spec->max_micro_size * sizeof(*j->missing_at));
	EACH_RANK(j, r)
	rank_recount(j, r);
}

/* ---- the canonical order ---- */

/* Micro-batch `micro` of rank i is still to come. In canonical order a rank's bits are a prefix. */
static bool is_missing(const struct job *j, uint32_t i, uint32_t micro)
{
	++*j->visited;
	return rank_owes(j, &j->rank[i]) && rank_progress_count(j, &j->rank[i]) <= micro;
}

/* Moves the two cursors of this micro-batch index on to the first two ranks that lack it. Within a window ranks only
 * ever give more, so the cursors never go back: together they visit each rank twice. */
static const struct missing_at *find_missing(const struct job *j, uint32_t micro)
{
	struct missing_at *at = &j->missing_at[micro];
	while (at->first < j->spec->ranks && !is_missing(j, at->first, micro))
		at->first++;
	if (at->second <= at->first)
		at->second = at->first + 1;
	while (at->second < j->spec->ranks && !is_missing(j, at->second, micro))
		at->second++;
	return at;
}

uint32_t rank_blocked_by(const struct job *j, const struct rank *r, uint32_t micro)
{
	if (j->spec->ordering != ORDER_CANONICAL)
		return r->index;
	const struct missing_at *at = find_missing(j, micro);
	if (at->first < r->index)
		return at->first;
	if (!micro) /* a rank with a higher index comes before this one only with an earlier micro-batch */
		return r->index;
	at = find_missing(j, micro - 1);
	uint32_t other = at->first == r->index ? at->second : at->first;
	return other < j->spec->ranks ? other : r->index;
}

uint64_t job_ranks_visited(const struct job *j)
{
	return *j->visited;
}

/* ---- are the counts right? ---- */

static uint32_t blocked_by_walk(const struct job *j, const struct rank *r, uint32_t micro)
{
	for (uint32_t i = 0; i < j->spec->ranks; i++) {
		const struct rank *o = &j->rank[i];
		uint32_t next = rank_progress_count(j, o);
		if (o != r && rank_owes(j, o) && (next < micro || (next == micro && i < r->index)))
			return i;
	}
	return r->index;
}

static bool rank_counts_right(const struct job *j, const struct rank *r)
{
	uint32_t size = job_micro_size(j), max = j->spec->max_micro_size;
	uint32_t counted = control_count(j->mirror.counted, max, r->index, size);
	uint32_t voided = control_count(j->mirror.voided, max, r->index, size);
	uint32_t flushed = j->mirror.rank[r->index].flushed;
	if (counted != j->mirror.rank[r->index].counted || voided != r->voided ||
	    (voided && !rank_voided(j, r, r->first_void)) || r->owes != (!flushed && counted + voided < size) ||
	    r->left != (flushed == RANK_LEFT) || r->reads != rank_reads(j, r))
		return false;
	bool walk = j->spec->ordering == ORDER_CANONICAL && j->spec->ranks <= WALK_MAX_RANKS;
	for (uint32_t m = 0; m < size && walk; m++)
		if (rank_blocked_by(j, r, m) != blocked_by_walk(j, r, m))
			return false;
	return true;
}

bool job_counts_wrong(const struct job *j, char *why, size_t n)
{
	uint32_t owing = 0, left = 0, reading = 0;
	uint64_t counted = 0;
	for (uint32_t i = 0; i < j->spec->ranks; i++) {
		const struct rank *r = &j->rank[i];
		owing += r->owes;
		counted += j->mirror.rank[i].counted;
		left += r->left;
		reading += r->reads;
		if (rank_counts_right(j, r))
			continue;
		snprintf(why, n, "rank %u: %u counted, %u void, owes %d, left %d: not what the bitmaps say", i,
			 j->mirror.rank[i].counted, r->voided, r->owes, r->left);
		return true;
	}
	if (owing == j->n_owing && left == j->n_left && reading == j->n_reading &&
	    (counted == j->mirror.r.count || j->mirror.r.phase != WINDOW_OPEN))
		return false;
	snprintf(why, n, "%u ranks owe, %u have left, %u read, %llu counted: kept are %u, %u, %u, %llu", owing, left,
		 reading, (unsigned long long)counted, j->n_owing, j->n_left, j->n_reading,
		 (unsigned long long)j->mirror.r.count);
	return true;
}

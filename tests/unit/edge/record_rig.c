/* SPDX-License-Identifier: Apache-2.0 */
/* Records of parts in the rig of two gaccds, for unit tests; see the header. One thread. */
#include "record_rig.h"

#include "edge/placing.h"
#include "engine/control_page.h"

#include <stdio.h>

static enum status count(void *arg, const struct journal_part *p)
{
	struct recorded *r = arg;
	r->n++;
	r->begun += p->begun;
	r->placement += p->placement.n;
	r->tensors += p->tensors.n;
	return ST_OK;
}

struct recorded recorded_in(struct journal *j)
{
	struct recorded r = { 0 };
	ck_assert_int_eq(journal_each_part(j, count, &r), ST_OK);
	return r;
}

struct recorded recorded(void)
{
	return recorded_in(other.journal);
}

void turns(int n)
{
	while (n--)
		pair_turn(time(NULL) + 1, "");
}

bool is_up(const struct part *p)
{
	return p && job_record(p->job) && p->engine.proc;
}

void silence(bool yes)
{
	seen.lost[LINK_PLACEMENT] = seen.lost[LINK_ORDER] = seen.lost[LINK_DROP] = seen.lost[LINK_REPORT] = yes;
}

struct session_key key[RANKS];

void run_job(void)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
}

void whole_window(void)
{
	uint64_t window = job_window(there()->job);
	for (uint32_t i = 0; i < 4; i++)
		pair_push(&key[i % 2], i / 2, (float)(i + 1));
	UNTIL(job_window(there()->job) == window + 1 && coord_window(job->coord) == window + 1);
}

void write_record(struct journal_record r)
{
	struct journal *j;
	uint64_t term;
	char path[SCRATCH_PATH + 64];
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_runtime);
	ck_assert_int_eq(journal_open(path, &j), ST_OK);
	ck_assert_int_eq(journal_take_term(j, &term), ST_OK);
	ck_assert_int_eq(journal_commit(j, term, &r, 1), ST_OK);
	journal_close(j);
}

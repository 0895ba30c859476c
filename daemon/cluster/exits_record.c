/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and reads the journal's record EXITS, which tells how a job's launched ranks ended. For
 * edge/launching_exits.c, on the loop thread; no state. */
#include "cluster/exits_record.h"

#include "cluster/raw_records.h"
#include "cluster/record.h"
#include "gacc/internal/v1/record.pb-c.h"
#include "proto/bytes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- packing ---- */

/* The columns of the ranks; a column of zeros is left out. */
struct columns {
	uint32_t *state, *restarts;
	int32_t *exit_status;
	int64_t *pid;
};

static bool columns_init(struct columns *c, uint32_t n)
{
	c->pid = calloc(n, sizeof(*c->pid) + 3 * sizeof(uint32_t));
	if (!c->pid)
		return false;
	c->state = (uint32_t *)(c->pid + n);
	c->restarts = c->state + n;
	c->exit_status = (int32_t *)(c->restarts + n);
	return true;
}

static void fill_columns(const struct exits *e, struct columns *c, Gacc__Internal__V1__ExitsRecord *m)
{
	for (uint32_t i = 0; i < e->n_ranks; i++) {
		const struct launch_rank *r = &e->rank[i];
		c->state[i] = r->state;
		c->pid[i] = r->pid;
		c->exit_status[i] = r->exit_status;
		c->restarts[i] = r->restarts;
		m->n_state |= r->state != 0;
		m->n_pid |= r->pid != 0;
		m->n_exit_status |= r->exit_status != 0;
		m->n_restarts |= r->restarts != 0;
	}
	m->n_state *= e->n_ranks;
	m->n_pid *= e->n_ranks;
	m->n_exit_status *= e->n_ranks;
	m->n_restarts *= e->n_ranks;
	m->state = c->state;
	m->pid = c->pid;
	m->exit_status = c->exit_status;
	m->restarts = c->restarts;
}

void *exits_record_pack(const struct exits *e, size_t *out_n)
{
	Gacc__Internal__V1__ExitsRecord m = GACC__INTERNAL__V1__EXITS_RECORD__INIT;
	Gacc__Internal__V1__ExitsRecord__Cause cause = GACC__INTERNAL__V1__EXITS_RECORD__CAUSE__INIT;
	const struct launch_cause *k = &e->summary.cause;
	struct columns c;
	if (!columns_init(&c, e->n_ranks))
		return NULL;
	m.ranks = e->n_ranks;
	m.phase = e->summary.phase;
	m.result = e->summary.result;
	m.charged = e->summary.charged;
	fill_columns(e, &c, &m);
	cause.rank = k->rank;
	cause.pid = k->pid;
	cause.exit_status = k->exit_status;
	cause.unix_nanos = k->unix_ns;
	if (k->known)
		m.cause = &cause;
	m.tail.data = (uint8_t *)e->tail; /* not written to */
	m.tail.len = e->n_tail;
	void *bytes = record_pack(&m.base, out_n);
	free(c.pid);
	return bytes;
}

/* ---- reading ---- */

static enum status out_of_range(const char *field, uint64_t value, uint64_t most, char *why, size_t n_why)
{
	snprintf(why, n_why, "ExitsRecord.%s is %llu, and must be %llu at most", field, (unsigned long long)value,
		 (unsigned long long)most);
	return ST_VERSION_SKEW;
}

static enum status check_column(const char *field, size_t n, uint32_t ranks, char *why, size_t n_why)
{
	if (!n || n == ranks)
		return ST_OK;
	snprintf(why, n_why, "ExitsRecord.%s has %zu values, and must have none or %u", field, n, ranks);
	return ST_VERSION_SKEW;
}

static enum status check_message(const Gacc__Internal__V1__ExitsRecord *m, uint32_t ranks, char *why, size_t n_why)
{
	if (m->ranks != ranks) {
		snprintf(why, n_why, "ExitsRecord.ranks is %u, and the job has %u", m->ranks, ranks);
		return ST_VERSION_SKEW;
	}
	enum status st = check_column("state", m->n_state, ranks, why, n_why);
	if (!st)
		st = check_column("pid", m->n_pid, ranks, why, n_why);
	if (!st)
		st = check_column("exit_status", m->n_exit_status, ranks, why, n_why);
	if (!st)
		st = check_column("restarts", m->n_restarts, ranks, why, n_why);
	return st;
}

static void take_ranks(const Gacc__Internal__V1__ExitsRecord *m, uint32_t ranks, struct launch_rank *rank)
{
	for (uint32_t i = 0; i < ranks; i++)
		rank[i] = (struct launch_rank){ .state = m->n_state ? (enum launch_rank_state)m->state[i] : 0,
						.pid = m->n_pid ? m->pid[i] : 0,
						.exit_status = m->n_exit_status ? m->exit_status[i] : 0,
						.restarts = m->n_restarts ? m->restarts[i] : 0 };
}

/* With its tail behind the ranks. */
static enum status take_message(const Gacc__Internal__V1__ExitsRecord *m, uint32_t ranks, struct exits *e, char *why,
				size_t n_why)
{
	enum status st = check_message(m, ranks, why, n_why);
	if (st)
		return st;
	e->rank = malloc(ranks * sizeof(*e->rank) + m->tail.len + 1);
	if (!e->rank)
		return ST_NO_MEMORY;
	take_ranks(m, ranks, e->rank);
	if (m->tail.len)
		memcpy(e->rank + ranks, m->tail.data, m->tail.len);
	e->tail = e->rank + ranks;
	e->n_tail = m->tail.len;
	e->n_ranks = ranks;
	e->summary = (struct launch_summary){ .phase = (enum launch_phase)m->phase,
					      .result = (enum launch_result)m->result,
					      .charged = m->charged };
	if (m->cause)
		e->summary.cause = (struct launch_cause){ true, m->cause->rank, m->cause->pid, m->cause->exit_status,
							  m->cause->unix_nanos };
	return ST_OK;
}

/* Of any form. */
static enum status check(const struct exits *e, char *why, size_t n_why)
{
	const struct launch_summary *s = &e->summary;
	if ((uint32_t)s->phase > LAUNCH_OVER)
		return out_of_range("phase", (uint32_t)s->phase, LAUNCH_OVER, why, n_why);
	if ((uint32_t)s->result > LAUNCH_STOPPED)
		return out_of_range("result", (uint32_t)s->result, LAUNCH_STOPPED, why, n_why);
	if (s->cause.known && s->cause.rank >= e->n_ranks)
		return out_of_range("cause.rank", s->cause.rank, e->n_ranks - 1, why, n_why);
	for (uint32_t i = 0; i < e->n_ranks; i++)
		if ((uint32_t)e->rank[i].state > LAUNCH_RANK_EXITED)
			return out_of_range("state", (uint32_t)e->rank[i].state, LAUNCH_RANK_EXITED, why, n_why);
	return ST_OK;
}

static enum status read_message(const void *bytes, size_t n, uint32_t ranks, struct exits *e, char *why, size_t n_why)
{
	struct ProtobufCMessage *m = NULL;
	enum status st = record_unpack(&gacc__internal__v1__exits_record__descriptor, bytes, n, &m, why, n_why);
	if (st)
		return st;
	st = take_message((Gacc__Internal__V1__ExitsRecord *)m, ranks, e, why, n_why);
	bytes_free(m);
	return st;
}

enum status exits_record_read(const void *bytes, size_t n, uint32_t ranks, struct exits *out, char *why, size_t n_why)
{
	struct exits e = { .rank = NULL };
	enum status st;
	if (raw_record_is(bytes, n))
		st = raw_exits_read(bytes, n, ranks, &e, why, n_why);
	else
		st = read_message(bytes, n, ranks, &e, why, n_why);
	if (!st)
		st = check(&e, why, n_why);
	if (st)
		free(e.rank);
	else
		*out = e;
	return st;
}

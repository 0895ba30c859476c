/* SPDX-License-Identifier: Apache-2.0 */
/* How the members of an in-process communicator wait for each other, give up, and learn that it is broken. For
 * coll_local.c and local_ops.c; on the members' threads, under the communicator's mutex. */
#include "coll/local_impl.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

void local_changed(struct local_member *m)
{
	m->me->moved++;
	pthread_cond_broadcast(&m->comm->changed);
}

/* ---- failures ---- */

enum status local_broken(struct local_member *m)
{
	static const char *const did[] = { [LOCAL_ABORTED] = "has aborted",
					   [LOCAL_LEFT] = "has left",
					   [LOCAL_DIED] = "has died",
					   [LOCAL_FAILED] = "could not go on" };
	const struct local_comm *c = m->comm;
	assert(c->broken);
	if (m->failure.status == ST_OK) {
		char text[sizeof(m->failure.text)];
		snprintf(text, sizeof(text), "part %u %s", c->breaker, did[c->end]);
		coll_failure_set(&m->failure, ST_UNAVAILABLE, UINT64_C(1) << c->breaker, text);
	}
	m->phase = COLL_BROKEN;
	return m->failure.status;
}

enum status local_break(struct local_member *m, enum local_end end, enum status st, uint64_t suspects, const char *text)
{
	struct local_comm *c = m->comm;
	assert(st != ST_OK);
	if (!c->broken) {
		c->broken = true;
		c->breaker = m->base.part;
		c->end = end;
		coll_failure_set(&m->failure, st, suspects, text);
		pthread_cond_broadcast(&c->changed);
	}
	return local_broken(m);
}

/* ---- waiting ---- */

static uint64_t sum_moved(const struct local_comm *c, uint64_t parts)
{
	uint64_t sum = 0;
	for (uint32_t s = 0; s < c->n_parts; s++)
		sum += parts >> s & 1 ? c->peer[s].moved : 0;
	return sum;
}

/* Of the parts that this one waits for, those that wait for nobody themselves: they hold the others up. */
static uint64_t find_silent(const struct local_member *m)
{
	uint64_t silent = 0;
	for (uint32_t s = 0; s < m->comm->n_parts; s++)
		silent |= m->me->waits_for >> s & 1 && !m->comm->peer[s].waits_for ? UINT64_C(1) << s : 0;
	return silent ? silent : m->me->waits_for;
}

static enum status give_up(struct local_member *m, int64_t waited_ns)
{
	struct local_comm *c = m->comm;
	char text[sizeof(m->failure.text)];
	uint64_t silent = find_silent(m);
	int n = snprintf(text, sizeof(text), "waited %" PRId64 " ms for part", waited_ns / 1000000);
	for (uint32_t s = 0; s < c->n_parts && n < (int)sizeof(text); s++)
		if (silent >> s & 1)
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %u", s);
	return local_break(m, LOCAL_FAILED, ST_STALLED, silent, text);
}

/* Sleeps until something changes, or until the time. */
static void sleep_until(struct local_comm *c, int64_t until_ns)
{
	struct timespec t = { until_ns / CLOCK_NS_PER_S, until_ns % CLOCK_NS_PER_S };
	int error = pthread_cond_timedwait(&c->changed, &c->mutex, &t);
	assert(!error || error == ETIMEDOUT);
	(void)error;
}

enum status local_wait(struct local_member *m, local_awaited_fn *awaited, int64_t limit_ns)
{
	int64_t begun = now_ns(), since = begun;
	uint64_t parts = 0, moved = 0;
	enum status st = ST_OK;
	for (uint64_t left; st == ST_OK && (left = awaited(m));) {
		int64_t now = now_ns();
		uint64_t sum = sum_moved(m->comm, left);
		if (left != parts || sum != moved) {
			since = now;
			parts = left;
			moved = sum;
		}
		m->me->waits_for = left;
		bool limited = limit_ns && begun + limit_ns < since + m->stall_ns;
		int64_t until = limited ? begun + limit_ns : since + m->stall_ns;
		if (m->comm->broken)
			st = local_broken(m);
		else if (now >= until)
			st = give_up(m, now - (limited ? begun : since));
		else
			sleep_until(m->comm, until);
	}
	m->me->waits_for = 0;
	return st;
}

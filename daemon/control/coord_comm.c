/* SPDX-License-Identifier: Apache-2.0 */
/* Has the engines of a job's parts form communicators: which one, who belongs to it, and before the job runs whose
 * parameters all parts get over it. For the coordinator's other files; the table is in coord_impl.h. Pure; loop thread.
 */
#include "control/coord_impl.h"

#include "coll/board.h"

#include <assert.h>
#include <stdio.h>

#define JOIN_MAX_NS (INT64_C(60) * 1000000000)

static int64_t first_join_ns(const struct coord *c)
{
	return c->comm.stall_ns < JOIN_MAX_NS ? c->comm.stall_ns : JOIN_MAX_NS;
}

enum status coord_set_collectives(struct coord *c, int64_t stall_ns)
{
	assert(c->n_peers > 1 && c->n_peers <= COLL_MAX_PARTS && stall_ns > 0 && !c->comm.board);
	c->comm.board = board_new();
	c->comm.stall_ns = stall_ns;
	c->comm.join_ns = first_join_ns(c);
	return c->comm.board ? ST_OK : ST_NO_MEMORY;
}

/* ---- which one ---- */

struct coll_id coord_comm_id(const struct coord *c)
{
	return (struct coll_id){ c->job_id, c->epoch, c->term, c->comm.k };
}

void coord_comm_leave(struct coord *c)
{
	struct coord_comm *m = &c->comm;
	m->state = COMM_NONE;
	m->k = 0;
	m->joined = false;
	m->fill = 0;
	COORD_EACH_PART(c, i)
	c->peer[i].life = 0;
	coord_mark_all(c);
}

void coord_comm_form(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	coord_comm_leave(c);
	m->k = c->attempt;
	const struct coll_id id = coord_comm_id(c);
	if (board_open(m->board, &id, c->n_peers)) { /* no memory: the tick tries it again */
		m->k = 0;
		return;
	}
	board_purge(m->board, &id);
	m->state = COMM_BOARD;
	m->since_ns = now.mono_ns;
	coord_mark_all(c);
}

bool coord_comm_is_over(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.life != c->peer[i].life)
		return true;
	return c->comm.state != COMM_OPEN || !coord_all(c, MARK_JOINED);
}

void coord_comm_look(struct coord *c, struct now now)
{
	if (c->comm.state != COMM_OPEN || c->comm.joined || !coord_all(c, MARK_JOINED))
		return;
	c->comm.joined = true;
	c->progress_ns = now.mono_ns;
	c->comm.join_ns = first_join_ns(c);
}

/* The parts give up before that, and can say why. */
int64_t coord_comm_stuck_ns(const struct coord *c)
{
	return c->comm.stall_ns + (c->comm.joined ? c->comm.stall_ns : c->comm.join_ns);
}

void coord_comm_late(struct coord *c)
{
	struct coord_comm *m = &c->comm;
	if (!m->board || m->joined)
		return;
	m->join_ns = m->join_ns * 2 < JOIN_MAX_NS ? m->join_ns * 2 : JOIN_MAX_NS;
}

/* ---- in words ---- */

static void name_suspects(const struct coord *c, uint64_t suspects, char *text, size_t n)
{
	const char *before = suspects & (suspects - 1) ? " cannot reach parts " : " cannot reach part ";
	char node[COORD_NODE];
	size_t at = 0;
	text[0] = '\0';
	for (; suspects && at < n; suspects &= suspects - 1, before = ", ") {
		const uint32_t part = (uint32_t)__builtin_ctzll(suspects);
		at += (size_t)snprintf(text + at, n - at, "%s%u%s", before, part, coord_node_of(c, part, node));
	}
}

/* The first part that has this mark, or has it not; n_peers: none. */
static uint32_t first_part(const struct coord *c, enum mark m, bool has)
{
	COORD_EACH_PART(c, i)
	if ((bool)(c->peer[i].marks >> m & 1) == has)
		return i;
	return c->n_peers;
}

void coord_take_failed_vote(struct coord *c, char *text, size_t n)
{
	const uint32_t part = first_part(c, MARK_FAILED, true);
	assert(part < c->n_peers);
	const struct report *r = &c->peer[part].last;
	const char *why = *r->vote_text ? r->vote_text : status_info(r->vote_status)->text;
	char who[300], node[COORD_NODE];
	if (!c->comm.board) {
		snprintf(text, n, "%s", why);
		return;
	}
	if (r->vote_status == ST_STALLED)
		coord_comm_late(c);
	name_suspects(c, r->vote_suspects & ~(UINT64_C(1) << part), who, sizeof(who));
	snprintf(text, n, "part %u%s%s: %s", part, coord_node_of(c, part, node), who, why);
}

bool coord_describe_comm(const struct coord *c, char *text, size_t n, struct now now)
{
	const struct coord_comm *m = &c->comm;
	const struct coll_id id = coord_comm_id(c);
	double s = (double)(now.mono_ns - m->since_ns) / 1e9;
	uint32_t missing[COLL_MAX_PARTS], part;
	char node[COORD_NODE], other[COORD_NODE];
	if (m->state == COMM_BOARD && board_missing(m->board, &id, missing)) {
		part = missing[0];
		snprintf(text, n, "the engine of part %u%s has not said its address for %.0f s", part,
			 coord_node_of(c, part, node), s);
	} else if (m->state == COMM_OPEN && !m->joined) {
		part = first_part(c, MARK_JOINED, false);
		snprintf(text, n, "the engine of part %u%s has not joined those of the other parts for %.0f s", part,
			 coord_node_of(c, part, node), s);
	} else if (m->fill && !coord_all(c, MARK_STARTED)) {
		part = first_part(c, MARK_STARTED, false);
		snprintf(text, n, "part %u%s waits for the parameters of part %u%s", part, coord_node_of(c, part, node),
			 m->fill - 1, coord_node_of(c, m->fill - 1, other));
	} else if (m->board && c->phase == COORD_GO) {
		part = first_part(c, MARK_VOTED, false);
		snprintf(text, n, "no part has got on with it for long, and part %u%s has not voted", part,
			 part < c->n_peers ? coord_node_of(c, part, node) : "");
	} else {
		return false;
	}
	return true;
}

/* ---- before the job runs ---- */

/* Against the communicator itself: no window is closed yet, and a fill belongs to it; or the window's outcome is
 * durable, and shares of the parameters are gathered in it. */
void coord_comm_fail(struct coord *c, const char *why, struct now now)
{
	snprintf(c->failure, sizeof(c->failure), "attempt %llu to %s failed: %s", (unsigned long long)c->attempt,
		 c->phase == COORD_START ? "start together" : "gather the parts' shares", why);
	coord_event(c, true, "AttemptFailed", -1, c->failure);
	c->failed_attempts++;
	c->comm.retry_ns = now.mono_ns + coord_pause_after(c->failed_attempts);
	coord_comm_leave(c);
	coord_broadcast(c, now);
}

/* The first part that has other parameters than part 0; 0: none has. */
static uint32_t first_other(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.params_digest != c->peer[0].last.params_digest)
		return i;
	return 0;
}

/* Nothing can change that any more. */
static void end_on_difference(struct coord *c, uint32_t other, struct now now)
{
	char text[200];
	snprintf(text, sizeof(text),
		 "parts 0 and %u do not begin with the same parameters: digests %016llx and %016llx", other,
		 (unsigned long long)c->peer[0].last.params_digest,
		 (unsigned long long)c->peer[other].last.params_digest);
	coord_end(c, ST_CHECKSUM, text, now);
}

/* Whose parameters all get: those of the first part that had any, as long as it has them. */
static uint32_t find_source(const struct coord *c)
{
	uint32_t is = c->comm.source;
	if (!is || !(c->peer[is - 1].marks & 1u << MARK_STARTED))
		is = first_part(c, MARK_STARTED, true) + 1;
	return is;
}

/* All reports are of parts that know the order to fill. */
static bool all_know_fill(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	if (c->peer[i].last.term != c->term || c->peer[i].last.order < c->comm.fill_order)
		return false;
	return true;
}

/* Not from a checkpoint: there is more in it than parameters. Parts that draw them by the rules of `init` draw the
 * same.
 */
static bool may_fill(const struct coord *c)
{
	return !c->spec->restores && (!c->spec->n_init || coord_all(c, MARK_STARTED));
}

static bool params_agree(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	bool all = coord_all(c, MARK_STARTED);
	uint32_t other = all ? first_other(c) : 0;
	if (all && !other) /* what a part has before it knows of the fill may not stay */
		return !m->fill || all_know_fill(c);
	if (all && (c->spec->restores || (m->fill && all_know_fill(c)))) {
		end_on_difference(c, other, now);
		return false;
	}
	if (m->fill || !may_fill(c) || !c->n_marked[MARK_STARTED])
		return false;
	m->fill = m->source = find_source(c);
	coord_broadcast(c, now);
	m->fill_order = c->order_number;
	return false;
}

void coord_comm_reached(struct coord *c)
{
	COORD_EACH_PART(c, i)
	c->peer[i].unreachable = 0;
}

bool coord_comm_start(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	char why[300];
	if (m->state == COMM_NONE) {
		if (!coord_all(c, MARK_ALLOCATED) || now.mono_ns < m->retry_ns)
			return false;
		c->attempt++;
		coord_comm_form(c, now);
		coord_broadcast(c, now);
		return false;
	}
	if (c->n_marked[MARK_FAILED]) {
		coord_take_failed_vote(c, why, sizeof(why));
		coord_comm_fail(c, why, now);
		return false;
	}
	if (!m->joined || !coord_all(c, MARK_JOINED) || !params_agree(c, now))
		return false;
	coord_comm_reached(c);
	return true;
}

/* ---- after a commit ---- */

bool coord_comm_gathers(const struct coord *c)
{
	return c->comm.board && c->phase == COORD_COMMIT && spec_is_sharded(c->spec) &&
	       c->commit.outcome == OUTCOME_APPLIED;
}

void coord_comm_commit(struct coord *c, struct now now)
{
	struct coord_comm *m = &c->comm;
	char why[300] = "", node[COORD_NODE];
	if (!coord_comm_gathers(c))
		return;
	if (m->state == COMM_NONE) {
		if (!coord_all(c, MARK_ALLOCATED) || now.mono_ns < m->retry_ns)
			return;
		c->attempt++;
		c->progress_ns = now.mono_ns;
		coord_comm_form(c, now);
		coord_broadcast(c, now);
		return;
	}
	const uint32_t lost = m->joined ? first_part(c, MARK_JOINED, false) : c->n_peers;
	if (c->n_marked[MARK_FAILED])
		coord_take_failed_vote(c, why, sizeof(why));
	else if (lost < c->n_peers)
		snprintf(why, sizeof(why), "part %u%s has left the communicator", lost, coord_node_of(c, lost, node));
	if (*why)
		coord_comm_fail(c, why, now);
}

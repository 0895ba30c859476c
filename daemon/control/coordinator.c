#include "control/coordinator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESEND_NS (INT64_C(200) * 1000000)
#define RETRY_NS (INT64_C(100) * 1000000)
#define ATTEMPT_TIMEOUT_NS (INT64_C(60) * 1000000000)
#define MAX_FAILED_ATTEMPTS 16

/* What the coordinator knows of one node: its newest report, without the borrowed arrays. */
struct peer {
	struct report last;
	bool known;
	bool has_bitmap; /* `counted` holds what this node had when it closed the window */
};

struct coord {
	uint64_t job_id, epoch, term;
	const struct job_spec *spec;
	struct coord_ports ports;
	enum coord_phase phase;
	bool superseded;
	uint64_t window, applied_step;
	uint64_t attempt;              /* open or last attempt of this term */
	uint32_t failed_attempts;      /* of this window */
	int64_t phase_since_ns, sent_ns, opened_ns;
	struct commit commit;          /* being persisted, or the last durable one */
	bool have_commit;
	struct peer *peer;
	uint32_t n_peers;
	struct rank_progress *rank;
	struct late_rank *late;
	uint32_t n_late;
	uint64_t *counted;             /* of the window being committed */
	uint32_t n_words;
	enum job_state state;
	char reason[256];
	int64_t state_since_unix_ns, window_opened_unix_ns;
	enum status end_status;
	char end_reason[256];
};

/* ---- small things ---- */

static void set_state(struct coord *c, enum job_state state, const char *reason, struct now now)
{
	if (c->state == state && !strcmp(c->reason, reason))
		return;
	if (c->state != state)
		c->state_since_unix_ns = now.unix_ns;
	c->state = state;
	snprintf(c->reason, sizeof c->reason, "%s", reason);
	c->ports.changed(c->ports.ctx, c->job_id);
}

static void set_phase(struct coord *c, enum coord_phase phase, struct now now)
{
	c->phase = phase;
	c->phase_since_ns = now.mono_ns;
	c->sent_ns = 0;
}

static void event(struct coord *c, bool warning, const char *reason, int64_t rank, const char *text)
{
	c->ports.event(c->ports.ctx, c->job_id, warning, reason, rank, text);
}

/* ---- orders ---- */

static void fill_order(const struct coord *c, struct order *o)
{
	*o = (struct order){ .job_id = c->job_id, .epoch = c->epoch, .term = c->term, .window = c->window };
	o->run = c->phase != COORD_START;
	o->late = c->late;
	o->n_late = c->n_late;
	o->stalled = c->state == JOB_STALLED;
	switch (c->phase) {
	case COORD_CLOSE:
		o->want = WANT_CLOSE;
		break;
	case COORD_GO:
	case COORD_PERSIST: /* a node whose engine restarted votes again */
		o->want = WANT_GO;
		o->attempt = c->attempt;
		break;
	case COORD_COMMIT:
		o->want = WANT_COMMIT;
		o->commit = c->commit;
		break;
	case COORD_ENDED:
		o->want = WANT_END;
		o->end_status = c->end_status;
		memcpy(o->end_reason, c->end_reason, sizeof o->end_reason);
		break;
	case COORD_START:
	case COORD_COLLECT:
	case COORD_ENDING:
		break;
	}
}

static void send_order(struct coord *c, uint32_t node)
{
	struct order o;
	fill_order(c, &o);
	c->ports.order(c->ports.ctx, node, &o);
}

static void broadcast(struct coord *c, struct now now)
{
	c->sent_ns = now.mono_ns;
	for (uint32_t i = 0; i < c->n_peers; i++)
		send_order(c, i);
}

/* ---- what the reports say together ---- */

/* Report of the open window; a node that is behind or ahead does not count. */
static bool current(const struct coord *c, const struct peer *p)
{
	return p->known && p->last.window == c->window;
}

static bool all_complete(const struct coord *c)
{
	for (uint32_t i = 0; i < c->n_peers; i++)
		if (!current(c, &c->peer[i]) || !(c->peer[i].last.complete || c->peer[i].last.phase >= WINDOW_CLOSED))
			return false;
	return true;
}

static bool all_left(const struct coord *c)
{
	for (uint32_t i = 0; i < c->n_peers; i++)
		if (!current(c, &c->peer[i]) || !c->peer[i].last.all_left)
			return false;
	return true;
}

static bool all_closed(const struct coord *c)
{
	for (uint32_t i = 0; i < c->n_peers; i++)
		if (!current(c, &c->peer[i]) || c->peer[i].last.phase < WINDOW_CLOSED || !c->peer[i].has_bitmap)
			return false;
	return true;
}

static bool all_started(const struct coord *c)
{
	for (uint32_t i = 0; i < c->n_peers; i++)
		if (!c->peer[i].known || c->peer[i].last.start < START_PARAMS)
			return false;
	return true;
}

static bool voted(const struct coord *c, const struct peer *p)
{
	return current(c, p) && p->last.vote_term == c->term && p->last.vote_attempt == c->attempt;
}

static uint64_t counted_so_far(const struct coord *c)
{
	uint64_t n = 0;
	for (uint32_t r = 0; r < c->spec->ranks; r++)
		n += c->rank[r].counted + c->rank[r].voided;
	return n;
}

/* ---- deciding ---- */

/* torch.nn.utils.clip_grad_norm_: multiply by min(1, max_norm / (norm + 1e-6)). */
static double clip_coefficient(double clip_norm, double norm)
{
	if (clip_norm <= 0)
		return 1;
	double k = clip_norm / (norm + 1e-6);
	return k < 1 ? k : 1;
}

void commit_decide(const struct job_spec *spec, const struct window_sums *in, uint64_t applied_before,
		   struct commit *out)
{
	out->window = in->window;
	out->applied_step = applied_before;
	out->micro_count = in->count;
	out->total_weight = in->sum_weight;
	out->mean_loss = in->sum_weight > 0 ? in->sum_loss / in->sum_weight : 0;
	out->digest = in->digest;
	out->next_micro_size = spec->micro_size;
	out->next_loss_scale = spec->loss_scale;
	out->clip_value = spec->clip_value;
	if (in->count == 0) {
		out->outcome = OUTCOME_EMPTY;
		return;
	}
	if (in->missing && spec->uneven == UNEVEN_DROP) {
		out->outcome = OUTCOME_DROPPED;
		return;
	}
	out->divisor = reduce_divisor(spec->reduction, spec->grad_of, in->sum_weight, in->count, spec->fixed_divisor);
	double unit = 1 / (out->divisor * spec->loss_scale);
	out->grad_norm = sqrt(in->sumsq) * unit;
	if (in->nonfinite || !isfinite(out->grad_norm)) {
		out->outcome = OUTCOME_SKIPPED;
		return;
	}
	out->outcome = OUTCOME_APPLIED;
	out->scale = unit * clip_coefficient(spec->clip_norm, out->grad_norm);
	out->lr = spec->optim.lr * schedule_factor(&spec->schedule, applied_before);
	out->applied_step = applied_before + 1;
}

/* When the window's last two ranks became ready: who made the others wait, and for how long. */
static void find_last(const struct coord *c, struct commit *out, struct now now)
{
	int64_t last = 0, before = 0;
	double waited = 0;
	for (uint32_t r = 0; r < c->spec->ranks; r++) {
		int64_t t = c->rank[r].ready_ns;
		waited += t && t < now.mono_ns ? (double)(now.mono_ns - t) : 0;
		if (t > last) {
			before = last;
			last = t;
			out->last_rank = r;
		} else if (t > before) {
			before = t;
		}
	}
	out->last_lag_ns = before ? last - before : 0;
	double open = (double)(now.mono_ns - c->opened_ns) * c->spec->ranks;
	out->wait_fraction = open > 0 && waited < open ? waited / open : 0;
}

static void sum_votes(const struct coord *c, struct window_sums *s)
{
	*s = (struct window_sums){ .window = c->window };
	for (uint32_t i = 0; i < c->n_peers; i++) { /* in node order: the same bits on every attempt */
		const struct report *r = &c->peer[i].last;
		s->count += r->count;
		s->sum_weight += r->sum_weight;
		s->sum_loss += r->sum_loss;
		/* every node votes on the same reduced arena, so that these are equal, not partial */
		s->sumsq = r->sumsq;
		s->nonfinite |= r->nonfinite;
		s->digest = r->digest;
	}
	uint64_t voided = 0;
	for (uint32_t r = 0; r < c->spec->ranks; r++)
		voided += c->rank[r].voided;
	uint64_t all = (uint64_t)c->spec->ranks * c->spec->micro_size;
	s->missing = s->count + voided < all ? all - s->count - voided : 0;
}

/* Exactly-once is checked in production: the bitmaps' population is the sum of the nodes' counts. */
static bool audit(const struct coord *c, uint64_t count)
{
	uint64_t bits = 0;
	for (uint32_t i = 0; i < c->n_words; i++)
		bits += (uint64_t)__builtin_popcountll(c->counted[i]);
	return bits == count;
}

static void fail_attempt(struct coord *c, const char *why, struct now now)
{
	char text[200];
	snprintf(text, sizeof text, "attempt %llu of window %llu failed: %s", (unsigned long long)c->attempt,
		 (unsigned long long)c->window, why);
	event(c, true, "AttemptFailed", -1, text);
	if (++c->failed_attempts >= MAX_FAILED_ATTEMPTS) {
		coord_end(c, ST_ATTEMPT_FAILED, text, now);
		return;
	}
	c->attempt++;
	set_phase(c, COORD_GO, now);
	c->sent_ns = now.mono_ns + RETRY_NS - RESEND_NS; /* the next tick after RETRY_NS sends it */
}

static void decide(struct coord *c, struct now now)
{
	struct window_sums sums;
	sum_votes(c, &sums);
	for (uint32_t i = 1; i < c->n_peers; i++)
		if (c->peer[i].last.digest != c->peer[0].last.digest) {
			fail_attempt(c, "nodes disagree on the reduced gradient (digest)", now);
			return;
		}
	if (!audit(c, sums.count)) {
		coord_end(c, ST_INTERNAL, "audit: counted micro-batches and bitmap disagree", now);
		return;
	}
	if (sums.missing && c->spec->uneven == UNEVEN_ERROR && sums.count) {
		char text[160];
		snprintf(text, sizeof text, "window %llu closed with %llu micro-batches missing (uneven: error)",
			 (unsigned long long)c->window, (unsigned long long)sums.missing);
		coord_end(c, ST_WINDOW_CLOSED, text, now);
		return;
	}
	struct commit k = { .job_id = c->job_id, .epoch = c->epoch, .term = c->term, .attempt = c->attempt };
	commit_decide(c->spec, &sums, c->applied_step, &k);
	find_last(c, &k, now);
	k.unix_nanos = now.unix_ns;
	k.final = all_left(c) || (c->spec->steps && k.applied_step >= c->spec->steps);
	c->commit = k;
	set_phase(c, COORD_PERSIST, now);
	c->ports.persist_commit(c->ports.ctx, &c->commit, c->counted, c->n_words);
}

/* ---- the state machine: look at what is known, take every step that is due ---- */

static void open_window(struct coord *c, uint64_t window, struct now now)
{
	c->window = window;
	c->failed_attempts = 0;
	c->n_late = 0;
	c->window_opened_unix_ns = now.unix_ns;
	c->opened_ns = now.mono_ns;
	for (uint32_t r = 0; r < c->spec->ranks; r++) {
		struct rank_progress *p = &c->rank[r];
		p->counted = p->voided = 0;
		p->flushed = p->flushed == 2 ? 2 : 0;
		p->weight = 0;
		p->ready_ns = p->waiting_ns = 0;
	}
	set_phase(c, COORD_COLLECT, now);
}

/* Asks for the frozen bitmaps anew, also of nodes that closed under an earlier coordinator. */
static void start_close(struct coord *c, struct now now)
{
	memset(c->counted, 0, c->n_words * sizeof *c->counted);
	for (uint32_t i = 0; i < c->n_peers; i++)
		c->peer[i].has_bitmap = false;
	set_phase(c, COORD_CLOSE, now);
	broadcast(c, now);
}

static void step_collect(struct coord *c, struct now now)
{
	if (all_left(c) && counted_so_far(c) == 0) {
		coord_end(c, ST_OK, "all ranks have left", now);
		return;
	}
	if (all_complete(c))
		start_close(c, now);
}

static void step_close(struct coord *c, struct now now)
{
	if (!all_closed(c))
		return;
	c->attempt++;
	set_phase(c, COORD_GO, now);
	broadcast(c, now);
}

static void step_go(struct coord *c, struct now now)
{
	bool all = true;
	for (uint32_t i = 0; i < c->n_peers; i++) {
		if (!voted(c, &c->peer[i]))
			all = false;
		else if (c->peer[i].last.vote_status != ST_OK) {
			fail_attempt(c, status_info(c->peer[i].last.vote_status)->text, now);
			return;
		}
	}
	if (all)
		decide(c, now);
}

static void step_commit(struct coord *c, struct now now)
{
	for (uint32_t i = 0; i < c->n_peers; i++)
		if (!c->peer[i].known || c->peer[i].last.window <= c->commit.window)
			return;
	c->commit.params_digest = c->peer[0].last.params_digest;
	for (uint32_t i = 1; i < c->n_peers; i++)
		if (c->peer[i].last.params_digest != c->commit.params_digest) {
			coord_end(c, ST_CHECKSUM, "nodes disagree on the parameters (digest)", now);
			return;
		}
	if (c->commit.final) {
		coord_end(c, ST_OK, c->spec->steps && c->applied_step >= c->spec->steps ? "all steps are applied" :
											 "all ranks have left",
			  now);
		return;
	}
	open_window(c, c->commit.window + 1, now);
	set_state(c, JOB_RUNNING, "", now);
	c->ports.changed(c->ports.ctx, c->job_id);
	step_collect(c, now);
}

static void step(struct coord *c, struct now now)
{
	switch (c->phase) {
	case COORD_START:
		if (all_started(c)) {
			open_window(c, c->window, now);
			set_state(c, JOB_RUNNING, "", now);
			broadcast(c, now);
			step_collect(c, now);
		}
		break;
	case COORD_COLLECT:
		step_collect(c, now);
		break;
	case COORD_CLOSE:
		step_close(c, now);
		break;
	case COORD_GO:
		step_go(c, now);
		break;
	case COORD_COMMIT:
		step_commit(c, now);
		break;
	case COORD_PERSIST:
	case COORD_ENDING:
	case COORD_ENDED:
		break;
	}
}

/* ---- events ---- */

static void take_ranks(struct coord *c, const struct report *r)
{
	for (uint32_t i = 0; i < r->n_ranks; i++)
		if (r->rank[i].rank < c->spec->ranks)
			c->rank[r->rank[i].rank] = r->rank[i];
}

/* Bitmaps of the nodes are disjoint by construction (a rank lives on one node); audit() checks it by population. */
static void take_bitmap(struct coord *c, struct peer *p, const struct report *r)
{
	if (!r->counted || r->n_words != c->n_words)
		return;
	for (uint32_t i = 0; i < c->n_words; i++)
		c->counted[i] |= r->counted[i];
	p->has_bitmap = true;
}

/* Within a window a node's state only moves forward; an overtaken report must not take it back. */
static bool is_older(const struct report *a, const struct report *b)
{
	if (a->window != b->window)
		return a->window < b->window;
	if (a->phase != b->phase)
		return a->phase < b->phase;
	if (a->start != b->start)
		return a->start < b->start;
	if (a->vote_term != b->vote_term)
		return a->vote_term < b->vote_term;
	if (a->vote_attempt != b->vote_attempt)
		return a->vote_attempt < b->vote_attempt;
	return b->complete && !a->complete;
}

void coord_on_report(struct coord *c, uint32_t node, const struct report *r, struct now now)
{
	if (c->superseded || node >= c->n_peers || r->job_id != c->job_id || r->epoch != c->epoch)
		return;
	if (r->term > c->term) { /* somebody else coordinates: the store would refuse us too */
		c->superseded = true;
		return;
	}
	struct peer *p = &c->peer[node];
	bool restarted = p->known && r->incarnation > p->last.incarnation;
	if (p->known && (r->incarnation < p->last.incarnation || (!restarted && is_older(r, &p->last))))
		return;
	p->last = *r;
	p->last.rank = NULL;
	p->last.counted = p->last.voided = NULL;
	p->known = true;
	if (r->window == c->window || c->phase == COORD_START)
		take_ranks(c, r);
	if (r->window == c->window && c->phase == COORD_CLOSE && r->phase >= WINDOW_CLOSED)
		take_bitmap(c, p, r);
	step(c, now);
	if (restarted)
		send_order(c, node);
}

void coord_on_persisted(struct coord *c, uint64_t window, enum status st, struct now now)
{
	if (c->phase != COORD_PERSIST || window != c->window)
		return;
	if (st == ST_STALE_TERM) {
		c->superseded = true;
		return;
	}
	if (st) {
		coord_end(c, st, "the journal cannot be written; nothing was applied", now);
		return;
	}
	c->have_commit = true;
	c->applied_step = c->commit.applied_step;
	set_phase(c, COORD_COMMIT, now);
	broadcast(c, now);
	step(c, now);
}

void coord_end(struct coord *c, enum status end, const char *reason, struct now now)
{
	if (c->phase >= COORD_ENDING)
		return;
	c->end_status = end;
	snprintf(c->end_reason, sizeof c->end_reason, "%s", reason);
	set_phase(c, COORD_ENDING, now);
	set_state(c, JOB_COMPLETING, reason, now);
	c->ports.persist_end(c->ports.ctx, c->job_id, end, c->end_reason);
}

void coord_on_ended(struct coord *c, enum status st, struct now now)
{
	if (c->phase != COORD_ENDING)
		return;
	if (st == ST_STALE_TERM) {
		c->superseded = true;
		return;
	}
	set_phase(c, COORD_ENDED, now);
	enum job_state s = c->end_status == ST_OK ? JOB_COMPLETED :
			   c->end_status == ST_CANCELLED ? JOB_CANCELLED : JOB_FAILED;
	set_state(c, s, c->end_reason, now);
	broadcast(c, now);
}

enum status coord_flush(struct coord *c, uint64_t *out_window, struct now now)
{
	if (c->phase == COORD_START)
		return ST_NOT_READY;
	if (c->phase >= COORD_ENDING)
		return ST_JOB_ENDED;
	*out_window = c->window;
	if (c->phase == COORD_COLLECT)
		start_close(c, now);
	return ST_OK;
}

/* ---- late ranks ---- */

/* Others may be waiting for it: it owes micro-batches and does not wait itself. */
static bool owes(const struct coord *c, const struct rank_progress *p)
{
	return !p->flushed && !p->waiting_ns && p->counted + p->voided < c->spec->micro_size;
}

/* Since when any rank has been waiting in this window, or 0. */
static int64_t waiting_since(const struct coord *c)
{
	int64_t first = 0;
	for (uint32_t r = 0; r < c->spec->ranks; r++) {
		int64_t t = c->rank[r].waiting_ns;
		if (t && (!first || t < first))
			first = t;
	}
	return first;
}

int64_t coord_rank_late_ns(const struct coord *c, uint32_t rank, struct now now)
{
	if (c->phase != COORD_COLLECT || rank >= c->spec->ranks || !owes(c, &c->rank[rank]))
		return 0;
	int64_t since = waiting_since(c);
	return since && now.mono_ns > since ? now.mono_ns - since : 0;
}

static void describe_late(const struct coord *c, char *text, size_t n, struct now now)
{
	int at = snprintf(text, n, "window %llu: waiting for", (unsigned long long)c->window);
	for (uint32_t i = 0; i < c->n_late && i < 4 && at < (int)n; i++) {
		const struct late_rank *l = &c->late[i];
		at += snprintf(text + at, n - (size_t)at, "%s rank %u (%s%lld) at %u/%u for %.0f s", i ? "," : "",
			       l->rank, l->pid ? "pid " : "never attached, pid ", (long long)l->pid, l->counted,
			       l->micro_size, (double)l->waiting_ns / 1e9);
	}
	if (c->n_late > 4 && at < (int)n)
		snprintf(text + at, n - (size_t)at, " and %u more", c->n_late - 4);
}

static void watch_late(struct coord *c, struct now now)
{
	int64_t worst = 0;
	c->n_late = 0;
	for (uint32_t r = 0; r < c->spec->ranks; r++) {
		int64_t ns = coord_rank_late_ns(c, r, now);
		if (!ns)
			continue;
		const struct rank_progress *p = &c->rank[r];
		c->late[c->n_late++] = (struct late_rank){ .rank = r, .counted = p->counted + p->voided,
							   .micro_size = c->spec->micro_size, .pid = p->pid,
							   .waiting_ns = ns, .attached = p->attached, .lost = p->lost };
		worst = ns > worst ? ns : worst;
	}
	if (worst < c->spec->stall_warn_ns) {
		if (c->state == JOB_STALLED)
			set_state(c, JOB_RUNNING, "", now);
		return;
	}
	char text[256];
	describe_late(c, text, sizeof text, now);
	if (worst >= c->spec->stall_abort_ns) {
		coord_end(c, ST_STALLED, text, now);
		return;
	}
	if (c->state != JOB_STALLED) {
		event(c, true, "RankLate", c->late[0].rank, text);
		set_state(c, JOB_STALLED, text, now);
		broadcast(c, now);
	}
}

void coord_tick(struct coord *c, struct now now)
{
	if (c->superseded)
		return;
	if (c->phase == COORD_COLLECT)
		watch_late(c, now);
	if (c->phase == COORD_GO && now.mono_ns - c->phase_since_ns > ATTEMPT_TIMEOUT_NS)
		fail_attempt(c, "timed out", now);
	if (now.mono_ns - c->sent_ns >= RESEND_NS && c->phase != COORD_ENDING)
		broadcast(c, now);
}

/* ---- life ---- */

enum status coord_new(struct coord **out, uint64_t job_id, const struct job_spec *spec, uint64_t term,
		      uint32_t n_nodes, const struct coord_ports *ports)
{
	struct coord *c = calloc(1, sizeof *c);
	if (!c)
		return ST_NO_MEMORY;
	c->job_id = job_id;
	c->epoch = 1;
	c->term = term;
	c->spec = spec;
	c->ports = *ports;
	c->n_peers = n_nodes;
	c->n_words = (uint32_t)(((uint64_t)spec->ranks * spec->max_micro_size + 63) / 64);
	c->state = JOB_PENDING;
	c->peer = calloc(n_nodes, sizeof *c->peer);
	c->rank = calloc(spec->ranks, sizeof *c->rank);
	c->late = calloc(spec->ranks, sizeof *c->late);
	c->counted = calloc(c->n_words, sizeof *c->counted);
	if (!c->peer || !c->rank || !c->late || !c->counted) {
		coord_free(c);
		return ST_NO_MEMORY;
	}
	for (uint32_t r = 0; r < spec->ranks; r++)
		c->rank[r].rank = r;
	*out = c;
	return ST_OK;
}

void coord_free(struct coord *c)
{
	if (!c)
		return;
	free(c->peer);
	free(c->rank);
	free(c->late);
	free(c->counted);
	free(c);
}

void coord_restore(struct coord *c, const struct commit *last)
{
	c->commit = *last;
	c->have_commit = true;
	c->window = last->window;
	c->applied_step = last->applied_step;
	c->phase = COORD_COMMIT; /* some node may not have applied it: send it until all have */
	c->state = JOB_RUNNING;
}

/* ---- looking ---- */

enum coord_phase coord_phase(const struct coord *c)
{
	return c->phase;
}

enum job_state coord_state(const struct coord *c, const char **out_reason, int64_t *out_since_unix_ns)
{
	if (out_reason)
		*out_reason = c->reason;
	if (out_since_unix_ns)
		*out_since_unix_ns = c->state_since_unix_ns;
	return c->state;
}

uint64_t coord_window(const struct coord *c)
{
	return c->window;
}

uint64_t coord_applied_step(const struct coord *c)
{
	return c->applied_step;
}

uint64_t coord_attempt(const struct coord *c)
{
	return c->attempt;
}

bool coord_superseded(const struct coord *c)
{
	return c->superseded;
}

const struct commit *coord_last_commit(const struct coord *c)
{
	return c->have_commit ? &c->commit : NULL;
}

const struct rank_progress *coord_ranks(const struct coord *c, uint32_t *n)
{
	*n = c->spec->ranks;
	return c->rank;
}

int64_t coord_window_opened_unix_ns(const struct coord *c)
{
	return c->window_opened_unix_ns;
}

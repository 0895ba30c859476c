/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's pushes from call to answer: checks each against the open window, parks it, gives it to the engine, and
 * answers it when the engine has counted it. For trainers' Push calls and for inline streams (stream_calls.c). Part of
 * struct job; pure; loop thread. */
#include "control/job_impl.h"

#include "engine/commit.h"
#include "math/optim.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

static void push_reply(struct job *j, const struct rank *r, uint64_t call, uint32_t result, uint64_t window,
		       const struct parked_push *p)
{
	if (result == PUSH_VOID && j->spec->nonfinite == NONFINITE_ERROR) {
		reply_error(j, call, ST_NONFINITE, "the job fails: look at this rank's data and loss",
			    "rank %u, window %llu: %s (nonfinite: error)", r->global, (unsigned long long)window,
			    status_info(ST_NONFINITE)->text);
		return;
	}
	struct reply rep = { .kind = REPLY_PUSH };
	rep.push.result = result;
	rep.push.window = window;
	rep.push.counted = window == j->mirror.r.window ? j->mirror.rank[r->index].counted : 0;
	rep.push.micro_size = job_micro_size(j);
	rep.push.parked_ns = p ? j->clock_ns - p->since_ns : 0;
	rep.push.parked_for_rank = j->rank[p ? p->blocked_by : r->index].global;
	j->ports.reply(j->ports.ctx, call, &rep);
}

static void push_free(struct parked_push *p)
{
	free(p->present);
	*p = (struct parked_push){ 0 };
}

static void push_answer(struct job *j, struct rank *r, struct parked_push *p, uint32_t result)
{
	for (int i = 0; i < p->n_calls; i++)
		push_reply(j, r, p->call[i], i && result == PUSH_COUNTED ? PUSH_DUPLICATE : result, p->window, p);
	push_free(p);
}

void push_fail(struct job *j, struct rank *r, struct parked_push *p, enum status st, const char *text)
{
	for (int i = 0; i < p->n_calls; i++)
		reply_error(j, p->call[i], st, st == ST_WINDOW_CLOSED ? "go on with the next window" : NULL,
			    "rank %u, window %llu, micro-batch %u: %s", r->global, (unsigned long long)p->window,
			    p->micro, text && *text ? text : status_info(st)->text);
	push_free(p);
}

/* The window is over: answers whether this micro-batch was in it. */
static void answer_late(struct job *j, const struct rank *r, uint64_t call, uint64_t window, uint32_t micro)
{
	const struct past_window *past = past_find(j, window);
	if (past && micro < j->spec->max_micro_size &&
	    control_bit(past->counted, j->spec->max_micro_size, r->index, micro)) {
		push_reply(j, r, call, PUSH_ALREADY_COMMITTED, window, NULL);
		return;
	}
	if (!past)
		reply_error(j, call, ST_WINDOW_FORGOTTEN, "go on with the open window",
			    "window %llu is too long ago (window %llu is open, %d are remembered): whether micro-batch "
			    "%u of rank %u is in it is no longer known",
			    (unsigned long long)window, (unsigned long long)j->mirror.r.window, JOB_HISTORY, micro,
			    r->global);
	else
		reply_error(j, call, ST_WINDOW_CLOSED, "go on with the open window",
			    "window %llu closed without micro-batch %u of rank %u: not counted (window %llu is open)",
			    (unsigned long long)window, micro, r->global, (unsigned long long)j->mirror.r.window);
}

bool push_settle(struct job *j, struct rank *r, struct parked_push *p)
{
	if (p->window < j->mirror.r.window) {
		for (int i = 0; i < p->n_calls; i++)
			answer_late(j, r, p->call[i], p->window, p->micro);
		push_free(p);
		return true;
	}
	bool repeat = p->slot == REPEAT;
	if (repeat && j->mirror.r.phase == WINDOW_OPEN)
		return false; /* the engine compares the data_key with the one that it counted */
	if (rank_voided(j, r, p->micro))
		push_answer(j, r, p, PUSH_VOID);
	else if (rank_counted(j, r, p->micro))
		push_answer(j, r, p, repeat ? PUSH_DUPLICATE : PUSH_COUNTED);
	else if (j->mirror.r.phase != WINDOW_OPEN)
		push_fail(j, r, p, ST_WINDOW_CLOSED, "the window closed without this micro-batch: not counted");
	else
		return false;
	return true;
}

/* ---- to the engine, and back ---- */

static void send_add(struct job *j, struct rank *r, struct parked_push *p)
{
	uint32_t n, first = session_slots(j, r, &n);
	struct engine_command c = { .op = ENGINE_ADD,
				    .rank = r->index,
				    .sgen = r->sgen,
				    .window = p->window,
				    .micro = p->micro,
				    .slot = p->slot == REPEAT ? first : p->slot,
				    .weight = p->weight,
				    .loss = p->loss,
				    .loss_scale = j->mirror.r.loss_scale, /* push_well_formed has compared */
				    .data_key = p->data_key,
				    .unix_nanos = p->unix_ns,
				    .zero_after = p->zero_after,
				    .n_present = p->n_present,
				    .window_lr = p->lr };
	p->sent = job_send(j, &c, &p->command_id, p->present);
}

/* In ascending order, as the engine wants them; places do not keep it. */
static struct parked_push *first_unsent(struct rank *r)
{
	struct parked_push *first = NULL;
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (p->used && !p->sent && (!first || p->micro < first->micro))
			first = p;
	}
	return first;
}

void pushes_send(struct job *j, struct rank *r)
{
	if (!j->engine_up || !r->has_session ||
	    r->attaching) /* while it attaches: what the old session sent waits for the fence */
		return;
	struct parked_push *p;
	while ((p = first_unsent(r)))
		if (!push_settle(j, r, p)) {
			send_add(j, r, p);
			if (!p->sent)
				return;
		}
}

static void on_void(struct job *j, struct rank *r, const struct parked_push *p, const struct engine_answer *a)
{
	char text[200];
	snprintf(text, sizeof(text), "micro-batch %u of window %llu has %u non-finite gradient elements: not counted",
		 p->micro, (unsigned long long)p->window, a->nonfinite_count);
	j->ports.event(j->ports.ctx, j->id, true, "MicroRejected", r->global, text);
}

/* Answers come in the order of counting: the first one's learning rate is the window's. */
static void count_push(struct job *j, struct rank *r, const struct parked_push *p)
{
	r->weight += p->weight;
	if (j->mirror.r.count)
		return;
	j->mirror.r.window_lr = p->lr;
	j->mirror.r.lr_rank = r->index;
}

/* The engine refuses it, in the words that a trainer reads. */
static void push_refuse(struct job *j, struct rank *r, struct parked_push *p, const struct engine_answer *a)
{
	if (!*a->text) {
		push_fail(j, r, p, a->status, NULL);
		return;
	}
	for (int i = 0; i < p->n_calls; i++)
		reply_error(j, p->call[i], a->status, *a->hint ? a->hint : NULL, "%s", a->text);
	push_free(p);
}

void push_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || !p->sent || p->command_id != a->id)
			continue;
		if (a->status) {
			push_refuse(j, r, p, a);
			break;
		}
		if (a->result != PUSH_VOID && !rank_settled(j, r, p->micro))
			count_push(j, r, p);
		if (a->result == PUSH_COUNTED && a->nonfinite_count && !r->nonfinite++)
			r->first_nonfinite = p->micro;
		rank_settle(j, r, p->micro, a->result == PUSH_VOID);
		if (a->result == PUSH_VOID)
			on_void(j, r, p, a);
		push_answer(j, r, p, a->result);
		break;
	}
	job_report_rank(j, a->result == PUSH_VOID && j->spec->nonfinite == NONFINITE_ERROR, now);
}

/* ---- a call ---- */

bool present_wrong(const struct job *j, const struct push_args *a, char *text, size_t n)
{
	uint32_t n_bytes = (uint32_t)((j->set.n + 7) / 8);
	bool wrong_size = a->n_present && a->n_present != n_bytes;
	if (wrong_size)
		snprintf(text, n, "present has %u bytes, %llu tensors need %u", a->n_present,
			 (unsigned long long)j->set.n, n_bytes);
	if (wrong_size || !a->n_present || !(j->set.n % 8) ||
	    !(((const uint8_t *)a->present)[n_bytes - 1] >> j->set.n % 8))
		return wrong_size;
	snprintf(text, n, "present has bits past tensor %llu", (unsigned long long)j->set.n - 1);
	return true;
}

/* Checks that need no look at the window. */
static bool push_well_formed(struct job *j, uint64_t call, const struct push_args *a)
{
	char text[160];
	if (!isfinite(a->weight) || a->weight < DBL_MIN) { /* engines take subnormal numbers for 0 */
		reply_error(j, call, ST_BAD_WEIGHT, "send the number of samples or tokens of the micro-batch",
			    "weight is %g: it must be %g..%g", a->weight, DBL_MIN, DBL_MAX);
		return false;
	}
	if (!commit_is_lr(a->lr)) {
		reply_error(j, call, ST_INVALID_ARGUMENT, "send the window's learning rate, or 0 for the schedule's",
			    "lr is %g: it must be 0..%g", a->lr, COMMIT_MAX);
		return false;
	}
	if (present_wrong(j, a, text, sizeof(text))) {
		reply_error(j, call, ST_INVALID_ARGUMENT, PRESENT_HINT, "%s", text);
		return false;
	}
	double scale = a->loss_scale == 0 ? 1 : a->loss_scale;
	if (scale != j->mirror.r.loss_scale) {
		reply_error(j, call, ST_LOSS_SCALE_MISMATCH, "use the loss_scale that WaitReady or WaitStep gave",
			    "gradients carry loss scale %g, the window's is %g", scale, j->mirror.r.loss_scale);
		return false;
	}
	return true;
}

static const char *lr_words(double lr, char *buf, size_t n)
{
	if (lr == 0)
		return "the schedule's";
	snprintf(buf, n, "%g", lr);
	return buf;
}

/* The window's learning rate is that of its first counted push. */
static bool push_lr_fits(struct job *j, const struct rank *r, uint64_t call, const struct push_args *a)
{
	const struct control_record *m = &j->mirror.r;
	char is[40], said[40];
	if (!m->count || a->lr == m->window_lr)
		return true;
	reply_error(j, call, ST_LR_MISMATCH, NULL,
		    "rank %u gives window %llu the learning rate %s; rank %u, whose push was counted first, gave it %s",
		    r->global, (unsigned long long)a->window, lr_words(a->lr, said, sizeof(said)),
		    j->rank[m->lr_rank].global, lr_words(m->window_lr, is, sizeof(is)));
	return false;
}

/* Checks against the open window; answers and returns false when the push ends here. */
static bool push_admitted(struct job *j, struct rank *r, uint64_t call, const struct push_args *a)
{
	uint32_t size = job_micro_size(j), next = rank_progress_count(j, r);
	if (j->mirror.rank[r->index].flushed || r->flush_wanted) {
		reply_error(j, call, ST_FLUSHED, "wait for the window's outcome, then push into the next one",
			    "rank %u has flushed window %llu", r->global, (unsigned long long)a->window);
		return false;
	}
	if (j->mirror.r.phase != WINDOW_OPEN) {
		reply_error(j, call, ST_WINDOW_CLOSED, "go on with the next window",
			    "window %llu closed without micro-batch %u of rank %u: not counted",
			    (unsigned long long)a->window, a->micro, r->global);
		return false;
	}
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		next += r->push[i].used && !rank_settled(j, r, r->push[i].micro);
	if (j->spec->ordering == ORDER_CANONICAL && a->micro != next) {
		reply_error(j, call, ST_OUT_OF_ORDER, "push the micro-batches of a window in ascending order",
			    "micro-batch %u of rank %u: %u of %u is expected next", a->micro, r->global, next, size);
		return false;
	}
	if (a->slot >= j->spec->slots_per_rank) {
		reply_error(j, call, ST_BAD_SLOT, "slots are numbered from 0", "slot %u: this session has %u", a->slot,
			    j->spec->slots_per_rank);
		return false;
	}
	if (!a->streamed && !r->mapped) {
		reply_error(j, call, ST_BAD_SLOT,
			    "map the slots over the attach socket, or send the gradients with PushInline",
			    "slot %u: this session of rank %u has not mapped its slots", a->slot, r->global);
		return false;
	}
	if (slot_in_use(j, r, a->slot)) {
		reply_error(j, call, ST_SLOT_BUSY, "wait for that push to be acknowledged, or use the other slot",
			    "slot %u holds another micro-batch of rank %u that is not counted yet", a->slot, r->global);
		return false;
	}
	return true;
}

/* A repeat of a push that is still parked waits with it. */
static bool push_joined(struct job *j, struct rank *r, uint64_t call, const struct push_args *a)
{
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || p->micro != a->micro)
			continue;
		if (p->data_key != a->data_key)
			reply_error(j, call, ST_DATA_KEY_MISMATCH, "a micro-batch index names one set of samples",
				    "micro-batch %u is parked with data_key %016llx, this one has %016llx", a->micro,
				    (unsigned long long)p->data_key, (unsigned long long)a->data_key);
		else if (p->lr != a->lr)
			reply_error(j, call, ST_LR_MISMATCH, NULL,
				    "micro-batch %u of rank %u is parked with lr %g, this one has %g", a->micro,
				    r->global, p->lr, a->lr);
		else if (p->n_calls == PUSH_MAX_CALLS)
			reply_error(j, call, ST_RESOURCE_EXHAUSTED, "wait for the earlier calls",
				    "micro-batch %u is parked with %d calls already", a->micro, p->n_calls);
		else
			p->call[p->n_calls++] = call;
		return true;
	}
	return false;
}

static struct parked_push *push_new(struct rank *r)
{
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (!r->push[i].used)
			return &r->push[i];
	return NULL;
}

static void push_park(struct job *j, struct rank *r, uint64_t call, const struct push_args *a, bool repeat,
		      struct now now)
{
	struct parked_push *p = push_new(r);
	unsigned char *present = p && a->n_present ? malloc(a->n_present) : NULL;
	if (!p || (a->n_present && !present)) {
		reply_error(j, call, ST_RESOURCE_EXHAUSTED, "wait for earlier pushes of this rank",
			    "rank %u has %d pushes under way", r->global, RANK_MAX_PUSHES);
		return;
	}
	if (present)
		memcpy(present, a->present, a->n_present);
	uint32_t n, first = session_slots(j, r, &n);
	*p = (struct parked_push){ .used = true,
				   .window = a->window,
				   .micro = a->micro,
				   .slot = repeat ? REPEAT : first + a->slot,
				   .weight = a->weight,
				   .loss = a->loss,
				   .lr = a->lr,
				   .data_key = a->data_key,
				   .zero_after = a->zero_after,
				   .present = present,
				   .n_present = a->n_present,
				   .since_ns = now.mono_ns,
				   .unix_ns = now.unix_ns,
				   .call = { call },
				   .n_calls = 1 };
	p->blocked_by = rank_blocked_by(j, r, a->micro);
	r->last_push_unix_ns = now.unix_ns;
	pushes_send(j, r);
}

void job_push(struct job *j, uint64_t call, const struct session_key *k, const struct push_args *a, struct now now)
{
	struct rank *r = session_check(j, k, call);
	if (!r)
		return;
	bool known = past_find(j, a->window) && a->window < j->mirror.r.window; /* also when the job has ended since */
	if (!known && !call_in_window(j, call, k))
		return;
	if (a->window < j->mirror.r.window) {
		answer_late(j, r, call, a->window, a->micro);
		return;
	}
	if (a->window > j->mirror.r.window) {
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "call WaitStep for the window before first",
			    "window %llu is open, not %llu", (unsigned long long)j->mirror.r.window,
			    (unsigned long long)a->window);
		return;
	}
	if (a->micro >= job_micro_size(j)) {
		reply_error(j, call, ST_WINDOW_FULL,
			    "call WaitStep after micro_size micro-batches, then push into the next window",
			    "micro-batch index %u: a rank contributes %u to a window (0..%u)", a->micro,
			    job_micro_size(j), job_micro_size(j) - 1);
		return;
	}
	if (!push_well_formed(j, call, a) || !push_lr_fits(j, r, call, a))
		return;
	bool repeat = rank_settled(j, r, a->micro);
	if (repeat && (!a->data_key || j->mirror.r.phase != WINDOW_OPEN)) {
		push_reply(j, r, call, rank_voided(j, r, a->micro) ? PUSH_VOID : PUSH_DUPLICATE, a->window, NULL);
		return;
	}
	if (push_joined(j, r, call, a))
		return;
	if (repeat || push_admitted(j, r, call, a))
		push_park(j, r, call, a, repeat, now);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's pushes from call to answer: checks each against the open window, parks it, gives it to the engine, and
 * answers it when the engine has counted it. For trainers' Push calls and for inline streams (stream_calls.c). Part of
 * struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

/* a: the engine's answer; NULL: there was no need to ask it. */
static void push_reply(struct job *j, const struct rank *r, uint64_t call, uint32_t result, uint64_t window,
		       const struct parked_push *p, const struct engine_answer *a)
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
	rep.push.counted = a ? a->rank_counted : 0;
	rep.push.micro_size = job_micro_size(j);
	rep.push.parked_ns = p ? j->clock_ns - p->since_ns : 0;
	rep.push.parked_for_rank = j->rank[a ? a->blocked_by : r->index].global;
	j->ports.reply(j->ports.ctx, call, &rep);
}

static void push_free(struct parked_push *p)
{
	free(p->present);
	*p = (struct parked_push){ 0 };
}

void push_fail(struct job *j, struct rank *r, struct parked_push *p, enum status st, const char *text)
{
	if (!p->gone)
		reply_error(j, p->call, st, st == ST_WINDOW_CLOSED ? "go on with the next window" : NULL,
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
		push_reply(j, r, call, PUSH_ALREADY_COMMITTED, window, NULL, NULL);
		return;
	}
	if (past_is_due(j, window))
		reply_past_due(j, call, window);
	else if (!past)
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
	if (p->window >= j->mirror.r.window)
		return false;
	if (!p->gone)
		answer_late(j, r, p->call, p->window, p->micro);
	push_free(p);
	return true;
}

/* ---- to the engine, and back ---- */

static void send_add(struct job *j, struct rank *r, struct parked_push *p)
{
	struct engine_command c = { .op = ENGINE_ADD,
				    .rank = r->index,
				    .sgen = r->sgen,
				    .window = p->window,
				    .micro = p->micro,
				    .slot = p->slot,
				    .weight = p->weight,
				    .loss = p->loss,
				    .loss_scale = p->loss_scale,
				    .data_key = p->data_key,
				    .unix_nanos = p->unix_ns,
				    .zero_after = p->zero_after,
				    .n_present = p->n_present,
				    .window_lr = p->lr };
	p->sent = job_send(j, &c, &p->command_id, p->present);
}

/* In ascending order, as the engine wants them, and a repeat behind what it repeats; places do not keep it. */
static struct parked_push *first_unsent(struct rank *r)
{
	struct parked_push *first = NULL;
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		bool before = !first || p->micro < first->micro || (p->micro == first->micro && p->slot < first->slot);
		if (p->used && !p->sent && before)
			first = p;
	}
	return first;
}

void pushes_send(struct job *j, struct rank *r)
{
	if (!j->engine_up || !r->has_session ||
	    r->attaching) /* while it attaches: what the old session sent waits for the fence */
		return;
	if (!mailbox_send(j, r))
		return;
	struct parked_push *p;
	while ((p = first_unsent(r)))
		if (!push_settle(j, r, p)) {
			send_add(j, r, p);
			if (!p->sent)
				return;
		}
}

void push_note_void(struct job *j, struct rank *r, uint32_t micro, uint32_t nonfinite)
{
	char text[200];
	snprintf(text, sizeof(text),
		 nonfinite ? "micro-batch %u of window %llu has %u non-finite gradient elements: not counted"
			   : "micro-batch %u of window %llu has non-finite gradient elements: not counted",
		 micro, (unsigned long long)j->mirror.r.window, nonfinite);
	j->ports.event(j->ports.ctx, j->id, true, "MicroRejected", r->global, text);
}

void push_note_nonfinite(struct rank *r, uint32_t micro)
{
	if (!r->nonfinite++)
		r->first_nonfinite = micro;
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

/* The push is counted, or void, or was so before. */
static void push_taken(struct job *j, struct rank *r, struct parked_push *p, const struct engine_answer *a)
{
	const bool is_void = a->result == PUSH_VOID, counts = a->result == PUSH_COUNTED;
	if (counts && !rank_settled(j, r, p->micro))
		count_push(j, r, p);
	if (!is_void && a->nonfinite_count) /* also of a DUPLICATE that was in a cell: it is said once */
		push_note_nonfinite(r, p->micro);
	if (counts || is_void)
		rank_settle(j, r, p->micro, is_void);
	if (is_void && (a->nonfinite_count || p->resent))
		push_note_void(j, r, p->micro, a->nonfinite_count);
	/* the answer of an engine that died was this one's */
	bool counted = a->result == PUSH_DUPLICATE && p->resent && p->no_slot != SLOT_OF_REPEAT;
	if (!p->gone)
		push_reply(j, r, p->call, counted ? PUSH_COUNTED : a->result, p->window, p, a);
	push_free(p);
}

/* The engine would have taken it, but for the slot. */
static void refuse_no_slot(struct job *j, struct rank *r, struct parked_push *p)
{
	if (p->no_slot == SLOT_OF_REPEAT) {
		push_fail(j, r, p, ST_UNAVAILABLE, "the push that this one repeats has been refused: send it again");
		return;
	}
	if (!p->gone && p->no_slot == SLOT_NOT_MAPPED)
		reply_error(j, p->call, ST_BAD_SLOT,
			    "map the slots over the attach socket, or send the gradients with PushInline",
			    "this session of rank %u has not mapped its slots", r->global);
	else if (!p->gone)
		reply_error(j, p->call, ST_SLOT_BUSY, "wait for that stream to be answered, or use the other slot",
			    "the slot of rank %u holds a stream, or a piece of the parameters", r->global);
	push_free(p);
}

/* The engine refuses it, in the words that a trainer reads. */
static void push_refused(struct job *j, struct rank *r, struct parked_push *p, const struct engine_answer *a)
{
	if (a->status == ST_BAD_SLOT && p->no_slot)
		refuse_no_slot(j, r, p);
	else if (a->status == ST_WINDOW_FORGOTTEN && p->window < j->mirror.r.window)
		push_settle(j, r, p); /* there gaccd knows more */
	else if (!*a->text)
		push_fail(j, r, p, a->status, NULL);
	else {
		if (!p->gone)
			reply_error(j, p->call, a->status, *a->hint ? a->hint : NULL, "%s", a->text);
		push_free(p);
	}
}

void push_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || !p->sent || p->command_id != a->id)
			continue;
		if (a->status)
			push_refused(j, r, p, a);
		else
			push_taken(j, r, p, a);
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

bool push_repeats(const struct job *j, const struct rank *r, uint64_t window, uint32_t micro)
{
	if (window != j->mirror.r.window || micro >= j->spec->max_micro_size)
		return false;
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used && r->push[i].window == window && r->push[i].micro == micro)
			return true;
	return rank_settled(j, r, micro);
}

static enum no_slot why_no_slot(const struct job *j, const struct rank *r, const struct push_args *a)
{
	if (push_repeats(j, r, a->window, a->micro))
		return SLOT_OF_REPEAT;
	if (!a->streamed && !r->mapped)
		return SLOT_NOT_MAPPED;
	return a->slot < j->spec->slots_per_rank && slot_is_filled(j, r, a->slot) ? SLOT_FILLED : SLOT_NAMED;
}

/* What the engine does not know. All else it judges (engine/accum.h), whichever way a push comes. Answers and returns
 * false when the push ends here. */
static bool push_admitted(struct job *j, const struct rank *r, uint64_t call, const struct push_args *a,
			  enum no_slot no_slot)
{
	char text[160];
	if (present_wrong(j, a, text, sizeof(text))) { /* a packet to the engine must have room for it */
		reply_error(j, call, ST_INVALID_ARGUMENT, PRESENT_HINT, "%s", text);
		return false;
	}
	if (r->flush_wanted && no_slot != SLOT_OF_REPEAT) {
		reply_error(j, call, ST_FLUSHED, "wait for the window's outcome, then push into the next one",
			    "rank %u has flushed window %llu", r->global, (unsigned long long)a->window);
		return false;
	}
	return true;
}

static bool same_bits(double a, double b)
{
	uint64_t x, y;
	memcpy(&x, &a, sizeof(x));
	memcpy(&y, &b, sizeof(y));
	return x == y; /* also of NaN, as the loss of a run that diverges may be */
}

/* What is read must be the same, too: the slot of a push that is none's repeat. */
static bool is_same(const struct parked_push *p, const struct push_args *a, uint32_t slot)
{
	const bool reads_same =
		p->no_slot == SLOT_OF_REPEAT || (p->no_slot == SLOT_NAMED && !a->streamed && p->slot == slot);
	return reads_same && p->window == a->window && p->micro == a->micro && same_bits(p->weight, a->weight) &&
	       same_bits(p->loss, a->loss) && same_bits(p->loss_scale, a->loss_scale) && same_bits(p->lr, a->lr) &&
	       p->data_key == a->data_key && p->zero_after == a->zero_after && p->n_present == a->n_present &&
	       (!p->n_present || !memcmp(p->present, a->present, p->n_present));
}

/* A trainer that has given up its call asks once more: it hears what becomes of the push that is under way. A place for
 * each repeat would leave none for a rank that waits for long. The repeat may come before the end of the call before
 * it, as gRPC does not order the two; then it has a place of its own, which the next repeat takes over: two are enough.
 */
static bool push_joins(struct job *j, struct rank *r, uint64_t call, const struct push_args *a)
{
	uint32_t n, slot = session_slots(j, r, &n) + a->slot;
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || !p->gone || !is_same(p, a, slot))
			continue;
		p->call = call;
		p->gone = false;
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

static void push_park(struct job *j, struct rank *r, uint64_t call, const struct push_args *a, enum no_slot no_slot,
		      struct now now)
{
	struct parked_push *p = push_new(r);
	unsigned char *present = p && a->n_present ? malloc(a->n_present) : NULL;
	if (!p) {
		reply_error(j, call, ST_RESOURCE_EXHAUSTED, "wait for earlier pushes of this rank",
			    "rank %u has %d pushes under way", r->global, RANK_MAX_PUSHES);
		return;
	}
	if (a->n_present && !present) {
		reply_error(j, call, ST_NO_MEMORY, NULL, "rank %u, micro-batch %u: no memory for its bitmap", r->global,
			    a->micro);
		return;
	}
	if (present)
		memcpy(present, a->present, a->n_present);
	uint32_t n, first = session_slots(j, r, &n);
	*p = (struct parked_push){ .used = true,
				   .window = a->window,
				   .micro = a->micro,
				   .no_slot = no_slot,
				   .slot = no_slot ? NO_SLOT : first + a->slot,
				   .weight = a->weight,
				   .loss = a->loss,
				   .loss_scale = a->loss_scale,
				   .lr = a->lr,
				   .data_key = a->data_key,
				   .zero_after = a->zero_after,
				   .present = present,
				   .n_present = a->n_present,
				   .since_ns = now.mono_ns,
				   .unix_ns = now.unix_ns,
				   .call = call };
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
	if (a->window < j->mirror.r.window)
		answer_late(j, r, call, a->window, a->micro);
	else if (a->window > j->mirror.r.window)
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "call WaitStep for the window before first",
			    "window %llu is open, not %llu", (unsigned long long)j->mirror.r.window,
			    (unsigned long long)a->window);
	else {
		enum no_slot no_slot = why_no_slot(j, r, a);
		if (push_admitted(j, r, call, a, no_slot) && !push_joins(j, r, call, a))
			push_park(j, r, call, a, no_slot, now);
	}
}

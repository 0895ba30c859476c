/* SPDX-License-Identifier: Apache-2.0 */
/* Turns control's answers (struct reply) into messages and ends the calls with them; many at once are spread over
 * turns of the loop. For the parts' ports and the method files. Loop thread; tensor layouts are made in the pool. */
#include "edge/reply.h"

#include "edge/convert.h"
#include "edge/daemon.h"
#include "edge/session_id.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"
#include "proto/version.h"
#include "runtime/part.h"

#include <stdlib.h>
#include <string.h>

#define SPEC_FIELD_OF_ATTACH 9

void reply_fail(struct rpc_call *call, const struct reply *r)
{
	struct rpc_error e = { .status = r->status,
			       .message = r->text[0] ? r->text : NULL,
			       .hint = r->hint[0] ? r->hint : NULL,
			       .field = r->field,
			       .missing_ranks = r->missing,
			       .n_missing_ranks = r->n_missing };
	rpc_fail(call, &e);
}

static void send_attach(struct part *part, struct rpc_call *call, const struct reply *r)
{
	Gacc__V1__AttachResponse m = GACC__V1__ATTACH_RESPONSE__INIT;
	Gacc__V1__Session s = GACC__V1__SESSION__INIT;
	s.id = session_id(part->id, r->attach.rank);
	s.token = (ProtobufCBinaryData){ 16, (uint8_t *)r->attach.token };
	m.session = &s;
	m.job_id = part->id;
	m.epoch = r->attach.epoch;
	m.generation = r->attach.generation;
	m.protocol = PROTOCOL_VERSION;
	m.ranks = job_part(part->job)->world;
	m.micro_size = r->attach.micro_size;
	m.attach_socket = rpc_peer(call)->is_unix ? part->node->conf->listen.attach_socket : (char *)"";
	ProtobufCMessageUnknownField packed = { SPEC_FIELD_OF_ATTACH, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
						part->text->n_field, part->text->field };
	if (part->text->field) { /* as it is: hosted_view.c */
		m.base.unknown_fields = &packed;
		m.base.n_unknown_fields = 1;
	} else {
		m.spec = part->text->pb;
	}
	m.tensors_known = r->attach.tensors_known;
	rpc_finish(call, &m.base);
}

#define LAYOUT_MOST 65536 /* tensors of one answer that has a limit: at most 3.5 MB */

/* The layout of all tensors, or of a part of them; filled in and packed in the pool, which may read the arena as it
 * does not change. */
struct layout_reply {
	struct part *part;	  /* held */
	struct layout_part asked; /* limit: as many as there are */
	Gacc__V1__RegisterTensorsResponse m;
	Gacc__V1__TensorLayout *layout, **list;
};

static const ProtobufCMessage *make_layout(void *arg)
{
	struct layout_reply *r = arg;
	const struct arena *a = job_arena(r->part->job);
	size_t acc = dtype_size(r->part->spec->accumulate_dtype);
	uint64_t n = r->asked.limit;
	r->layout = calloc(n + 1, sizeof(*r->layout));
	r->list = calloc(n + 1, sizeof(*r->list));
	if (!r->layout || !r->list)
		return NULL;
	for (uint64_t i = 0; i < n; i++) {
		const struct arena_tensor *at = &a->tensor[r->asked.first + i];
		Gacc__V1__TensorLayout *t = r->list[i] = &r->layout[i];
		gacc__v1__tensor_layout__init(t);
		t->slot_offset = at->slot_offset;
		t->param_offset = at->param_offset;
		t->count = at->count;
		t->grad_dtype = (Gacc__V1__DataType)a->group[at->group].grad_dtype;
		t->param_dtype = (Gacc__V1__DataType)a->group[at->group].param_dtype;
		t->accum_offset = at->start * acc;
	}
	r->m.n_layout = n;
	r->m.layout = r->list;
	return &r->m.base;
}

static void release_layout(void *arg)
{
	struct layout_reply *r = arg;
	part_drop(r->part);
	free(r->list);
	free(r->layout);
	free(r);
}

static struct layout_part layout_of(struct layout_part asked, uint64_t n)
{
	uint64_t first = asked.first < n ? asked.first : n, left = n - first;
	uint64_t limit = asked.limit < LAYOUT_MOST ? asked.limit : LAYOUT_MOST;
	return (struct layout_part){ first, !limit || limit > left ? left : limit };
}

static void send_registered(struct part *part, struct rpc_call *call, const struct reply *r)
{
	const struct arena *a = job_arena(part->job);
	struct layout_reply *p = calloc(1, sizeof(*p));
	if (!p) {
		rpc_failf(call, ST_NO_MEMORY, "no memory for the layout");
		return;
	}
	p->part = part;
	part_hold(part);
	p->asked = layout_of(r->registered.part, a->n_tensors);
	gacc__v1__register_tensors_response__init(&p->m);
	p->m.received = a->n_tensors;
	p->m.slot_bytes = a->slot_bytes;
	p->m.param_bytes = a->param_bytes;
	p->m.accum_bytes = a->n_elements * dtype_size(part->spec->accumulate_dtype);
	p->m.fingerprint = a->fingerprint;
	p->m.params_needed = r->registered.params_needed;
	p->m.slots = r->registered.slots;
	p->m.keeps_slot = part->spec->accumulate == ACCUMULATE_NONE;
	p->m.accumulate_dtype = (Gacc__V1__DataType)part->spec->accumulate_dtype;
	rpc_finish_made(call, make_layout, release_layout, p);
}

static void send_ready(struct rpc_call *call, const struct reply *r)
{
	Gacc__V1__WaitReadyResponse m = GACC__V1__WAIT_READY_RESPONSE__INIT;
	Gacc__V1__StepResult last = GACC__V1__STEP_RESULT__INIT;
	convert_step(&r->ready.last, &last);
	m.window = r->ready.window;
	m.applied_step = r->ready.applied_step;
	m.micro_size = r->ready.micro_size;
	m.n_missing = r->ready.n_missing;
	m.missing = (uint32_t *)r->ready.missing;
	m.loss_scale = r->ready.loss_scale;
	m.flushed = r->ready.flushed;
	m.pending_apply = r->ready.pending_apply;
	if (r->ready.pending_apply) {
		m.pending_case = GACC__V1__WAIT_READY_RESPONSE__PENDING_PENDING_WINDOW;
		m.pending_window = r->ready.pending_window;
	}
	m.last = &last;
	rpc_finish(call, &m.base);
}

static void send_push(struct rpc_call *call, const struct reply *r)
{
	Gacc__V1__PushResponse m = GACC__V1__PUSH_RESPONSE__INIT;
	m.result = (Gacc__V1__PushResult)r->push.result;
	m.window = r->push.window;
	m.micro_count = r->push.counted;
	m.micro_size = r->push.micro_size;
	m.parked_ns = r->push.parked_ns;
	m.parked_for_rank = r->push.parked_for_rank;
	rpc_finish(call, &m.base);
}

static void send_step(struct rpc_call *call, const struct reply *r)
{
	Gacc__V1__WaitStepResponse m = GACC__V1__WAIT_STEP_RESPONSE__INIT;
	Gacc__V1__StepResult step = GACC__V1__STEP_RESULT__INIT;
	convert_step(&r->step.commit, &step);
	m.result = &step;
	m.micro_size = r->step.micro_size;
	m.accum_half = r->step.accum_half;
	m.job_done = r->step.done;
	rpc_finish(call, &m.base);
}

static void send_small(struct rpc_call *call, const struct reply *r)
{
	Gacc__V1__PutParametersResponse put = GACC__V1__PUT_PARAMETERS_RESPONSE__INIT;
	Gacc__V1__FlushResponse flush = GACC__V1__FLUSH_RESPONSE__INIT;
	Gacc__V1__DetachResponse empty = GACC__V1__DETACH_RESPONSE__INIT; /* AckStepResponse has the same no fields */
	if (r->kind == REPLY_PUT)
		put.ready = r->put.ready;
	else if (r->kind == REPLY_FLUSH)
		flush.micro_count = r->flush.counted;
	rpc_finish(call, r->kind == REPLY_PUT ? &put.base : r->kind == REPLY_FLUSH ? &flush.base : &empty.base);
}

static bool stream_takes(struct rpc_call *call, const struct reply *r)
{
	const struct part_caller *caller = rpc_data(call);
	return caller && caller->take_reply && caller->take_reply(call, r);
}

void reply_now(struct part *part, struct rpc_call *call, const struct reply *r)
{
	if (FAILPOINT_ERROR(gaccd_reply_before)) {
		rpc_failf(call, ST_UNAVAILABLE, "the answer is lost");
		return;
	}
	if (stream_takes(call, r))
		return;
	if (r->status) {
		reply_fail(call, r);
		return;
	}
	switch (r->kind) {
	case REPLY_ATTACH:
		send_attach(part, call, r);
		break;
	case REPLY_REGISTER:
		send_registered(part, call, r);
		break;
	case REPLY_READY:
		send_ready(call, r);
		break;
	case REPLY_PUSH:
		send_push(call, r);
		break;
	case REPLY_STEP:
		send_step(call, r);
		break;
	case REPLY_PUT:
	case REPLY_FLUSH:
	case REPLY_EMPTY:
		send_small(call, r);
		break;
	}
}

/* ---- many in one turn ---- */

#define REPLIES_A_TURN 256 /* of those that may wait; some ten microseconds each */

/* Those of one window are all the same. */
struct late_text {
	uint64_t users;
	struct reply reply;
};

struct late_reply {
	struct late_reply *next;
	uint64_t call;
	struct late_text *text;
};

struct late_turn {
	struct posted posted; /* first */
	struct daemon *d;
};

/* A window's end, or a job's, answers every call that waits for it, and a user chooses how many do. They have nothing
 * borrowed, and no inline stream waits for one. */
static bool may_wait(const struct rpc_call *call, const struct reply *r)
{
	const struct part_caller *caller = rpc_data(call);
	return caller && !caller->take_reply && (r->status || r->kind == REPLY_STEP);
}

static bool is_one_too_many(struct daemon *d)
{
	uint64_t now = uv_now(&d->node.loop);
	if (d->late.turn_ms != now)
		d->late.n = 0;
	d->late.turn_ms = now;
	return d->late.first || d->late.n++ >= REPLIES_A_TURN;
}

/* Byte by byte: what else differs is kept twice, which is safe. */
static bool same_bytes(const void *a, const void *b, size_t n)
{
	return memcmp(a, b, n) == 0;
}

static struct late_text *share(struct late_text *t, const struct reply *r)
{
	if (!t || !same_bytes(&t->reply, r, sizeof(*r))) {
		t = malloc(sizeof(*t));
		if (!t)
			return NULL;
		t->users = 0;
		memcpy(&t->reply, r, sizeof(*r)); /* with its padding, which is compared, too */
	}
	t->users++;
	return t;
}

static void free_late(struct late_reply *w)
{
	if (!--w->text->users)
		free(w->text);
	free(w);
}

static void send_late(struct posted *p)
{
	struct late_turn *t = (struct late_turn *)p;
	struct daemon *d = t->d;
	for (int i = 0; i < REPLIES_A_TURN && d->late.first; i++) {
		struct late_reply *w = d->late.first;
		struct rpc_call *call = rpc_find(d->rpc, w->call);
		d->late.first = w->next;
		if (call)
			reply_now(NULL, call, &w->text->reply); /* errors and steps need no part */
		free_late(w);
	}
	if (d->late.first) {
		daemon_post(d, p, send_late);
	} else {
		d->late.posted = false;
		free(t);
	}
}

/* false: no memory, it is sent now. */
static bool put_off(struct daemon *d, uint64_t call, const struct reply *r)
{
	struct late_replies *late = &d->late;
	struct late_turn *t = late->posted ? NULL : malloc(sizeof(*t));
	struct late_reply *w = t || late->posted ? malloc(sizeof(*w)) : NULL;
	if (!w) {
		free(t);
		return false;
	}
	*w = (struct late_reply){ .call = call };
	w->text = share(late->first ? late->last->text : NULL, r);
	if (!w->text) {
		free(t);
		free(w);
		return false;
	}
	if (late->first)
		late->last->next = w;
	else
		late->first = w;
	late->last = w;
	if (t) {
		t->d = d;
		late->posted = true;
		daemon_post(d, &t->posted, send_late);
	}
	return true;
}

void reply_send(void *ctx, uint64_t id, const struct reply *r)
{
	struct part *part = ctx;
	struct daemon *d = daemon_of_node(part->node);
	struct rpc_call *call = rpc_find(d->rpc, id);
	if (!call)
		return;
	if (!may_wait(call, r) || !is_one_too_many(d) || !put_off(d, id, r))
		reply_now(part, call, r);
}

void reply_drop_late(struct daemon *d)
{
	while (d->late.first) {
		struct late_reply *w = d->late.first;
		d->late.first = w->next;
		free_late(w);
	}
}

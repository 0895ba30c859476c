/* SPDX-License-Identifier: Apache-2.0 */
/* Queues records and reads for the journal: copies each record or holds its shared bytes, writes all that wait as
 * one batch, and calls back in the order of the calls. For all of edge that needs something durable. Loop thread;
 * the journal itself is used on one thread of libuv's pool at a time. */
#include "runtime/persist.h"

#include "proto/failpoint.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define SETTLE_TICKS 10

struct item {
	struct item *next;
	struct journal_record record;
	void *owned[3];	       /* copies of its bytes and texts */
	struct shared *shared; /* held: what its bytes are, if they are not copied */
	enum status status;
	void (*cb)(void *arg, enum status); /* NULL: nobody waits, or it is muted */
	void *arg, *own_arg;		    /* own_arg: to be freed */
};

struct persist {
	uv_loop_t *loop;
	uv_work_t work;
	struct journal *journal;
	uint64_t term;
	struct item *queue, **tail; /* loop thread */
	struct item *batch;	    /* the pool thread's while busy */
	struct persist_read *reads, **reads_tail;
	struct persist_read *reading; /* the pool thread's while busy */
	bool busy, muted;
	bool settling;	    /* the pool thread's while busy */
	unsigned unsettled; /* ticks since a batch was written that is not settled; 0: none */
};

static void item_free(struct item *i)
{
	if (!i)
		return;
	for (int k = 0; k < 3; k++)
		free(i->owned[k]);
	free(i->own_arg);
	shared_drop(i->shared);
	free(i);
}

static bool own_bytes(struct item *i, int k, struct journal_bytes *b)
{
	if (!b->n || i->shared)
		return true;
	i->owned[k] = malloc(b->n);
	if (!i->owned[k])
		return false;
	memcpy(i->owned[k], b->data, b->n);
	b->data = i->owned[k];
	return true;
}

static bool own_text(struct item *i, int k, const char **text)
{
	if (!*text)
		return true;
	i->owned[k] = strdup(*text);
	*text = i->owned[k];
	return *text != NULL;
}

static bool own(struct item *i)
{
	struct journal_record *r = &i->record;
	switch (r->kind) {
	case JOURNAL_JOB:
		return own_bytes(i, 0, &r->job.spec) && own_bytes(i, 1, &r->job.tensors) &&
		       own_text(i, 2, &r->job.user);
	case JOURNAL_TENSORS:
		return own_bytes(i, 0, &r->tensors.set);
	case JOURNAL_EPOCH:
		return own_text(i, 0, &r->epoch.reason);
	case JOURNAL_COMMIT:
		return own_bytes(i, 0, &r->commit.payload);
	case JOURNAL_END:
		return own_text(i, 0, &r->end.reason) && own_bytes(i, 1, &r->end.view);
	case JOURNAL_VIEW:
		return own_bytes(i, 0, &r->view.view);
	case JOURNAL_HOLD:
		return own_text(i, 0, &r->hold.reason);
	case JOURNAL_UPDATE:
		return own_bytes(i, 0, &r->update.payload);
	case JOURNAL_RESTORED:
		return own_bytes(i, 0, &r->restored.base);
	case JOURNAL_EXITS:
		return own_bytes(i, 0, &r->exits.exits);
	case JOURNAL_CHECKPOINT:
		return own_bytes(i, 0, &r->checkpoint.sha256) && own_text(i, 1, &r->checkpoint.path);
	case JOURNAL_PART:
		return own_bytes(i, 0, &r->part.placement);
	case JOURNAL_PART_TENSORS:
		return own_bytes(i, 0, &r->part_tensors.set);
	case JOURNAL_CHECKPOINT_GONE:
	case JOURNAL_PARAMS_READY:
	case JOURNAL_FORGET:
	case JOURNAL_PART_BEGUN:
	case JOURNAL_PART_GONE:
		break;
	}
	return true;
}

/* The failpoints of a record: before it is written, or when it is durable and nobody has been told. */
static enum status point_of(enum journal_kind kind, bool durable)
{
	switch (kind) {
	case JOURNAL_JOB:
		return durable ? FAILPOINT_ERROR(coord_job_after) : FAILPOINT_ERROR(coord_job_before);
	case JOURNAL_TENSORS:
		return durable ? FAILPOINT_ERROR(coord_tensors_after) : FAILPOINT_ERROR(coord_tensors_before);
	case JOURNAL_PARAMS_READY:
		return durable ? FAILPOINT_ERROR(coord_params_after) : FAILPOINT_ERROR(coord_params_before);
	case JOURNAL_COMMIT:
		return durable ? FAILPOINT_ERROR(coord_commit_after) : FAILPOINT_ERROR(coord_commit_before);
	case JOURNAL_HOLD:
		return durable ? FAILPOINT_ERROR(coord_hold_after) : FAILPOINT_ERROR(coord_hold_before);
	case JOURNAL_UPDATE:
		return durable ? FAILPOINT_ERROR(coord_update_after) : FAILPOINT_ERROR(coord_update_before);
	case JOURNAL_CHECKPOINT:
		return durable ? FAILPOINT_ERROR(coord_save_after) : FAILPOINT_ERROR(coord_save_before);
	case JOURNAL_CHECKPOINT_GONE:
		return durable ? FAILPOINT_ERROR(coord_save_gone_after) : FAILPOINT_ERROR(coord_save_gone_before);
	case JOURNAL_RESTORED:
		return durable ? FAILPOINT_ERROR(coord_load_after) : FAILPOINT_ERROR(coord_load_before);
	case JOURNAL_EXITS:
		return durable ? FAILPOINT_ERROR(coord_exits_after) : FAILPOINT_ERROR(coord_exits_before);
	case JOURNAL_END:
		return durable ? FAILPOINT_ERROR(coord_end_after) : FAILPOINT_ERROR(coord_end_before);
	case JOURNAL_VIEW: /* END has one */
	case JOURNAL_FORGET:
	case JOURNAL_EPOCH: /* nobody writes one yet */
	case JOURNAL_PART:
	case JOURNAL_PART_TENSORS:
	case JOURNAL_PART_BEGUN:
	case JOURNAL_PART_GONE:
		break;
	}
	return ST_OK;
}

/* One bad record must not make the others fail: a batch that is refused is written again record by record. A journal
 * that has failed refuses everything anyway. */
static void write_batch(struct persist *p)
{
	size_t n = 0;
	for (struct item *i = p->batch; i; i = i->next)
		n++;
	struct journal_record *all = calloc(n, sizeof(*all));
	enum status st = all ? ST_OK : ST_NO_MEMORY;
	n = 0;
	for (struct item *i = p->batch; i && all; i = i->next) {
		all[n++] = i->record;
		st = st ? st : point_of(i->record.kind, false);
	}
	if (!st)
		st = journal_commit(p->journal, p->term, all, n);
	bool one_by_one = st && st != ST_STORE_FAILED && n != 1;
	for (struct item *i = p->batch; i; i = i->next) {
		i->status = one_by_one ? journal_commit(p->journal, p->term, &i->record, 1) : st;
		if (!i->status)
			i->status = point_of(i->record.kind, true);
	}
	free(all);
}

static void work(uv_work_t *w)
{
	struct persist *p = w->data;
	if (p->batch)
		write_batch(p);
	if (p->reading)
		p->reading->read(p->reading, p->journal);
	if (p->settling)
		journal_settle(p->journal); /* a failure shows at the next batch */
}

static void start(struct persist *p);

static void on_worked(uv_work_t *w, int canceled)
{
	struct persist *p = w->data;
	struct item *i = p->batch;
	struct persist_read *r = p->reading;
	p->batch = NULL;
	p->reading = NULL;
	p->busy = p->settling = false;
	if (i && !p->unsettled)
		p->unsettled = 1;
	while (i) {
		struct item *next = i->next;
		if (i->cb)
			i->cb(i->arg, i->status);
		item_free(i);
		i = next;
	}
	if (r)
		r->done(r, p->muted);
	start(p);
}

static void start(struct persist *p)
{
	bool due = p->unsettled >= SETTLE_TICKS;
	if (p->busy || (!p->queue && !p->reads && !due))
		return;
	p->settling = due;
	p->unsettled = due ? 0 : p->unsettled;
	p->batch = p->queue;
	p->queue = NULL;
	p->tail = &p->queue;
	p->reading = p->reads;
	if (p->reads)
		p->reads = p->reads->next;
	if (!p->reads)
		p->reads_tail = &p->reads;
	p->busy = true;
	uv_queue_work(p->loop, &p->work, work, on_worked);
}

void persist_tick(struct persist *p)
{
	if (!p)
		return;
	if (p->unsettled)
		p->unsettled++;
	start(p);
}

enum status persist_new(void *loop, struct journal *journal, uint64_t term, struct persist **out)
{
	struct persist *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	p->loop = loop;
	p->journal = journal;
	p->term = term;
	p->tail = &p->queue;
	p->reads_tail = &p->reads;
	p->work.data = p;
	*out = p;
	return ST_OK;
}

static void mute(struct item *i)
{
	for (; i; i = i->next) {
		i->cb = NULL;
		free(i->own_arg);
		i->own_arg = NULL;
	}
}

void persist_mute(struct persist *p)
{
	if (!p)
		return;
	p->muted = true;
	mute(p->batch); /* the pool thread looks at their records alone */
	mute(p->queue);
}

void persist_free(struct persist *p)
{
	if (!p)
		return;
	persist_mute(p);
	while (p->busy || p->queue || p->reads)
		uv_run(p->loop, UV_RUN_ONCE);
	free(p);
}

static enum status put(struct persist *p, const struct journal_record *r, struct shared *bytes,
		       void (*cb)(void *arg, enum status), void *arg, void *own_arg)
{
	struct item *i = calloc(1, sizeof(*i));
	if (!i) {
		free(own_arg);
		return ST_NO_MEMORY;
	}
	*i = (struct item){
		.record = *r, .cb = cb, .arg = arg, .own_arg = own_arg, .shared = bytes ? shared_hold(bytes) : NULL
	};
	if (!own(i)) {
		item_free(i);
		return ST_NO_MEMORY;
	}
	if (p->muted)
		mute(i);
	*p->tail = i;
	p->tail = &i->next;
	start(p);
	return ST_OK;
}

enum status persist_put(struct persist *p, const struct journal_record *r, void (*cb)(void *arg, enum status),
			void *arg)
{
	return put(p, r, NULL, cb, arg, NULL);
}

enum status persist_put_shared(struct persist *p, const struct journal_record *r, struct shared *bytes,
			       void (*cb)(void *arg, enum status), void *arg)
{
	return put(p, r, bytes, cb, arg, NULL);
}

enum status persist_put_own(struct persist *p, const struct journal_record *r, void (*cb)(void *arg, enum status),
			    void *arg)
{
	return put(p, r, NULL, cb, arg, arg);
}

void persist_read(struct persist *p, struct persist_read *r)
{
	r->next = NULL;
	*p->reads_tail = r;
	p->reads_tail = &r->next;
	start(p);
}

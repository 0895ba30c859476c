/* SPDX-License-Identifier: Apache-2.0 */
/* Members of communicators in one process: how they meet, are refused, leave and are forgotten. The operations are in
 * local_ops.c. For tests, and for jobs whose parts share a process; threads as coll.h says. */
#include "coll/coll_local.h"
#include "coll/local_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAGIC UINT64_C(0x6c61636f6c6c6f63)

struct local_net {
	struct coll_net base;
	pthread_mutex_t mutex; /* taken before a communicator's, if both are */
	struct local_comm *first;
};

static uint64_t bit(uint32_t part)
{
	return UINT64_C(1) << part;
}

/* ---- communicators that the net knows; under its mutex ---- */

static struct local_comm *find_comm(struct local_net *net, const struct coll_id *id)
{
	struct local_comm *c = net->first;
	while (c && coll_id_compare(&c->id, id))
		c = c->next;
	return c;
}

static struct local_comm *add_comm(struct local_net *net, const struct coll_config *config)
{
	struct local_comm *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&c->mutex, NULL);
	c->id = config->id;
	c->n_parts = config->n_parts;
	c->next = net->first;
	net->first = c;
	return c;
}

static void free_comm(struct local_comm *c)
{
	assert(!c->n_inside);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->mutex);
	free(c);
}

void coll_local_purge(struct coll_net *base, const struct coll_id *before)
{
	struct local_net *net = (struct local_net *)base;
	pthread_mutex_lock(&net->mutex);
	for (struct local_comm **at = &net->first, *c; (c = *at);) {
		if (c->id.job == before->job && coll_id_compare(&c->id, before) < 0 && !c->n_inside) {
			*at = c->next;
			free_comm(c);
		} else {
			at = &c->next;
		}
	}
	pthread_mutex_unlock(&net->mutex);
}

uint32_t coll_local_count(struct coll_net *base)
{
	struct local_net *net = (struct local_net *)base;
	uint32_t n = 0;
	pthread_mutex_lock(&net->mutex);
	for (struct local_comm *c = net->first; c; c = c->next)
		n++;
	pthread_mutex_unlock(&net->mutex);
	return n;
}

/* ---- open ---- */

/* Takes the part's place for this life. What is wrong otherwise, else NULL. */
static const char *take_place(struct local_comm *c, const struct coll_config *config)
{
	struct local_peer *p = &c->peer[config->part];
	const char *wrong = NULL;
	pthread_mutex_lock(&c->mutex);
	if (p->life && p->life != config->life)
		wrong = "another life of this part belongs to the communicator";
	else if (p->opened)
		wrong = "this life of the part is or was in the communicator already";
	if (!wrong) {
		p->life = config->life;
		p->opened = true;
	}
	pthread_mutex_unlock(&c->mutex);
	return wrong;
}

static enum status enter_comm(struct local_net *net, const struct coll_config *config, struct local_comm **out,
			      struct coll_failure *why)
{
	struct local_comm *c = find_comm(net, &config->id);
	if (!c)
		c = add_comm(net, config);
	const char *wrong = NULL;
	if (!c) {
		coll_failure_set(why, ST_NO_MEMORY, 0, "no memory for a communicator");
	} else if (c->n_parts != config->n_parts) {
		coll_failure_set(why, ST_INVALID_ARGUMENT, 0, "the communicator has another number of parts");
	} else if ((wrong = take_place(c, config))) {
		coll_failure_set(why, ST_ALREADY_EXISTS, bit(config->part), wrong);
	} else {
		c->n_inside++;
		*out = c;
	}
	return why->status;
}

static const struct coll_ops ops;

static enum status local_open(struct coll_net *base, const struct coll_config *config, struct coll **out,
			      struct coll_failure *why)
{
	struct local_net *net = (struct local_net *)base;
	struct local_member *m = calloc(1, sizeof(*m));
	if (!m) {
		coll_failure_set(why, ST_NO_MEMORY, 0, "no memory for a member");
		return ST_NO_MEMORY;
	}
	pthread_mutex_lock(&net->mutex);
	enum status st = enter_comm(net, config, &m->comm, why);
	pthread_mutex_unlock(&net->mutex);
	if (st != ST_OK) {
		free(m);
		return st;
	}
	m->base =
		(struct coll){ .ops = &ops, .part = config->part, .n_parts = config->n_parts, .small = config->small };
	m->net = net;
	m->me = &m->comm->peer[config->part];
	m->stall_ns = config->stall_ns;
	m->join_ns = config->join_ns;
	m->blob = (struct local_blob){ MAGIC, (uintptr_t)net, config->part, config->life };
	*out = &m->base;
	return ST_OK;
}

/* ---- join ---- */

static const void *local_blob(const struct coll *base, size_t *n)
{
	const struct local_member *m = (const struct local_member *)base;
	*n = sizeof(m->blob);
	return &m->blob;
}

static bool is_blob_of(const struct local_member *m, const struct coll_address *a, uint32_t part)
{
	struct local_blob blob;
	if (a->n_blob != sizeof(blob))
		return false;
	memcpy(&blob, a->blob, sizeof(blob));
	return blob.magic == MAGIC && blob.net == (uintptr_t)m->net && blob.part == part && blob.life == a->life;
}

/* From here on these lives alone belong to the communicator. */
static enum status fix_lives(struct local_member *m, const struct coll_address *all)
{
	struct local_comm *c = m->comm;
	for (uint32_t s = 0; s < c->n_parts; s++) {
		if (!is_blob_of(m, &all[s], s))
			return local_break(m, LOCAL_FAILED, ST_MALFORMED, bit(s),
					   "an address is not what a member has given");
		if (!c->peer[s].life)
			c->peer[s].life = all[s].life;
		if (c->peer[s].life != all[s].life)
			return local_break(m, LOCAL_FAILED, ST_ALREADY_EXISTS, bit(s),
					   "another life of a part belongs to the communicator");
	}
	return ST_OK;
}

static uint64_t not_joined(const struct local_member *m)
{
	uint64_t parts = 0;
	for (uint32_t s = 0; s < m->comm->n_parts; s++)
		parts |= m->comm->peer[s].joined ? 0 : bit(s);
	return parts;
}

static enum status local_join(struct coll *base, const struct coll_address *all)
{
	struct local_member *m = (struct local_member *)base;
	enum status st = ST_OK;
	pthread_mutex_lock(&m->comm->mutex);
	if (m->comm->broken)
		st = local_broken(m);
	else if (m->phase != COLL_OPENED)
		st = local_break(m, LOCAL_FAILED, ST_INVALID_ARGUMENT, 0, "coll_join is called once");
	if (st == ST_OK)
		st = fix_lives(m, all);
	if (st == ST_OK) {
		m->phase = COLL_JOINING;
		m->me->joined = true;
		local_changed(m);
		st = local_wait(m, not_joined, m->join_ns);
	}
	if (st == ST_OK)
		m->phase = COLL_READY;
	pthread_mutex_unlock(&m->comm->mutex);
	return st;
}

/* ---- poll, failures, leave ---- */

static void local_poll(struct coll *base, struct coll_state *out)
{
	struct local_member *m = (struct local_member *)base;
	*out = (struct coll_state){ .phase = COLL_OPENED };
	pthread_mutex_lock(&m->comm->mutex);
	if (m->comm->broken)
		local_broken(m);
	for (uint32_t s = 0; s < base->n_parts; s++)
		out->connected += s != base->part && m->me->joined && m->comm->peer[s].joined;
	out->phase = m->phase;
	out->pieces = m->pieces;
	out->failure = m->failure;
	pthread_mutex_unlock(&m->comm->mutex);
}

static void local_at_work(struct coll *base)
{
	struct local_member *m = (struct local_member *)base;
	pthread_mutex_lock(&m->comm->mutex);
	if (!m->comm->broken && m->phase == COLL_READY) {
		m->pieces++;
		local_changed(m);
	}
	pthread_mutex_unlock(&m->comm->mutex);
}

static enum status break_from_outside(struct coll *base, enum local_end end, enum status st, const char *text)
{
	struct local_member *m = (struct local_member *)base;
	pthread_mutex_lock(&m->comm->mutex);
	st = local_break(m, end, st, 0, text);
	pthread_mutex_unlock(&m->comm->mutex);
	return st;
}

static enum status local_fail(struct coll *base, enum status st, const char *text)
{
	return break_from_outside(base, st == ST_CANCELLED ? LOCAL_ABORTED : LOCAL_FAILED, st, text);
}

void coll_local_die(struct coll *base)
{
	break_from_outside(base, LOCAL_DIED, ST_UNAVAILABLE, "died here");
}

static void local_leave(struct coll *base)
{
	struct local_member *m = (struct local_member *)base;
	struct local_net *net = m->net;
	break_from_outside(base, LOCAL_LEFT, ST_CANCELLED, "left here");
	pthread_mutex_lock(&net->mutex);
	m->comm->n_inside--;
	pthread_mutex_unlock(&net->mutex);
	free(m->scratch);
	free(m);
}

static const struct coll_ops ops = {
	.ordered = true,
	.blob = local_blob,
	.join = local_join,
	.exchange = local_exchange,
	.gather = local_gather,
	.sum_small = local_sum_small,
	.broadcast = local_broadcast,
	.barrier = local_barrier,
	.poll = local_poll,
	.at_work = local_at_work,
	.fail = local_fail,
	.leave = local_leave,
};

/* ---- the net ---- */

static void local_net_free(struct coll_net *base)
{
	struct local_net *net = (struct local_net *)base;
	for (struct local_comm *c = net->first, *next; c; c = next) {
		next = c->next;
		free_comm(c);
	}
	pthread_mutex_destroy(&net->mutex);
	free(net);
}

struct coll_net *coll_local_new(void)
{
	static const struct coll_net_ops net_ops = { local_open, local_net_free };
	struct local_net *net = calloc(1, sizeof(*net));
	if (!net)
		return NULL;
	net->base.ops = &net_ops;
	pthread_mutex_init(&net->mutex, NULL);
	return &net->base;
}

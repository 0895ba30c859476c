/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: collects the jobs as they stand and the machine's memory, lets control/queue.h decide, and starts the
 * jobs whose turn has come. For Submit, the tick and a part that needs memory. Loop thread. */
#include "edge/hosted_queue.h"

#include "base/descriptors.h"
#include "base/log.h"
#include "base/machine.h"
#include "control/queue.h"
#include "edge/hosted_nodes.h"
#include "edge/launching.h"
#include "edge/restoring.h"
#include "edge/submitting.h"
#include "engine/plan.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>

#define MEMORY_MARGIN (UINT64_C(256) << 20) /* left to the rest of the node */
#define PER_PART 3			    /* descriptors: the plan, the engine's socket, the launcher's */
/* a call's connection, the attach socket's, a duplicate of each to count it by */
#define PER_RANK 4
#define PER_MAILBOX 4			  /* engine/mailbox.h: struct mailbox_fds */
#define TELL_NS (INT64_C(1000) * 1000000) /* between two looks at why jobs wait */

/* All jobs that have memory or want some, oldest first; then parts of jobs that others coordinate (live NULL). */
struct queue_list {
	struct queue_limits limits;
	struct queue_job *job;
	struct hosted **live;
	size_t n;
};

static void list_free(struct queue_list *q)
{
	free(q->job);
	free(q->live);
}

static uint64_t less(uint64_t limit, uint64_t part)
{
	return limit > part ? limit - part : 0;
}

/* What the job has of this machine, whose limits these are. Its own list of parts knows that at every moment, and what
 * the coordinator was told may be of a second ago. */
static uint64_t bytes_here(const struct hosted *h)
{
	uint64_t bytes = h->kept_bytes;
	for (const struct part *p = part_first(&h->d->node, h->id); p; p = part_next(p))
		bytes += p->mem.bytes;
	return bytes;
}

static uint64_t device_bytes_here(const struct hosted *h)
{
	uint64_t bytes = 0;
	for (const struct part *p = part_first(&h->d->node, h->id); p; p = part_next(p))
		bytes += p->mem.gpu_bytes;
	return bytes;
}

static bool all_have_memory(const struct hosted *h)
{
	uint32_t n = 0;
	for (const struct part *p = part_first(&h->d->node, h->id); p; p = part_next(p))
		n += p->mem.bytes != 0;
	return n >= hosted_parts_here(h);
}

/* What is set aside is the job's until the last of its parts has its memory. */
static uint64_t in_use(const struct hosted *h)
{
	uint64_t bytes = bytes_here(h);
	bool whole = h->n_parts ? all_have_memory(h) : bytes != 0; /* no parts: the job is set aside */
	return hosted_ended(h) || whole || bytes > h->admission.reserved ? bytes : h->admission.reserved;
}

/* Of bytes_here, what the machine has given already. */
static uint64_t taken_here(const struct hosted *h)
{
	uint64_t bytes = h->kept_bytes;
	for (const struct part *p = part_first(&h->d->node, h->id); p; p = part_next(p))
		bytes += p->mem.allocating ? 0 : p->mem.bytes;
	return bytes;
}

/* Memory that is reserved but not allocated yet still counts as available to the machine, so it is subtracted here. */
static void fill_limits(struct queue_list *q, const struct daemon *d)
{
	struct machine_memory m = { 0, 0 };
	uint64_t promised = MEMORY_MARGIN;
	machine_memory_read("", &m);
	for (size_t i = 0; i < q->n; i++)
		promised += q->live[i] ? less(in_use(q->live[i]), taken_here(q->live[i])) : 0;
	q->limits =
		(struct queue_limits){ .host_memory = d->node.conf->limits.host_memory,
				       .host_memory_per_user = d->node.conf->limits.host_memory_per_user,
				       .device_memory = d->node.conf->limits.device_memory,
				       .device_memory_per_user = d->node.conf->limits.device_memory_per_user,
				       .available = less(m.available, promised),
				       .descriptors = less(descriptors_limit(), QUEUE_OWN_DESCRIPTORS),
				       .stored = less(fdstore_room(d->node.fdstore), 1), /* where the journal stands */
				       .mapped = less(machine_max_mappings(""), QUEUE_OWN_MAPPINGS),
				       .jobs = d->node.conf->limits.jobs,
				       .jobs_per_user = d->node.conf->limits.jobs_per_user,
				       .queued_per_user = d->node.conf->limits.queued_per_user };
}

/* What an ended job's ranks may hold while they live: all but the memory, which may be gone. */
static uint64_t left_descriptors(const struct hosted *h)
{
	uint64_t left = bytes_here(h) ? h->admission.descriptors : less(h->admission.descriptors, h->admission.stored);
	return left > PER_PART ? left : PER_PART; /* of a job of an earlier gaccd nobody has counted them */
}

static void add(struct queue_list *q, struct hosted *h, const struct hosted *without)
{
	/* Ranks may take their time to end (grace), and their launcher is a process and a descriptor of ours meanwhile:
	 * the job counts, else cancelling is a way round the limits. */
	bool ended = hosted_ended(h), leaving = ended && !launching_over(h);
	if (h == without || (ended && !leaving && !bytes_here(h)))
		return;
	q->live[q->n] = h;
	q->job[q->n++] = (struct queue_job){ .id = h->id,
					     .uid = h->uid,
					     .user = h->user,
					     .waiting = h->admission.queued && !ended,
					     .ended = ended && !leaving,
					     .leaving = leaving,
					     .overtaken = h->admission.overtaken,
					     .bytes = h->admission.queued ? h->admission.need : in_use(h),
					     .device_bytes = device_bytes_here(h),
					     .descriptors = leaving ? left_descriptors(h) : h->admission.descriptors,
					     .stored = leaving && !bytes_here(h) ? 0 : h->admission.stored };
}

/* Jobs that others coordinate have only their memory here. */
static void add_part(struct queue_list *q, const struct daemon *d, const struct part *p, const struct part *without)
{
	if (p == without || hosted_find(d, p->id) || !p->mem.bytes)
		return;
	q->job[q->n++] = (struct queue_job){
		.id = p->id, .uid = p->uid, .user = p->user, .bytes = p->mem.bytes, .device_bytes = p->mem.gpu_bytes
	};
}

static int by_id(const void *a, const void *b)
{
	uint64_t x = (*(struct hosted *const *)a)->id, y = (*(struct hosted *const *)b)->id;
	return x < y ? -1 : x > y;
}

/* `pending`: those that are not durable yet, too; their ids are higher than all others'. */
static bool list_jobs(const struct daemon *d, const struct hosted *without, const struct part *without_part,
		      bool pending, struct queue_list *q)
{
	size_t n_pending = 0;
	struct hosted *all[256]; /* more submissions at one moment are counted when they are durable */
	while (pending && n_pending < 256 && (all[n_pending] = submitting_pending(d, n_pending)))
		n_pending++;
	qsort(all, n_pending, sizeof(*all), by_id);
	*q = (struct queue_list){ .n = 0 };
	q->job = calloc(d->n_jobs + n_pending + d->node.n_parts + 1, sizeof(*q->job));
	q->live = calloc(d->n_jobs + n_pending + d->node.n_parts + 1, sizeof(*q->live));
	if (!q->job || !q->live) {
		list_free(q);
		return false;
	}
	for (uint32_t i = 0; i < d->n_jobs; i++)
		add(q, d->job[i], without);
	for (size_t i = 0; i < n_pending; i++)
		add(q, all[i], without);
	for (uint32_t i = 0; i < d->node.n_parts; i++)
		add_part(q, d, d->node.part[i], without_part);
	fill_limits(q, d);
	queue_judge(&q->limits, q->job, q->n);
	return true;
}

static void note_overtaken(const struct queue_list *q)
{
	for (size_t i = 0; i < q->n; i++)
		if (q->live[i])
			q->live[i]->admission.overtaken = q->job[i].overtaken;
}

/* What so many parts, with these ranks together and these slots, may come to need. No user can have more connections
 * than connections_per_user to each socket. */
static uint64_t descriptors_of(const struct node *n, uint32_t n_parts, uint64_t ranks, bool mailboxes, uint64_t stored)
{
	const uint64_t connections = n->conf->listen.connections_per_user;
	const uint64_t per_rank = PER_RANK + (mailboxes ? PER_MAILBOX : 0);
	return stored + (uint64_t)PER_PART * n_parts + per_rank * (ranks < connections ? ranks : connections);
}

static uint64_t beside_slots(const struct job_spec *spec)
{
	return PLAN_BESIDE_SLOTS + (spec->device != DEVICE_HOST ? PLAN_ON_DEVICE : 0);
}

/* Of the parts that are on this node. */
static void find_descriptors(const struct hosted *h, uint64_t *out, uint64_t *out_stored)
{
	struct job_spec own = *h->spec;
	const uint32_t n_here = hosted_parts_here(h);
	uint64_t ranks = 0;
	bool mailboxes = false;
	*out_stored = beside_slots(h->spec) * n_here;
	for (uint32_t i = 0; i < h->n_parts; i++) {
		if (h->part[i].node)
			continue;
		own.ranks = coord_part_ranks(h->coord, i)->n;
		ranks += own.ranks;
		*out_stored += spec_slots(&own);
		mailboxes = mailboxes || job_offers_mailboxes(&own);
	}
	*out = descriptors_of(&h->d->node, n_here, ranks, mailboxes, *out_stored);
}

/* Of one part. */
static void find_descriptors_of(const struct part *p, uint64_t *out, uint64_t *out_stored)
{
	*out_stored = beside_slots(p->spec) + spec_slots(p->spec);
	*out = descriptors_of(p->node, 1, p->spec->ranks, job_offers_mailboxes(p->spec), *out_stored);
}

enum status hosted_queue_check_held(size_t n_stored, size_t n_parts)
{
	uint64_t limit = descriptors_limit(), need = n_stored + PER_PART * n_parts + QUEUE_OWN_DESCRIPTORS;
	if (need <= limit)
		return ST_OK;
	log_error(
		"RLIMIT_NOFILE is %llu, but %llu descriptors are needed for the jobs whose memory the service manager "
		"keeps. It is kept on, and "
		"nothing is lost: raise LimitNOFILE= of gaccd's unit, or the supervisor's limit with prlimit --nofile",
		(unsigned long long)limit, (unsigned long long)need);
	return ST_RESOURCE_EXHAUSTED;
}

void hosted_queue_warn(struct daemon *d)
{
	uint64_t room = less(descriptors_limit(), QUEUE_OWN_DESCRIPTORS), need = 0;
	char text[200];
	for (uint32_t i = 0; i < d->n_jobs; i++)
		need += hosted_ended(d->job[i]) || d->job[i]->admission.queued ? 0 : d->job[i]->admission.descriptors;
	if (need <= room)
		return;
	snprintf(text, sizeof(text),
		 "jobs may come to need %llu descriptors, and gaccd has %llu (RLIMIT_NOFILE less %d): not all ranks "
		 "may be able to connect",
		 (unsigned long long)need, (unsigned long long)room, QUEUE_OWN_DESCRIPTORS);
	daemon_event(d, true, "FewDescriptors", text);
}

static void find_need(struct hosted *h)
{
	find_descriptors(h, &h->admission.descriptors, &h->admission.stored);
	h->admission.need = h->place.need ? h->place.need : h->spec->host_memory;
}

enum status hosted_queue_admit(struct hosted *h, char *why, size_t n_why)
{
	struct queue_list q;
	struct queue_verdict v;
	find_need(h);
	if (!list_jobs(h->d, h, NULL, true, &q))
		return ST_NO_MEMORY;
	struct queue_job c = { .id = h->id,
			       .uid = h->uid,
			       .user = h->user,
			       .bytes = h->admission.need,
			       .descriptors = h->admission.descriptors,
			       .stored = h->admission.stored };
	queue_submit(&q.limits, q.job, q.n, &c, h->spec->launch_mode == LAUNCH_DAEMON, &v);
	note_overtaken(&q);
	list_free(&q);
	if (v.status) {
		snprintf(why, n_why, "%s", v.why);
		return v.status;
	}
	h->admission.queued = v.wait;
	h->admission.reserved = v.wait ? 0 : h->admission.need;
	return ST_OK;
}

/* What all parts of the job on this node will have, of which p is to have `bytes`; and what the machine has given the
 * others already. */
static enum status find_whole(const struct hosted *h, const struct part *p, uint64_t bytes, uint64_t *out,
			      uint64_t *out_taken)
{
	enum status st = ST_OK;
	*out = bytes;
	*out_taken = 0;
	for (uint32_t i = 0; i < h->n_parts && !st; i++) {
		const struct part *is = hosted_part_here(h, i);
		uint64_t need = is ? is->mem.bytes : 0;
		if (i == p->number || h->part[i].node)
			continue;
		*out_taken += is && !is->mem.allocating ? need : 0;
		if (!need)
			st = hosted_part_need(h, i, job_arena(p->job), &need);
		*out += need;
	}
	return st;
}

enum status hosted_queue_fits(const struct part *p, uint64_t bytes, char *why, size_t n_why)
{
	const struct daemon *d = daemon_of_node(p->node);
	struct hosted *h = hosted_find(d, p->id);
	struct queue_list q;
	struct queue_verdict v;
	struct queue_job c = {
		.id = p->id, .uid = p->uid, .user = p->user, .bytes = bytes, .device_bytes = p->mem.gpu_bytes
	};
	uint64_t taken = 0;
	find_descriptors_of(p, &c.descriptors, &c.stored);
	if (h && h->n_parts > 1) { /* of all of them */
		c.descriptors = h->admission.descriptors;
		c.stored = h->admission.stored;
	}
	enum status st = h ? find_whole(h, p, bytes, &c.bytes, &taken) : ST_OK;
	if (st || !list_jobs(d, h, p, true, &q))
		return ST_NO_MEMORY;
	q.limits.available += taken;
	queue_fits(&q.limits, q.job, q.n, &c, &v);
	list_free(&q);
	if (v.status)
		snprintf(why, n_why, "%s", v.why);
	else if (h && h->n_parts > 1 && h->admission.reserved < c.bytes)
		h->admission.reserved = c.bytes;
	return v.status;
}

void hosted_queue_restore(struct hosted *h, bool queued)
{
	find_need(h);
	if (h->tensors && h->admission.need < stored_bytes(&h->d->node, h->id, NULL))
		h->admission.need = stored_bytes(&h->d->node, h->id, NULL);
	h->admission.queued = queued;
	h->admission.reserved = queued ? 0 : h->admission.need;
	h->d->n_queued += queued;
}

static void leave_queue(struct hosted *h)
{
	h->admission.queued = false;
	h->admission.position = 0;
	h->d->n_queued--;
}

static void start(struct hosted *h, struct now now)
{
	leave_queue(h);
	h->admission.reserved = h->admission.need;
	hosted_event(h, false, "Admitted", -1, "its turn has come");
	coord_admit(h->coord, now);
	launching_begin(h);
	restoring_place(h, now);
}

static void tell(struct queue_list *q, struct now now)
{
	for (size_t i = 0; i < q->n; i++) {
		char why[256];
		if (!q->job[i].waiting)
			continue;
		q->live[i]->admission.position = queue_explain(&q->limits, q->job, q->n, i, why, sizeof(why));
		coord_enqueue(q->live[i]->coord, why, now);
	}
}

void hosted_queue_run(struct daemon *d, struct now now)
{
	struct queue_list q;
	bool started = false;
	if (!d->n_queued)
		return;
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (d->job[i]->admission.queued && hosted_ended(d->job[i]))
			leave_queue(d->job[i]);
	if (!list_jobs(d, NULL, NULL, false, &q))
		return; /* the tick tries again */
	for (uint32_t i; (i = queue_next(&q.limits, q.job, q.n)) != QUEUE_NONE; started = true) {
		start(q.live[i], now);
		q.job[i].waiting = false;
		q.limits.available -= q.job[i].bytes;
		queue_judge(&q.limits, q.job, q.n);
	}
	note_overtaken(&q);
	if (started || now.mono_ns - d->queue_told_ns >= TELL_NS) {
		d->queue_told_ns = now.mono_ns;
		tell(&q, now);
	}
	list_free(&q);
}

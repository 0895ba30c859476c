/* SPDX-License-Identifier: Apache-2.0 */
/* Writes, reads and removes this node's records of parts of jobs that another gaccd coordinates; keeps those that
 * cannot be read. For parts.c, part_ports.c and the start. Loop thread; the journal's thread writes. */
#include "edge/part_record.h"

#include "base/log.h"
#include "edge/node_facts.h"
#include "runtime/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- at the start ---- */

static struct shared *shared_copy(const struct journal_bytes *b)
{
	void *copy = malloc(b->n + 1);
	struct shared *s = copy ? shared_new(memcpy(copy, b->data, b->n), b->n) : NULL;
	if (!s)
		free(copy);
	return s;
}

static void record_free(struct part_record *r)
{
	shared_drop(r->placement);
	shared_drop(r->tensors);
	free(r);
}

struct reading {
	struct daemon *d;
	struct part_record **tail;
};

static enum status read_one(void *arg, const struct journal_part *p)
{
	struct reading *to = arg;
	struct part_record *r = calloc(1, sizeof(*r));
	fdstore_starting(to->d->node.fdstore, node_now().mono_ns);
	if (!r)
		return ST_NO_MEMORY;
	*r = (struct part_record){ .job = p->job, .part = p->part, .begun = p->begun };
	memcpy(r->uuid, p->uuid, sizeof(r->uuid));
	r->placement = shared_copy(&p->placement);
	r->tensors = p->tensors.n ? shared_copy(&p->tensors) : NULL;
	if (!r->placement || (p->tensors.n && !r->tensors)) {
		record_free(r);
		return ST_NO_MEMORY;
	}
	*to->tail = r;
	to->tail = &r->next;
	return ST_OK;
}

enum status part_records_read(struct daemon *d)
{
	struct reading to = { d, &d->record };
	return journal_each_part(d->journal, read_one, &to);
}

void part_records_free(struct daemon *d)
{
	for (struct part_record *r = d->record, *next; r; r = next) {
		next = r->next;
		record_free(r);
	}
	d->record = NULL;
}

struct part_record *part_record_find(const struct daemon *d, uint64_t job, uint32_t part)
{
	struct part_record *r = d->record;
	while (r && (r->job != job || r->part != part))
		r = r->next;
	return r;
}

void part_record_drop(struct daemon *d, struct part_record *r)
{
	struct part_record **at = &d->record;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	d->node.host_bytes -= r->kept_bytes;
	record_free(r);
}

const uint8_t *part_record_uuid(const struct daemon *d, uint64_t job)
{
	const struct part *p = part_first(&d->node, job);
	const struct part_record *r = d->record;
	while (r && r->job != job)
		r = r->next;
	return r ? r->uuid : p && p->away ? p->uuid : NULL;
}

bool part_record_is_of(const uint8_t uuid[16], uint64_t high, uint64_t low)
{
	uint64_t own_high, own_low;
	node_uuid_halves(uuid, &own_high, &own_low);
	return (!high && !low) || (high == own_high && low == own_low);
}

/* ---- set aside ---- */

static uint64_t stored_bytes_of(const struct daemon *d, const struct part_record *r)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < d->node.n_stored; i++) {
		uint32_t part;
		struct stat is;
		if (stored_job(&d->node.stored[i], &part, NULL) == r->job && part == r->part &&
		    !fstat(d->node.stored[i].fd, &is))
			sum += (uint64_t)is.st_size;
	}
	return sum;
}

void part_record_set_aside(struct daemon *d, struct part_record *r, const char *why)
{
	char text[600];
	snprintf(text, sizeof(text),
		 "part %u of job %llu is set aside: gaccd %s cannot read its record PART in the journal: %.300s. The "
		 "record and the part's memory are kept until the coordinator places it here again, or drops it",
		 r->part, (unsigned long long)r->job, GACC_VERSION, why);
	daemon_event(d, true, "PartSetAside", text);
	shared_drop(r->placement);
	shared_drop(r->tensors);
	r->placement = r->tensors = NULL;
	r->kept_bytes = stored_bytes_of(d, r);
	d->node.host_bytes += r->kept_bytes;
}

/* ---- writing ---- */

enum status part_record_write(struct daemon *d, uint64_t job, uint32_t part, const uint8_t uuid[16],
			      struct shared *placement, void (*cb)(void *arg, enum status), void *arg)
{
	struct journal_record r = {
		.kind = JOURNAL_PART,
		.part = { .job = job, .part = part, .placement = { placement->data, placement->n } }
	};
	memcpy(r.part.uuid, uuid, sizeof(r.part.uuid));
	return persist_put_shared(d->persist, &r, placement, cb, arg);
}

static struct journal_record gone(uint64_t job, uint32_t part)
{
	return (struct journal_record){ .kind = JOURNAL_PART_GONE, .part_gone = { job, part } };
}

static void on_removed(void *arg, enum status st)
{
	daemon_check_store(st);
}

void part_record_remove(struct daemon *d, uint64_t job, uint32_t part)
{
	const struct journal_record r = gone(job, part);
	if (persist_put(d->persist, &r, on_removed, NULL))
		log_job(job, LOG_WARN, "NoMemory", "the record of part %u stays: the coordinator drops it later", part);
}

/* ---- giving up one that was set aside ---- */

struct giving_up {
	struct daemon *d;
	uint64_t job;
	uint32_t part;
};

static void on_given_up(void *arg, enum status st)
{
	const struct giving_up *g = arg;
	struct part_record *r = part_record_find(g->d, g->job, g->part);
	daemon_check_store(st);
	if (!r || !r->giving_up)
		return; /* it has become a part meanwhile */
	r->giving_up = false;
	if (st && st != ST_JOB_NOT_FOUND)
		return;
	part_record_drop(g->d, r);
	stored_release(&g->d->node, g->job, g->part, 0);
}

void part_record_give_up(struct daemon *d, struct part_record *r)
{
	struct giving_up *g = r->giving_up ? NULL : malloc(sizeof(*g));
	const struct journal_record record = gone(r->job, r->part);
	if (!g)
		return;
	*g = (struct giving_up){ d, r->job, r->part };
	r->giving_up = !persist_put_own(d->persist, &record, on_given_up, g);
}

/* ---- of a part ---- */

static void on_tensors(void *arg, enum status st)
{
	struct part *p = arg;
	daemon_check_store(st);
	part_drop(p);
	part_on_tensors_kept(p, st);
}

void part_record_tensors(struct part *p)
{
	struct shared *set = p->tensors.packed;
	const struct journal_record r = { .kind = JOURNAL_PART_TENSORS,
					  .part_tensors = { p->id, p->number, { set->data, set->n } } };
	part_hold(p);
	if (persist_put_shared(daemon_of_node(p->node)->persist, &r, set, on_tensors, p))
		on_tensors(p, ST_NO_MEMORY);
}

static void on_begun(void *arg, enum status st)
{
	struct part *p = arg;
	daemon_check_store(st);
	part_drop(p);
	p->noted.writing = false;
	p->begun |= !st;
}

bool part_record_has_begun(struct part *p)
{
	const struct journal_record r = { .kind = JOURNAL_PART_BEGUN, .part_begun = { p->id, p->number } };
	if (!p->away || p->begun)
		return true;
	if (!p->noted.writing && !persist_put(daemon_of_node(p->node)->persist, &r, on_begun, p)) {
		p->noted.writing = true;
		part_hold(p);
	}
	return false;
}

static void on_gone(void *arg, enum status st)
{
	struct part *p = arg;
	daemon_check_store(st);
	part_drop(p);
	p->noted.going = false;
	p->noted.gone = !st || st == ST_JOB_NOT_FOUND;
}

bool part_record_is_gone(struct part *p)
{
	const struct journal_record r = gone(p->id, p->number);
	if (!p->away || p->noted.gone)
		return true;
	if (!p->noted.going && !persist_put(daemon_of_node(p->node)->persist, &r, on_gone, p)) {
		p->noted.going = true;
		part_hold(p);
	}
	return false;
}

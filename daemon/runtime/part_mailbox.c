/* SPDX-License-Identifier: Apache-2.0 */
/* The mailboxes of a part's sessions: made when a trainer asks for one, kept in this process while the session lasts,
 * given to each engine; and the engine's record, which says what has come in them. For part.c, part_engine.c and the
 * edge's attach socket. Loop thread. */
#include "base/log.h"
#include "engine/progress.h"
#include "runtime/part.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct mailbox_fds none = MAILBOX_NO_FDS;

uint64_t part_mailboxes_need(const struct job_spec *s, uint64_t n_tensors)
{
	return job_offers_mailboxes(s) ? s->ranks * (uint64_t)gacc_box_bytes(n_tensors) : 0;
}

/* ---- made, and given up ---- */

static bool begin(struct part *p)
{
	if (p->box)
		return true;
	p->box = calloc(p->spec->ranks, sizeof(*p->box));
	for (uint32_t i = 0; p->box && i < p->spec->ranks; i++)
		p->box[i].fds = none;
	return p->box != NULL;
}

static void drop(struct part *p, struct part_box *b)
{
	p->n_boxes -= b->fds.memory >= 0;
	mailbox_close_fds(&b->fds);
	*b = (struct part_box){ .fds = none };
}

/* Those of all parts of the job: so many are counted for it. */
static uint64_t boxes_of_job(const struct part *p)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < p->node->n_parts; i++)
		n += p->node->part[i]->id == p->id ? p->node->part[i]->n_boxes : 0;
	return n;
}

static bool make(struct part *p, struct part_box *b, uint32_t rank, uint64_t generation)
{
	struct mailbox_owner o = { .job = p->id, .sgen = generation, .rank = rank };
	char why[160] = "no memory";
	job_session_slots(p->job, rank, &o.slots);
	job_tensors(p->job, &o.n_tensors);
	drop(p, b); /* of a session before this one */
	if (boxes_of_job(p) >= p->node->conf->listen.connections_per_user)
		return false; /* no more are counted for the job: ranks that have no connection have gone on by RPC */
	b->sgen = generation;
	enum status st = mailbox_make(&b->fds, &o, why, sizeof(why));
	p->n_boxes += !st;
	if (st)
		log_job(p->id, LOG_WARN, "NoMailbox", "rank %u: %s; its pushes go by RPC", rank, why);
	return !st;
}

const struct mailbox_fds *part_mailbox(struct part *p, uint32_t rank)
{
	const uint64_t generation = job_generation(p->job, rank);
	const uint32_t i = part_local(job_part(p->job), rank);
	if (!job_offers_mailboxes(p->spec) || i == PART_NO_RANK || !generation || job_ended(p->job) || !begin(p))
		return NULL;
	struct part_box *b = &p->box[i];
	if (b->sgen != generation && !make(p, b, rank, generation))
		return NULL;
	return b->is_over || b->fds.memory < 0 ? NULL : &b->fds;
}

/* The descriptors stay until the rank has another session, or the part is gone: an event of a bell that nobody holds
 * any more would be lost with it. */
void part_mailbox_over(void *part, uint32_t i)
{
	struct part *p = part;
	const uint32_t closed = 1;
	const uint64_t ring = 1;
	if (!p->box || p->box[i].fds.memory < 0 || p->box[i].is_over)
		return;
	p->box[i].is_over = true;
	if (pwrite(p->box[i].fds.memory, &closed, sizeof(closed), offsetof(struct gacc_box_header, closed)) < 0 ||
	    write(p->box[i].fds.answer, &ring, sizeof(ring)) < 0)
		log_job(p->id, LOG_WARN, "MailboxNotClosed", "mailbox %u: its trainer finds out by its own time limit",
			i);
}

void part_mailboxes_free(struct part *p)
{
	for (uint32_t i = 0; p->box && i < p->spec->ranks; i++)
		drop(p, &p->box[i]);
	free(p->box);
	p->box = NULL;
	control_state_fini(&p->record);
	p->record = (struct control_state){ 0 };
}

int part_mailbox_fds(const struct part *p, const struct engine_command *c, int out[3])
{
	const struct part_box *b = p->box && c->rank < p->spec->ranks ? &p->box[c->rank] : NULL;
	if (!b || b->sgen != c->sgen || b->fds.memory < 0 || b->is_over)
		return 0;
	out[0] = b->fds.memory;
	out[1] = b->fds.submit;
	out[2] = b->fds.answer;
	return 3;
}

/* ---- what has come in them ---- */

static bool read_newer(struct part *p, const struct control_page *page, struct status_progress *shown, uint64_t than)
{
	bool corrupt;
	if (!p->record.image && control_state_init(&p->record, p->spec->ranks, p->spec->max_micro_size))
		return false;
	if (!control_page_read(page, &p->record, &corrupt))
		return false;
	progress_note_told(shown, p->record.r.seq);
	return p->record.r.seq > than;
}

bool part_record(void *part, uint64_t newer_than, struct record_view *out)
{
	struct part *p = part;
	struct control_page page;
	unsigned char *status = part_map(p, SEG_STATUS, 0, true);
	if (!status || !part_control_page(p, &page))
		return false;
	struct status_progress *shown = (struct status_progress *)(status + STATUS_PROGRESS_OFFSET);
	*out = (struct record_view){ .ledger = control_page_ledger(&page, 0, 0), .rank = shown->rank };
	if (control_page_seq(&page) <= newer_than)
		return true;
	if (!read_newer(p, &page, shown, newer_than))
		return false;
	out->state = &p->record;
	return true;
}

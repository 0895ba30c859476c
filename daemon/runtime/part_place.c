/* SPDX-License-Identifier: Apache-2.0 */
/* Makes parts from placements, which it reads and judges: they come from a coordinator that may be of another version,
 * or wrong. For edge/parts.c. Reading on any thread, making on the loop thread. */
#include "runtime/part_place.h"

#include "gacc/v1/common.pb-c.h"
#include "proto/path.h"
#include "proto/utf8.h"
#include "runtime/prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRONG(...) (snprintf(p->why, sizeof(p->why), __VA_ARGS__), ST_VERSION_SKEW)

/* ---- opening; loop thread ---- */

/* What this gaccd cannot do yet, or what is meant for another node. */
static enum status check_place(struct placing *p, const struct node *node, const struct placement *is)
{
	static const uint8_t none[16];
	char name[256];
	snprintf(name, sizeof(name), "%s", node->conf->node.name);
	utf8_repair(name); /* as in the message */
	if (memcmp(is->cluster, none, sizeof(none)))
		return WRONG("Placement.cluster is set, and this node is in no cluster");
	if (strcmp(is->node, name))
		return WRONG("Placement.node is \"%.100s\", and this is \"%.100s\"", is->node, name);
	if (is->n_parts > PART_MAX)
		return WRONG("Placement.n_parts is %u, and may be %d", is->n_parts, PART_MAX);
	if (is->n_parts == 1 ? is->n_ranks != is->ranks : is->n_ranks + is->n_parts > is->ranks + 1)
		return WRONG("Placement.part %u has %u of %u ranks, and the job has %u parts", is->part, is->n_ranks,
			     is->ranks, is->n_parts);
	if (is->begin == PLACEMENT_HEAL)
		return WRONG("Placement.begin is HEAL, and there is no other part");
	if (!is->job_id || !is->term)
		return WRONG("Placement.%s is missing", is->job_id ? "term" : "job_id");
	if (!*is->user)
		return WRONG("Placement.user is missing");
	return ST_OK;
}

void placing_open(struct placing *p, const struct node *node, const void *bytes, size_t n, struct shared *tensors)
{
	p->status = placement_unpack(bytes, n, tensors, &p->held, p->why, sizeof(p->why));
	if (!p->status)
		p->status = check_place(p, node, &p->held.placement);
}

/* ---- reading; any thread ---- */

static enum status check_spec(struct placing *p, const struct placement *is)
{
	const struct job_spec *s = &p->text->spec;
	if (s->ranks != is->ranks || s->max_micro_size != is->max_micro_size)
		return WRONG("Placement has ranks %u and max_micro_size %u, and its specification has %u and %u",
			     is->ranks, is->max_micro_size, s->ranks, s->max_micro_size);
	if (s->restores != (is->begin == PLACEMENT_RESTORE))
		return WRONG("Placement.begin is %s, and its specification names %s checkpoint",
			     s->restores ? "NEW" : "RESTORE", s->restores ? "a" : "no");
	if (p->set.n && is->tensors)
		return WRONG("Placement.tensors has %zu bytes, and its specification has tensors, too", is->tensors->n);
	return ST_OK;
}

static enum status read_tensors(struct placing *p, const struct prepared *ready)
{
	struct tensor_spec *t = NULL;
	char why[256] = "";
	if (!ready->pb->n_tensors)
		return ST_OK;
	enum status st = tensors_from_message(ready->pb->tensors, ready->pb->n_tensors, &t, why, sizeof(why));
	if (!st)
		st = tensor_set_init(&p->set, &p->text->spec, t, ready->pb->n_tensors, why, sizeof(why));
	free(t);
	return st && st != ST_NO_MEMORY ? WRONG("Placement.spec: %s", why) : st;
}

/* Beside the specification, of a job that begins with a checkpoint: its ranks find the set when they come. Sets of jobs
 * of an earlier gaccd are read when it serves (part_restore_tensors). */
static enum status read_beside(struct placing *p, const struct placement *is)
{
	char why[256] = "";
	if (!is->restore || !is->tensors)
		return ST_OK;
	enum status st =
		part_build_tensors(&p->text->spec, is->tensors->data, is->tensors->n, &p->set, why, sizeof(why));
	return st && st != ST_NO_MEMORY ? WRONG("Placement.tensors: %.250s", why) : st;
}

static enum status read_spec(struct placing *p, const struct placement_bytes *spec)
{
	struct prepared *ready = prepared_from_journal(spec->data, spec->n);
	enum status st = ready ? ready->status : ST_NO_MEMORY;
	if (st && st != ST_NO_MEMORY)
		st = WRONG("Placement.spec: %.290s", ready->why[0] ? ready->why : status_info(st)->text);
	if (!st && !(p->text = specification_new_packed(ready)))
		st = ST_NO_MEMORY;
	if (!st)
		st = read_tensors(p, ready);
	prepared_free(ready);
	return st;
}

void placing_read(struct placing *p)
{
	p->status = read_spec(p, &p->held.placement.spec);
	if (!p->status)
		p->status = check_spec(p, &p->held.placement);
	if (!p->status)
		p->status = read_beside(p, &p->held.placement);
}

void placing_recall(struct placing *p, struct shared *tensors, bool begun)
{
	struct placement *is = &p->held.placement;
	if (tensors && !p->held.tensors)
		is->tensors = p->held.tensors = shared_hold(tensors);
	if (begun) {
		is->begun = true;
		is->restore = NULL;
	}
}

void placing_fini(struct placing *p)
{
	if (p->held.message)
		placement_release(&p->held);
	specification_drop(p->text);
	tensor_set_fini(&p->set);
	*p = (struct placing){ .status = ST_OK };
}

/* ---- making; loop thread ---- */

/* Of a part that is there: it is of the same job. */
static enum status check_job(const struct part *is, const struct placement *p, char *why, size_t n_why)
{
	char mine[UUID_TEXT], its[UUID_TEXT];
	uuid_text(is->uuid, mine);
	uuid_text(p->uuid, its);
	if (memcmp(is->uuid, p->uuid, sizeof(is->uuid)))
		snprintf(why, n_why, "Placement.uuid is %s, and the job %llu that has a part here has uuid %s", its,
			 (unsigned long long)is->id, mine);
	else if (is->n_parts != p->n_parts)
		snprintf(why, n_why, "Placement.n_parts is %u, and the part that is here is one of %u", p->n_parts,
			 is->n_parts);
	else
		return ST_OK;
	return ST_ALREADY_EXISTS;
}

enum status part_check_same(const struct part *is, const struct placement *p, char *why, size_t n_why)
{
	const size_t n = p->n_ranks * sizeof(*p->rank);
	if (check_job(is, p, why, n_why))
		return ST_ALREADY_EXISTS;
	if (is->spec->ranks != p->n_ranks || (is->rank && memcmp(is->rank, p->rank, n)))
		snprintf(why, n_why, "Placement.rank is not that of the part %u that is here", is->number);
	else if (job_part(is->job)->epoch != p->epoch)
		snprintf(why, n_why, "Placement.epoch is %llu, and the part that is here is of epoch %llu",
			 (unsigned long long)p->epoch, (unsigned long long)job_part(is->job)->epoch);
	else
		return ST_OK;
	return ST_ALREADY_EXISTS;
}

/* Of other parts of the job that are here: all have the same job, and none has a rank of this one. */
static enum status check_others(const struct node *node, const struct placement *p, char *why, size_t n_why)
{
	struct part *is = part_first(node, p->job_id);
	if (is && check_job(is, p, why, n_why))
		return ST_ALREADY_EXISTS;
	for (uint32_t i = 0; is && i < p->n_ranks; i++) {
		const struct part *has = part_of_rank(node, p->job_id, p->rank[i]);
		if (!has)
			continue;
		snprintf(why, n_why, "Placement.rank of part %u has %u, which is in part %u, and that is here", p->part,
			 p->rank[i], has->number);
		return ST_ALREADY_EXISTS;
	}
	return ST_OK;
}

/* Those that have been read, or packed ones, of which large ones are read later. */
static enum status take_tensors(struct part *p, struct placing *from, char *why, size_t n_why)
{
	char text[200] = "";
	struct shared *packed = placement_take_tensors(&from->held);
	if (from->set.n) {
		job_take_tensors(p->job, &from->set);
		p->tensors.durable = true;
		p->tensors.packed = packed;
		return ST_OK;
	}
	if (!packed)
		return ST_OK;
	enum status st = part_restore_tensors(p, packed, false, text, sizeof(text));
	if (st && st != ST_NO_MEMORY) {
		snprintf(why, n_why, "Placement.tensors: %s", text);
		st = ST_VERSION_SKEW;
	}
	return st;
}

static enum status make(struct node *node, struct placing *from, const struct part_ports *ports, struct part **out,
			char *why, size_t n_why)
{
	const struct placement *is = &from->held.placement;
	struct part_origin o = {
		.job = is->job_id,
		.epoch = is->epoch,
		.part = is->part,
		.n_parts = is->n_parts,
		.rank = is->rank,
		.n_ranks = is->n_ranks,
		.uid = is->uid,
		.user = is->user,
		.text = from->text,
	};
	memcpy(o.uuid, is->uuid, sizeof(o.uuid));
	enum status st = part_new(node, &o, ports, out);
	if (st)
		return st;
	struct part *p = *out;
	for (uint32_t i = 0; i < is->n_windows; i++)
		job_restore_window(p->job, &is->window[i].commit, is->window[i].counted, is->window[i].n_words);
	p->begun = is->begun;
	p->term = is->term;
	st = take_tensors(p, from, why, n_why);
	if (!st && is->restore)
		st = part_begin_with(p, is->restore);
	if (!st)
		st = part_publish(p);
	if (st)
		part_free(p);
	return st;
}

enum status part_may_place(const struct node *node, const struct placement *p, char *why, size_t n_why)
{
	return check_others(node, p, why, n_why);
}

/* This gaccd may have started since, from a record that is as old as the part. */
static void learn_windows(struct part *p, const struct placement *is)
{
	for (uint32_t i = 0; i < is->n_windows; i++)
		job_learn_window(p->job, &is->window[i].commit, is->window[i].counted, is->window[i].n_words);
	job_windows_known(p->job, node_now());
}

/* The coordinator's set may be in order where the one of this node's record is not. */
static enum status mend_tensors(struct part *p, struct placing *from, char *why, size_t n_why)
{
	if (!p->away || !p->tensors.wrong)
		return ST_OK;
	if (part_is_mended_by(p, from->held.placement.tensors)) {
		char text[320];
		snprintf(text, sizeof(text),
			 "the tensor set in the node's journal cannot be read (%.200s): the coordinator's takes its "
			 "place",
			 p->tensors.wrong);
		p->ports.event(p, true, "TensorsMended", -1, text);
		part_mend_tensors(p, placement_take_tensors(&from->held));
		return ST_OK;
	}
	snprintf(why, n_why, "Placement.tensors: %s", p->tensors.wrong);
	return ST_VERSION_SKEW;
}

enum status part_place(struct node *node, struct placing *from, const struct part_ports *ports, struct part **out,
		       char *why, size_t n_why)
{
	const struct placement *is = &from->held.placement;
	struct part *there = part_find(node, is->job_id, is->part);
	if (there) {
		enum status same = part_check_same(there, is, why, n_why);
		*out = there;
		if (!same)
			same = mend_tensors(there, from, why, n_why);
		if (!same && is->term > there->term)
			there->term = is->term;
		if (!same && there->away)
			learn_windows(there, is);
		return same;
	}
	enum status st = check_others(node, is, why, n_why);
	if (st)
		return st;
	return make(node, from, ports, out, why, n_why);
}

void part_begin(struct part *p, bool earlier)
{
	if (!job_has_tensors(p->job) && !p->tensors.due)
		return;
	if (earlier)
		job_take_over(p->job);
	else
		job_allocate(p->job);
}

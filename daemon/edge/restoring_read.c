/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a checkpoint in the pool before its job is restored: access, the specification of its job, and whether tensors
 * and optimizer are the same. */
#include "edge/restoring_impl.h"

#include "gacc/v1/common.pb-c.h"
#include "math/optim.h"
#include "proto/bytes.h"
#include "proto/failpoint.h"
#include "runtime/saving_disk.h"
#include "runtime/spec_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int n_states(const struct job_spec *s)
{
	return optim_info(s->optim.type)->n_state(&s->optim);
}

static enum status compare(const struct hosted *h, const struct job_spec *was, char *why, size_t n_why)
{
	if (was->optim.type != h->spec->optim.type || n_states(was) != n_states(h->spec)) {
		snprintf(why, n_why,
			 "restore_from: the checkpoint is of optimizer %s with %d states, the job's is %s with %d: use "
			 "the same type, momentum with momentum",
			 optim_info(was->optim.type)->name, n_states(was), optim_info(h->spec->optim.type)->name,
			 n_states(h->spec));
		return ST_INVALID_SPEC;
	}
	if (was->master_f32 != h->spec->master_f32) {
		snprintf(why, n_why, "restore_from: the checkpoint is of a job with master: %s",
			 was->master_f32 ? "f32" : "none");
		return ST_INVALID_SPEC;
	}
	return ST_OK;
}

static enum status convert_was(struct reading *r, const Gacc__V1__JobSpec *pb)
{
	char text[256] = "";
	const char *field;
	enum status st = spec_from_message(pb, &r->was, &field, text, sizeof(text));
	if (st)
		snprintf(r->why, sizeof(r->why), "%.200s: its spec is none: %.80s", r->path,
			 text[0] ? text : status_info(st)->text);
	return st ? ST_MALFORMED : ST_OK;
}

/* Ranges are cut where shares begin, but for those of jobs without param_groups, where that is between chunks. Before
 * its first step a sharded job with masters has the digest of what trainers see, as no part has all masters. */
static bool have_one_digest(const struct reading *r)
{
	const struct job_spec *was = &r->was, *is = r->h->spec;
	bool masters = false;
	for (uint64_t i = 0; i < r->set.n; i++)
		masters |= is->master_f32 && r->set.tensor[i].dtype != DTYPE_F32;
	return was->untouched == is->untouched && /* ranges are of single tensors, or are not */
	       (was->parts == is->parts || (!was->n_groups && !is->n_groups)) &&
	       !(masters && (spec_is_sharded(was) || spec_is_sharded(is)));
}

/* What the rules of both specifications make of the tensors. Ranges of the update end where the group changes. */
static enum status compare_rules(struct reading *r, char *why, size_t n_why)
{
	struct spec_match was;
	enum status st = tensor_set_match(&r->set, r->h->spec, why, n_why);
	if (!st)
		st = spec_match(&r->was, r->set.tensor, r->set.n, &was, why, n_why);
	if (st)
		return st;
	r->same_ranges = r->same_frozen = true;
	for (uint64_t i = 0; i < r->set.n; i++) {
		int a = spec_match_group(&was, i), b = spec_match_group(&r->set.match, i);
		r->same_ranges &= a == b;
		r->same_frozen &=
			(a >= 0 && r->was.group[a].values.frozen) == (b >= 0 && r->h->spec->group[b].values.frozen);
	}
	spec_match_fini(&was);
	r->same_ranges &= have_one_digest(r);
	return ST_OK;
}

/* Whether a rank may declare other tensors than the checkpoint's is seen when it comes; here: whether the job has some
 * already, with its specification or in the journal. */
static bool has_known(const struct reading *r)
{
	return r->known || r->h->text->pb->n_tensors;
}

static enum status compare_known(const struct reading *r, const struct tensor_spec *t, uint64_t n, char *text,
				 size_t n_text)
{
	Gacc__V1__JobSpec *own = r->known ? gacc__v1__job_spec__unpack(NULL, r->known->n, r->known->data) : NULL;
	const Gacc__V1__JobSpec *pb = r->known ? own : r->h->text->pb;
	struct tensor_spec *is = NULL;
	enum status st = pb ? tensors_from_message(pb->tensors, pb->n_tensors, &is, text, n_text) : ST_NO_MEMORY;
	if (!st && tensor_set_differs(is, pb->n_tensors, t, n, text, n_text))
		st = ST_LAYOUT_MISMATCH;
	free(is);
	if (own)
		gacc__v1__job_spec__free_unpacked(own, NULL);
	return st;
}

static enum status take_set(struct reading *r, const Gacc__V1__JobSpec *pb)
{
	struct tensor_spec *t = NULL;
	char text[256] = "";
	enum status st = tensors_from_message(pb->tensors, pb->n_tensors, &t, text, sizeof(text));
	if (!st && has_known(r))
		st = compare_known(r, t, pb->n_tensors, text, sizeof(text));
	if (!st)
		st = tensor_set_init(&r->set, r->h->spec, t, pb->n_tensors, text, sizeof(text));
	if (!st)
		st = compare_rules(r, text, sizeof(text));
	if (!st && !has_known(r) && !(r->packed = tensors_to_message(r->set.tensor, r->set.n, &r->n_packed)))
		st = ST_NO_MEMORY;
	if (st)
		snprintf(r->why, sizeof(r->why), "restore_from: the job's tensors and the checkpoint's: %s", text);
	free(t);
	return st;
}

static enum status take_was(struct reading *r)
{
	struct ProtobufCMessage *m = NULL;
	enum status st = bytes_decode(&gacc__v1__job_spec__descriptor, r->m->spec, r->m->n_spec, &m);
	if (st) {
		snprintf(r->why, sizeof(r->why), "%.200s: its spec is none: %.80s", r->path, status_info(st)->text);
		return ST_MALFORMED;
	}
	st = convert_was(r, (Gacc__V1__JobSpec *)m);
	if (!st)
		st = compare(r->h, &r->was, r->why, sizeof(r->why));
	if (!st)
		st = take_set(r, (Gacc__V1__JobSpec *)m);
	bytes_free(m);
	return st;
}

static enum status check_numbers(struct reading *r)
{
	if (r->m->window <= INT64_MAX / 2 && r->m->applied_step <= r->m->window)
		return ST_OK;
	snprintf(r->why, sizeof(r->why), "%.200s: window or applied_step is out of range", r->path);
	return ST_MALFORMED;
}

void restoring_read(struct rpc_work *w)
{
	struct reading *r = (struct reading *)w;
	r->status = FAILPOINT_ERROR(gaccd_load_manifest_before);
	if (!r->status)
		r->status = checkpoint_resolve(r->wanted, r->path, r->why, sizeof(r->why));
	if (!r->status && !disk_place_allowed(r->state_dir, r->allowed, r->uid, r->path)) {
		snprintf(r->why, sizeof(r->why), "restore_from %.200s leads out of the directories that are allowed",
			 r->wanted);
		r->status = ST_PERMISSION_DENIED;
	}
	if (!r->status)
		r->status = checkpoint_load(r->path, &r->m, &r->owner, r->why, sizeof(r->why));
	if (!r->status && !disk_may_read(r->uid, r->owner, r->m)) {
		snprintf(r->why, sizeof(r->why), "restore_from %.200s: the checkpoint belongs to uid %u", r->path,
			 r->owner);
		r->status = ST_PERMISSION_DENIED;
	}
	if (!r->status)
		r->status = check_numbers(r);
	if (!r->status)
		r->status = take_was(r);
	FAILPOINT(gaccd_load_manifest_after);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks a part's tensor set for the coordinator, which may be too large to be copied, and the answer. For
 * edge/part_ports.c and edge/hosted_tensors.c, on the loop thread; no state. */
#include "cluster/tensors_message.h"

#include "cluster/message_end.h"
#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/placement.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>

#define IDS(X) X(job_id) X(epoch) X(part)
#define SET_FIELD 4 /* TensorSet.set */

/* ---- the set ---- */

void *tensor_set_pack(const struct part_tensor_set *t, const struct shared *set, size_t *out_n)
{
	Gacc__Internal__V1__TensorSet m = GACC__INTERNAL__V1__TENSOR_SET__INIT;
#define X(field) m.field = t->field;
	IDS(X)
#undef X
	return message_pack_before(&m.base, SET_FIELD, set->n, out_n);
}

/* The set of a whole message, taken out of it. */
static struct shared *take_set(Gacc__Internal__V1__TensorSet *m)
{
	struct shared *set = shared_new(m->set.data, m->set.len); /* protobuf-c has it from malloc */
	if (set)
		m->set = (ProtobufCBinaryData){ 0, NULL };
	return set;
}

enum status tensor_set_unpack(const void *bytes, size_t n, struct shared *set, struct part_tensor_set *out,
			      struct shared **out_set, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	if (set && !message_cut_end(bytes, &n, SET_FIELD, set->n)) {
		snprintf(why, n_why, "TensorSet.set is not the %zu bytes that follow", set->n);
		return ST_VERSION_SKEW;
	}
	enum status st = message_unpack(&gacc__internal__v1__tensor_set__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	Gacc__Internal__V1__TensorSet *m = (Gacc__Internal__V1__TensorSet *)base;
	if (!m->epoch || (!set && !m->set.len) || (set && m->set.len)) {
		snprintf(why, n_why, "TensorSet.%s",
			 !m->epoch ? "epoch is missing"
			 : set	   ? "set is there twice"
				   : "set is missing");
		st = ST_VERSION_SKEW;
	} else if (!(set = set ? shared_hold(set) : take_set(m))) {
		st = ST_NO_MEMORY;
	} else {
		*out_set = set;
#define X(field) out->field = m->field;
		IDS(X)
#undef X
	}
	bytes_free(base);
	return st;
}

/* ---- the answer ---- */

void *tensors_kept_pack(const struct tensors_kept *t, size_t *out_n)
{
	Gacc__Internal__V1__TensorsKept m = GACC__INTERNAL__V1__TENSORS_KEPT__INIT;
#define X(field) m.field = t->field;
	IDS(X)
#undef X
	m.status = message_put_status(t->status);
	return bytes_pack(&m.base, out_n);
}

enum status tensors_kept_unpack(const void *bytes, size_t n, struct tensors_kept *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__tensors_kept__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__TensorsKept *m = (const Gacc__Internal__V1__TensorsKept *)base;
	if (!m->epoch) {
		snprintf(why, n_why, "TensorsKept.epoch is missing");
		st = ST_VERSION_SKEW;
	} else {
		*out = (struct tensors_kept){ .status = message_take_status(m->status) };
#define X(field) out->field = m->field;
		IDS(X)
#undef X
	}
	bytes_free(base);
	return st;
}

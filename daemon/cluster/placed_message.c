/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks what follows a placement: Placed, from the node, and Drop, to it. For edge/placing.c and
 * edge/parts.c, on the loop thread; no state. */
#include "cluster/placed_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/placement.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>

#define PLACED_FIELDS(X) X(job_id) X(epoch) X(part) X(refused) X(save_bytes) X(carry_bytes)
#define DROP_FIELDS(X) X(job_id) X(epoch) X(part) X(uuid_high) X(uuid_low)

void *placed_pack(const struct placed *p, size_t *out_n)
{
	Gacc__Internal__V1__Placed m = GACC__INTERNAL__V1__PLACED__INIT;
	char mended[sizeof(p->text)];
#define X(field) m.field = p->field;
	PLACED_FIELDS(X)
#undef X
	m.status = message_put_status(p->status);
	m.text = message_put_text(p->text, mended);
	return bytes_pack(&m.base, out_n);
}

enum status placed_unpack(const void *bytes, size_t n, struct placed *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__placed__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Placed *m = (const Gacc__Internal__V1__Placed *)base;
	if (!m->epoch || (m->refused && !*m->status)) {
		snprintf(why, n_why, "Placed.%s is missing", m->epoch ? "status" : "epoch");
		st = ST_VERSION_SKEW;
	} else {
		*out = (struct placed){ .status = message_take_status(m->status) };
#define X(field) out->field = m->field;
		PLACED_FIELDS(X)
#undef X
		message_take_text(out->text, sizeof(out->text), m->text);
	}
	bytes_free(base);
	return st;
}

void *drop_pack(const struct drop *d, size_t *out_n)
{
	Gacc__Internal__V1__Drop m = GACC__INTERNAL__V1__DROP__INIT;
#define X(field) m.field = d->field;
	DROP_FIELDS(X)
#undef X
	return bytes_pack(&m.base, out_n);
}

enum status drop_unpack(const void *bytes, size_t n, struct drop *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__drop__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Drop *m = (const Gacc__Internal__V1__Drop *)base;
	if (!m->epoch) {
		snprintf(why, n_why, "Drop.epoch is missing");
		st = ST_VERSION_SKEW;
	} else {
#define X(field) out->field = m->field;
		DROP_FIELDS(X)
#undef X
	}
	bytes_free(base);
	return st;
}

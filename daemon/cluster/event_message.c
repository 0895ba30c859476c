/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks the events that the node of a part tells its coordinator. For edge/part_ports.c and
 * edge/hosted_ports.c, on the loop thread; no state. */
#include "cluster/event_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/cluster.pb-c.h"
#include "proto/bytes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define EVENT_FIELDS(X) X(job_id) X(epoch) X(part) X(warning) X(window)

void *event_pack(const struct part_event *e, size_t *out_n)
{
	Gacc__Internal__V1__PartEvent m = GACC__INTERNAL__V1__PART_EVENT__INIT;
	char reason[sizeof(e->reason)], text[sizeof(e->text)];
#define X(field) m.field = e->field;
	EVENT_FIELDS(X)
#undef X
	m.of_rank = e->rank >= 0;
	m.rank = m.of_rank ? (uint32_t)e->rank : 0;
	m.reason = message_put_text(e->reason, reason);
	m.text = message_put_text(e->text, text);
	return bytes_pack(&m.base, out_n);
}

/* It stands in logs as it is: nothing else may act there. */
static bool is_word(const char *text)
{
	size_t n = 0;
	while (isalnum((unsigned char)text[n]))
		n++;
	return n > 0 && !text[n];
}

enum status event_unpack(const void *bytes, size_t n, uint32_t ranks, struct part_event *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__part_event__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__PartEvent *m = (const Gacc__Internal__V1__PartEvent *)base;
	if (!m->epoch || !*m->reason) {
		snprintf(why, n_why, "PartEvent.%s is missing", m->epoch ? "reason" : "epoch");
		st = ST_VERSION_SKEW;
	} else if (!is_word(m->reason)) {
		snprintf(why, n_why, "PartEvent.reason has %zu bytes, and is no word of letters and digits",
			 strlen(m->reason));
		st = ST_VERSION_SKEW;
	} else if (m->of_rank && m->rank >= ranks) {
		snprintf(why, n_why, "PartEvent.rank is %u, and the job has %u ranks", m->rank, ranks);
		st = ST_VERSION_SKEW;
	} else {
		*out = (struct part_event){ .rank = m->of_rank ? (int64_t)m->rank : -1 };
#define X(field) out->field = m->field;
		EVENT_FIELDS(X)
#undef X
		message_take_text(out->reason, sizeof(out->reason), m->reason);
		message_take_text(out->text, sizeof(out->text), m->text);
	}
	bytes_free(base);
	return st;
}

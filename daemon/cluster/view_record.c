/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and reads the journal's record VIEW, which has what is shown of an ended job. For edge/hosted_past.c, on the
 * loop thread; no state. */
#include "cluster/view_record.h"

#include "cluster/raw_records.h"
#include "cluster/record.h"
#include "gacc/internal/v1/record.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "math/optim.h"
#include "proto/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *view_record_pack(const struct view_head *h, const struct Gacc__V1__Job *j, size_t *out_n)
{
	Gacc__Internal__V1__ViewRecord r = GACC__INTERNAL__V1__VIEW_RECORD__INIT;
	void *bytes = NULL;
	r.settled = h->settled;
	r.ranks = h->ranks;
	r.micro_size = h->micro_size;
	r.max_micro_size = h->max_micro_size;
	r.launch_mode = (Gacc__V1__LaunchMode)h->launch_mode;
	r.optimizer = (Gacc__V1__OptimizerType)h->optimizer;
	r.grace_ns = h->grace_ns;
	r.spec_sum.len = sizeof(h->spec_sum);
	r.spec_sum.data = (uint8_t *)h->spec_sum; /* not written to */
	r.job.data = bytes_pack(&j->base, &r.job.len);
	if (r.job.data)
		bytes = record_pack(&r.base, out_n);
	free(r.job.data);
	return bytes;
}

static enum status check_head(const struct view_head *h, char *why, size_t n_why)
{
	if (!h->ranks || h->ranks > SPEC_MAX_RANKS)
		snprintf(why, n_why, "ViewRecord.ranks is %u, and must be 1 to %d", h->ranks, SPEC_MAX_RANKS);
	else if (h->launch_mode < LAUNCH_EXTERNAL || h->launch_mode > LAUNCH_DAEMON)
		snprintf(why, n_why, "ViewRecord.launch_mode is %d, and must be %d to %d", (int)h->launch_mode,
			 LAUNCH_EXTERNAL, LAUNCH_DAEMON);
	else if (!optim_info(h->optimizer))
		snprintf(why, n_why, "ViewRecord.optimizer is %d, which this gaccd does not know", (int)h->optimizer);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

/* A job may unpack to more memory than bytes_decode allows a message, so that is only asked what is wrong. */
static enum status take_job(const void *bytes, size_t n, struct Gacc__V1__Job **job, char *why, size_t n_why)
{
	struct ProtobufCMessage *other = NULL;
	*job = n ? gacc__v1__job__unpack(NULL, n, bytes) : NULL;
	if (*job)
		return ST_OK;
	if (n && bytes_decode(&gacc__v1__job__descriptor, bytes, n, &other) != ST_MALFORMED) {
		bytes_free(other);
		return ST_NO_MEMORY;
	}
	snprintf(why, n_why, n ? "ViewRecord.job is no gacc.v1.Job" : "ViewRecord.job is missing");
	return ST_VERSION_SKEW;
}

static enum status take_message(const Gacc__Internal__V1__ViewRecord *r, struct view_head *h,
				struct Gacc__V1__Job **job, char *why, size_t n_why)
{
	*h = (struct view_head){ .settled = r->settled,
				 .ranks = r->ranks,
				 .micro_size = r->micro_size,
				 .max_micro_size = r->max_micro_size,
				 .launch_mode = (enum launch_mode)r->launch_mode,
				 .optimizer = (enum optim_type)r->optimizer,
				 .grace_ns = r->grace_ns };
	if (r->spec_sum.len != sizeof(h->spec_sum)) {
		snprintf(why, n_why, "ViewRecord.spec_sum has %zu bytes, and must have %zu", r->spec_sum.len,
			 sizeof(h->spec_sum));
		return ST_VERSION_SKEW;
	}
	memcpy(h->spec_sum, r->spec_sum.data, sizeof(h->spec_sum));
	enum status st = check_head(h, why, n_why);
	return st ? st : take_job(r->job.data, r->job.len, job, why, n_why);
}

static enum status read_raw(const void *bytes, size_t n, struct view_head *h, struct Gacc__V1__Job **job, char *why,
			    size_t n_why)
{
	size_t at;
	if (!raw_view_read(bytes, n, h, &at)) {
		snprintf(why, n_why, "it has another form: %u in %zu bytes", record_form(bytes, n), n);
		return ST_VERSION_SKEW;
	}
	enum status st = check_head(h, why, n_why);
	return st ? st : take_job((const uint8_t *)bytes + at, n - at, job, why, n_why);
}

enum status view_record_read(const void *bytes, size_t n, struct view_head *h, struct Gacc__V1__Job **job, char *why,
			     size_t n_why)
{
	struct ProtobufCMessage *m;
	if (raw_record_is(bytes, n))
		return read_raw(bytes, n, h, job, why, n_why);
	enum status st = record_unpack(&gacc__internal__v1__view_record__descriptor, bytes, n, &m, why, n_why);
	if (st)
		return st;
	st = take_message((const Gacc__Internal__V1__ViewRecord *)m, h, job, why, n_why);
	bytes_free(m);
	return st;
}

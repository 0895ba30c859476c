/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_admin.h's call for the logs of ranks that gaccd has launched. For gaccctl and other tools of operators; any
 * thread, blocking. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"

#define JOBS (&gacc__v1__job_service__descriptor)

static bool fill_piece(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__ReadLogResponse *r = (const Gacc__V1__ReadLogResponse *)reply;
	gacc_log_piece *out = public;

	*out = (gacc_log_piece){
		.data = r->data.data,
		.n = r->data.len,
		.file = r->file,
		.offset = r->offset,
		.missing = r->missing,
		.more = r->more,
	};
	return true;
}

gacc_status gacc_job_log(gacc_client *client, const char *job, uint32_t rank, const char *node,
			 const gacc_log_piece *after, uint64_t tail, gacc_log_piece **out)
{
	Gacc__V1__ReadLogRequest request = GACC__V1__READ_LOG_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.job = unconst(job);
	request.rank = rank;
	request.node = unconst(node);
	request.file = after ? after->file : 0;
	request.offset = after ? after->offset : 0;
	request.from_end = tail != UINT64_MAX;
	request.tail = tail;
	st = admin_answer(client, JOBS, "ReadLog", &request.base, sizeof(**out), fill_piece, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_log_piece_free(gacc_log_piece *piece)
{
	answer_free(piece);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* PutTrainerState and GetTrainerState of gacc.v1.GradientService: checks the session, lets runtime/part_states.c keep
 * the bytes, and answers. Called by the RPC server. Loop thread. */
#include "edge/methods_gradient.h"

#include "edge/methods.h"
#include "gacc/v1/gradient.pb-c.h"
#include "runtime/part_states.h"

#define PORTION ((size_t)1 << 20) /* bytes in an answer */

static void refuse(struct rpc_call *call, enum status st, const char *why, const char *hint)
{
	const struct rpc_error e = { .status = st, .message = *why ? why : status_info(st)->text, .hint = hint };
	rpc_fail(call, &e);
}

static void put_state(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__PutTrainerStateRequest *q = (const Gacc__V1__PutTrainerStateRequest *)m;
	Gacc__V1__PutTrainerStateResponse r = GACC__V1__PUT_TRAINER_STATE_RESPONSE__INIT;
	const char *hint = NULL;
	char why[240] = "";
	struct session_key k;
	struct part *part = checked_session(call, q->session, &k);
	if (!part)
		return;
	const struct state_portion portion = { .rank = k.rank,
					       .window = q->window,
					       .total = q->total_bytes,
					       .offset = q->offset,
					       .data = q->data.data,
					       .n = q->data.len };
	enum status st = part_put_state(part, &portion, &r.received_bytes, &hint, why, sizeof(why));
	if (st)
		refuse(call, st, why, hint);
	else
		rpc_finish(call, &r.base);
}

static void get_state(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__GetTrainerStateRequest *q = (const Gacc__V1__GetTrainerStateRequest *)m;
	Gacc__V1__GetTrainerStateResponse r = GACC__V1__GET_TRAINER_STATE_RESPONSE__INIT;
	const char *hint = NULL;
	char why[420] = "";
	struct rank_state is;
	struct session_key k;
	struct part *part = checked_session(call, q->session, &k);
	if (!part)
		return;
	enum status st = part_get_state(part, k.rank, &is, &hint, why, sizeof(why));
	if (st) {
		refuse(call, st, why, hint);
		return;
	}
	r.found = is.data != NULL;
	r.window = is.window;
	r.total_bytes = is.n;
	if (q->offset < is.n) {
		const size_t left = is.n - q->offset;
		r.data.data = (uint8_t *)is.data + q->offset;
		r.data.len = left < PORTION ? left : PORTION;
	}
	rpc_finish(call, &r.base);
}

const struct rpc_method state_methods[] = {
	{ .service = &gacc__v1__gradient_service__descriptor,
	  .name = "PutTrainerState",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE,
	  .on_message = put_state },
	{ .service = &gacc__v1__gradient_service__descriptor,
	  .name = "GetTrainerState",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE,
	  .on_message = get_state },
};
const size_t n_state_methods = sizeof(state_methods) / sizeof(*state_methods);

/* SPDX-License-Identifier: Apache-2.0 */
/* What libgacc believes of the layout that gaccd tells it: nothing that would lead outside its memory, and no other one
 * after a new session. gaccd's answers are a script (-Wl,--wrap).
 */
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "proto/bytes.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_TENSORS 2
#define COUNT 8

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure);

static Gacc__V1__TensorLayout layout[N_TENSORS];
static Gacc__V1__RegisterTensorsResponse answer;

/* A copy as it comes off the wire. */
static struct ProtobufCMessage *received(const struct ProtobufCMessage *m)
{
	uint8_t bytes[512];
	ck_assert_uint_le(protobuf_c_message_get_packed_size(m), sizeof(bytes));
	return protobuf_c_message_unpack(m->descriptor, NULL, protobuf_c_message_pack(m, bytes), bytes);
}

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	Gacc__V1__AttachResponse attached = GACC__V1__ATTACH_RESPONSE__INIT;
	Gacc__V1__Session session = GACC__V1__SESSION__INIT;
	Gacc__V1__JobSpec spec = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__Optimizer optimizer = GACC__V1__OPTIMIZER__INIT;

	session.token = (ProtobufCBinaryData){ 16, (uint8_t *)(uintptr_t) "0123456789abcdef" };
	spec.optimizer = &optimizer;
	attached.session = &session;
	attached.spec = &spec;
	attached.generation = 2;
	attached.protocol = 1;
	attached.ranks = 1;
	*out_reply = received(strcmp(method, "Attach") ? &answer.base : &attached.base);
	return ST_OK;
}

static struct gacc_client client;
static struct gacc_job *job;

static void setup(void)
{
	static Gacc__V1__TensorLayout *list[N_TENSORS];

	for (int i = 0; i < N_TENSORS; i++) {
		gacc__v1__tensor_layout__init(&layout[i]);
		layout[i].slot_offset = layout[i].param_offset = layout[i].accum_offset = (uint64_t)i * COUNT * 4;
		layout[i].count = COUNT;
		layout[i].grad_dtype = layout[i].param_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
		list[i] = &layout[i];
	}
	gacc__v1__register_tensors_response__init(&answer);
	answer.n_layout = N_TENSORS;
	answer.layout = list;
	answer.slots = 2;
	answer.fingerprint = 77;
	answer.accumulate_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
	answer.slot_bytes = answer.param_bytes = answer.accum_bytes = N_TENSORS * COUNT * 4;
	client = (struct gacc_client){ .pid = getpid() };
	job = calloc(1, sizeof(*job));
	*job = (struct gacc_job){ .client = &client, .timeout_ms = 100, .outage_ms = 100, .world = 1, .held_slot = -1 };
	job->name = strdup("1");
	job->memory.socket = -1;
	struct rpc_failure f = { 0 };
	ck_assert_int_eq(session_recover(job, 100, &f), ST_OK); /* the first session */
}

static gacc_status register_tensors(void)
{
	static const gacc_tensor tensors[N_TENSORS] = {
		{ .name = "a", .dtype = GACC_F32, .ndim = 1, .shape = { COUNT } },
		{ .name = "b", .dtype = GACC_F32, .ndim = 1, .shape = { COUNT } }
	};
	return gacc_register(job, tensors, N_TENSORS);
}

START_TEST(an_honest_layout_is_taken)
{
	ck_assert_int_eq(register_tensors(), GACC_OK);
	ck_assert_uint_eq(gacc_offset(job, 1), COUNT * 4);
}
END_TEST

/* Each makes tensor 1 end, or be, where no memory is. */
START_TEST(a_layout_that_leads_outside_is_refused)
{
	switch (_i) {
	case 0:
		layout[1].slot_offset += 4;
		break;
	case 1:
		layout[1].param_offset += 4;
		break;
	case 2:
		layout[1].accum_offset += 4;
		break;
	case 3:
		layout[1].count = COUNT + 1;
		break;
	case 4:
		layout[1].count = UINT64_MAX / 2;
		break;
	case 5:
		layout[1].slot_offset = UINT64_MAX;
		break;
	case 6:
		answer.slots = 0;
		break;
	case 7:
		answer.slots = SLOTS_MAX + 1;
		break;
	case 8:
		answer.n_layout = 1;
		break;
	}
	ck_assert_int_ne(register_tensors(), GACC_OK);
	ck_assert_str_eq(job->failure.reason, "MALFORMED");
	ck_assert(!job->registered);
}
END_TEST

START_TEST(a_new_session_must_have_the_same_layout)
{
	struct rpc_failure f = { 0 };
	ck_assert_int_eq(register_tensors(), GACC_OK);
	ck_assert_int_eq(session_recover(job, 100, &f), ST_OK);
	switch (_i) {
	case 0:
		answer.fingerprint++;
		break;
	case 1:
		answer.slot_bytes += 4;
		break;
	case 2:
		answer.param_bytes += 4;
		break;
	case 3:
		answer.slots = 1;
		break;
	}
	ck_assert_int_eq(session_recover(job, 100, &f), ST_LAYOUT_MISMATCH);
	ck_assert(job->lost);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("layout");
	TCase *c = tcase_create("layout");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, an_honest_layout_is_taken);
	tcase_add_loop_test(c, a_layout_that_leads_outside_is_refused, 0, 9);
	tcase_add_loop_test(c, a_new_session_must_have_the_same_layout, 0, 4);
	suite_add_tcase(s, c);
	return suite_run(s);
}

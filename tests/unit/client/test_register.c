/* SPDX-License-Identifier: Apache-2.0 */
/* How libgacc registers many tensors: portions in order, again from the start when gaccd has lost them, and the layout
 * in parts. gaccd is a script (-Wl,--wrap).
 */
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "proto/bytes.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY 120000 /* 3 MB of names and numbers */

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure);

/* The script. */
static uint64_t n_tensors, received;
static unsigned n_portions, n_parts;
static unsigned lose_at; /* portion before which gaccd loses all; 0: none */
static bool old;	 /* it knows no portions */
static bool stingy;	 /* parts of the layout are smaller than asked for */
static bool swapped;	 /* a later part is of another layout */

static void attach(struct ProtobufCMessage **out)
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
	*out = bytes_clone(&attached.base);
}

static void lay_out(Gacc__V1__RegisterTensorsResponse *m, uint64_t first, uint64_t limit, struct ProtobufCMessage **out)
{
	uint64_t n = n_tensors - first;

	if (limit && n > limit)
		n = limit;
	if (stingy && n > 7000)
		n = 7000;
	m->layout = calloc(n + 1, sizeof(*m->layout));
	m->n_layout = n;
	for (uint64_t i = 0; i < n; i++) {
		m->layout[i] = malloc(sizeof(**m->layout));
		gacc__v1__tensor_layout__init(m->layout[i]);
		m->layout[i]->slot_offset = m->layout[i]->param_offset = m->layout[i]->accum_offset = 128 * (first + i);
		m->layout[i]->count = 1;
		m->layout[i]->grad_dtype = m->layout[i]->param_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
	}
	m->slots = 2;
	m->slot_bytes = m->param_bytes = m->accum_bytes = 128 * n_tensors;
	m->accumulate_dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
	m->fingerprint = swapped && first ? 78 : 77;
	*out = bytes_clone(&m->base);
	for (uint64_t i = 0; i < n; i++)
		free(m->layout[i]);
	free(m->layout);
	n_parts++;
}

static enum status take(const Gacc__V1__RegisterTensorsRequest *q, struct ProtobufCMessage **out)
{
	Gacc__V1__RegisterTensorsResponse m = GACC__V1__REGISTER_TENSORS_RESPONSE__INIT;
	char name[16];

	ck_assert_uint_le(protobuf_c_message_get_packed_size(&q->base), 2 << 20);
	if (!q->n_tensors) {
		m.received = n_tensors;
		lay_out(&m, q->layout_first, q->layout_limit, out);
		return ST_OK;
	}
	if (++n_portions == lose_at)
		received = 0;
	if (q->total && q->first > received)
		return ST_OUT_OF_ORDER;
	snprintf(name, sizeof(name), "t%u", (unsigned)q->first);
	ck_assert_str_eq(q->tensors[0]->name, name);
	ck_assert_uint_eq(q->total, q->n_tensors == n_tensors ? 0 : n_tensors);
	received = q->first + q->n_tensors;
	m.received = old ? 0 : received;
	if (received == n_tensors)
		lay_out(&m, 0, q->layout_limit, out);
	else
		*out = bytes_clone(&m.base);
	return ST_OK;
}

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	if (strcmp(method, "Attach"))
		return take((const Gacc__V1__RegisterTensorsRequest *)request, out_reply);
	attach(out_reply);
	return ST_OK;
}

static struct gacc_client client;
static struct gacc_job *job;

static void setup(void)
{
	struct rpc_failure f = { 0 };

	received = n_portions = n_parts = lose_at = 0;
	old = stingy = swapped = false;
	client = (struct gacc_client){ .pid = getpid() };
	job = calloc(1, sizeof(*job));
	*job = (struct gacc_job){
		.client = &client, .timeout_ms = 60000, .outage_ms = 100, .world = 1, .held_slot = -1
	};
	job->name = strdup("1");
	job->memory.socket = -1;
	ck_assert_int_eq(session_recover(job, 100, &f), ST_OK);
}

static gacc_status declare(uint64_t n)
{
	gacc_tensor *t = calloc(n, sizeof(*t));
	char(*name)[16] = malloc(n * sizeof(*name));
	gacc_status st;

	n_tensors = n;
	for (uint64_t i = 0; i < n; i++) {
		snprintf(name[i], sizeof(*name), "t%u", (unsigned)i);
		t[i] = (gacc_tensor){ .name = name[i], .dtype = GACC_F32, .ndim = 1, .shape = { 1 } };
	}
	st = gacc_register(job, t, n);
	free(name);
	free(t);
	return st;
}

static void has_layout(void)
{
	for (uint64_t i = 0; i < n_tensors; i++)
		ck_assert_uint_eq(gacc_offset(job, i), 128 * i);
	ck_assert_uint_eq(received, n_tensors);
}

START_TEST(few_tensors_go_in_one_call)
{
	ck_assert_int_eq(declare(10), GACC_OK);
	ck_assert_uint_eq(n_portions, 1);
	has_layout();
}
END_TEST

START_TEST(many_go_in_portions_in_order)
{
	ck_assert_int_eq(declare(MANY), GACC_OK);
	ck_assert_uint_ge(n_portions, 3);
	ck_assert_uint_eq(n_parts, 3);
	has_layout();
}
END_TEST

START_TEST(a_gaccd_that_has_lost_them_gets_them_again)
{
	lose_at = 3;
	ck_assert_int_eq(declare(MANY), GACC_OK);
	ck_assert_uint_ge(n_portions, 6);
	has_layout();
}
END_TEST

START_TEST(a_gaccd_without_portions_is_told)
{
	old = true;
	ck_assert_int_ne(declare(MANY), GACC_OK);
	ck_assert_str_eq(job->failure.reason, "VERSION_SKEW");
	ck_assert_uint_eq(n_portions, 1);
}
END_TEST

START_TEST(parts_of_the_layout_may_be_smaller)
{
	stingy = true;
	ck_assert_int_eq(declare(MANY), GACC_OK);
	ck_assert_uint_eq(n_parts, (MANY + 6999) / 7000);
	has_layout();
}
END_TEST

START_TEST(all_parts_are_of_one_layout)
{
	swapped = true;
	ck_assert_int_ne(declare(MANY), GACC_OK);
	ck_assert_str_eq(job->failure.reason, "MALFORMED");
	ck_assert(!job->registered);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("register");
	TCase *c = tcase_create("register");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, few_tensors_go_in_one_call);
	tcase_add_test(c, many_go_in_portions_in_order);
	tcase_add_test(c, a_gaccd_that_has_lost_them_gets_them_again);
	tcase_add_test(c, a_gaccd_without_portions_is_told);
	tcase_add_test(c, parts_of_the_layout_may_be_smaller);
	tcase_add_test(c, all_parts_are_of_one_layout);
	suite_add_tcase(s, c);
	return suite_run(s);
}

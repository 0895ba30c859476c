/* SPDX-License-Identifier: Apache-2.0 */
/* Every message of our services, as gaccd and its clients decode it: requests and responses. The first byte chooses the
 * type, the second where the buffer is cut in two, the rest is the wire. Contiguous and in slices it comes to the same;
 * what was accepted packs again to the same message; what was refused is explained; and a specification or a tensor set
 * is judged as gaccd does it. */
#include "math/arena.h"
#include "proto/bytes.h"
#include "gacc/v1/common.pb-c.h"
#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"
#include "runtime/spec_message.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

static const ProtobufCServiceDescriptor *const services[] = { &gacc__v1__gradient_service__descriptor,
							      &gacc__v1__job_service__descriptor,
							      &gacc__v1__node_service__descriptor };

/* Number `k` of: each method's input and output, service after service. make_corpus.py counts the same way. */
static const ProtobufCMessageDescriptor *type_of(unsigned k)
{
	for (size_t i = 0; i < sizeof(services) / sizeof(*services); i++) {
		unsigned n = 2 * services[i]->n_methods;
		if (k < n)
			return k % 2 ? services[i]->methods[k / 2].output : services[i]->methods[k / 2].input;
		k -= n;
	}
	return NULL;
}

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void judge_spec(const Gacc__V1__JobSpec *pb)
{
	struct job_spec s;
	const char *field = NULL;
	char why[256] = "";
	if (!pb)
		return;
	enum status st = spec_from_message(pb, &s, &field, why, sizeof(why));
	must(!st || (*why && field) || st == ST_NO_MEMORY);
	if (!st)
		job_spec_fini(&s);
}

static void judge_tensors(Gacc__V1__TensorSpec *const *t, size_t n)
{
	struct tensor_spec *s = NULL;
	struct arena a;
	char why[256] = "";
	enum status st = tensors_from_message(t, n, &s, why, sizeof(why));
	if (!st)
		st = arena_init(&a, s, n, DTYPE_NONE, why, sizeof(why));
	must(!st || *why || st == ST_NO_MEMORY);
	if (!st)
		arena_fini(&a);
	free(s);
}

static void judge(const ProtobufCMessage *m)
{
	if (m->descriptor == &gacc__v1__submit_request__descriptor)
		judge_spec(((const Gacc__V1__SubmitRequest *)m)->spec);
	else if (m->descriptor == &gacc__v1__attach_request__descriptor)
		judge_spec(((const Gacc__V1__AttachRequest *)m)->create_if_missing);
	else if (m->descriptor == &gacc__v1__register_tensors_request__descriptor)
		judge_tensors(((const Gacc__V1__RegisterTensorsRequest *)m)->tensors,
			      ((const Gacc__V1__RegisterTensorsRequest *)m)->n_tensors);
}

static bool same(const ProtobufCMessage *a, const ProtobufCMessage *b)
{
	size_t n = protobuf_c_message_get_packed_size(a);
	if (n != protobuf_c_message_get_packed_size(b))
		return false;
	uint8_t *x = malloc(n + 1), *y = malloc(n + 1);
	protobuf_c_message_pack(a, x);
	protobuf_c_message_pack(b, y);
	bool equal = !memcmp(x, y, n);
	free(x);
	free(y);
	return equal;
}

/* What we accept and send on, a peer must accept. */
static void pack_again(const ProtobufCMessage *m)
{
	ProtobufCMessage *again = NULL;
	size_t n = protobuf_c_message_get_packed_size(m);
	uint8_t *packed = malloc(n + 1);
	protobuf_c_message_pack(m, packed);
	must(!bytes_decode(m->descriptor, packed, n, &again) && same(m, again));
	bytes_free(again);
	free(packed);
}

static grpc_byte_buffer *in_slices(const uint8_t *data, size_t n, size_t cut)
{
	grpc_slice s[2] = { grpc_slice_from_copied_buffer((const char *)data, cut),
			    grpc_slice_from_copied_buffer((const char *)data + cut, n - cut) };
	grpc_byte_buffer *b = grpc_raw_byte_buffer_create(s, 2);
	grpc_slice_unref(s[0]);
	grpc_slice_unref(s[1]);
	return b;
}

/* The same from a buffer; then with its data left out, if it has any. */
static void from_buffer(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *b, enum status st,
			const ProtobufCMessage *m)
{
	const ProtobufCFieldDescriptor *data = protobuf_c_message_descriptor_get_field(type, BYTES_BULK_FIELD);
	ProtobufCMessage *other = NULL;
	struct bytes_view view;
	must(bytes_from_buffer(type, b, &other) == st && (st || same(m, other)));
	bytes_free(other);
	other = NULL;
	if (!data || data->type != PROTOBUF_C_TYPE_BYTES ||
	    bytes_from_buffer_bulk(type, BYTES_BULK_FIELD, b, &other, &view))
		return;
	const uint8_t *piece;
	size_t n, sum = 0, all = view.left;
	while (bytes_next(&view, &piece, &n))
		sum += n;
	must(sum == all);
	bytes_free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const ProtobufCMessageDescriptor *type = n < 2 ? NULL : type_of(data[0]);
	ProtobufCMessage *m = NULL;
	char why[256] = "";
	if (!type)
		return 0;
	size_t cut = data[1] < n - 2 ? data[1] : n - 2;
	enum status st = bytes_decode(type, data + 2, n - 2, &m);
	grpc_byte_buffer *b = in_slices(data + 2, n - 2, cut);
	from_buffer(type, b, st, m);
	if (st == ST_MALFORMED) {
		bytes_explain_buffer(type, b, why, sizeof(why));
		must(strstr(why, " at byte ") != NULL);
	}
	grpc_byte_buffer_destroy(b);
	if (st)
		return 0;
	pack_again(m);
	judge(m);
	bytes_free(m);
	return 0;
}

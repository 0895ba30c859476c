/* Every message that gaccd or a client decodes: the first byte chooses the type, the rest is the wire. What was accepted must pack
 * again, and unpack to the same bytes. */
#include "proto/bytes.h"

#include "gacc/v1/attach.pb-c.h"
#include "gacc/v1/gradient.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"

#include <stdlib.h>
#include <string.h>

static const ProtobufCMessageDescriptor *const types[] = {
	&gacc__v1__attach_request__descriptor,   &gacc__v1__register_tensors_request__descriptor,
	&gacc__v1__put_parameters_request__descriptor, &gacc__v1__put_parameters_inline_request__descriptor,
	&gacc__v1__wait_ready_request__descriptor, &gacc__v1__push_request__descriptor,
	&gacc__v1__push_inline_request__descriptor, &gacc__v1__flush_request__descriptor,
	&gacc__v1__wait_step_request__descriptor, &gacc__v1__get_parameters_request__descriptor,
	&gacc__v1__ack_step_request__descriptor, &gacc__v1__watch_session_request__descriptor,
	&gacc__v1__detach_request__descriptor,   &gacc__v1__map_request__descriptor,
	&gacc__v1__submit_request__descriptor,   &gacc__v1__get_request__descriptor,
	&gacc__v1__list_request__descriptor,     &gacc__v1__cancel_request__descriptor,
	&gacc__v1__flush_job_request__descriptor, &gacc__v1__watch_request__descriptor,
	&gacc__v1__get_node_request__descriptor, &gacc__v1__map_response__descriptor,
	&gacc__v1__attach_response__descriptor,  &gacc__v1__register_tensors_response__descriptor,
	&gacc__v1__wait_step_response__descriptor, &gacc__v1__get_response__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct ProtobufCMessage *m = NULL, *again = NULL;
	if (!n || bytes_decode(types[data[0] % (sizeof types / sizeof *types)], data + 1, n - 1, &m))
		return 0;
	size_t size = protobuf_c_message_get_packed_size(m);
	uint8_t *packed = malloc(size + 1), *twice = malloc(size + 1);
	protobuf_c_message_pack(m, packed);
	if (bytes_decode(m->descriptor, packed, size, &again))
		abort(); /* what we accept and send on, a peer must accept */
	if (protobuf_c_message_get_packed_size(again) != size)
		abort();
	protobuf_c_message_pack(again, twice);
	if (memcmp(packed, twice, size))
		abort();
	free(packed);
	free(twice);
	bytes_free(again);
	bytes_free(m);
	return 0;
}

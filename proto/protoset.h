/* SPDX-License-Identifier: Apache-2.0 */
/* The published protos as a serialized FileDescriptorSet, each file after the files it imports
 * (share/gacc/gacc.protoset is the same bytes). */
#ifndef GACC_PROTO_PROTOSET_H
#define GACC_PROTO_PROTOSET_H

#include <stddef.h>

extern const unsigned char gacc_protoset[];
extern const size_t gacc_protoset_len;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of what daemon and clients say to each other. A side that meets another version refuses it; gacc.v1 itself
 * only grows. */
#ifndef GACC_PROTO_VERSION_H
#define GACC_PROTO_VERSION_H

#define PROTOCOL_VERSION 1 /* of gacc.v1: Attach agrees on it */
#define MAP_VERSION 1	   /* of the attach socket's messages */

#endif

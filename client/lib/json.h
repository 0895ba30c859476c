/* SPDX-License-Identifier: Apache-2.0 */
/* Any message as JSON, by its descriptor: gacc_admin.h has the rules. */
#ifndef GACC_CLIENT_JSON_H
#define GACC_CLIENT_JSON_H

#include <stddef.h>
#include <stdint.h>

struct ProtobufCMessage;

/* malloc'ed text without line breaks; NULL without memory. */
char *json_of(const struct ProtobufCMessage *msg);
/* "2026-11-20T21:35:48.123456789Z". */
void rfc3339(int64_t unix_nanos, char *out, size_t n);
/* "JOB_STATE_RUNNING" of enum "JobState" without its prefix, "RUNNING"; static storage. */
const char *enum_short_name(const void *enum_descriptor, int value);

#endif

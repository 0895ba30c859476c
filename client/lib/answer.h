/* SPDX-License-Identifier: Apache-2.0 */
/* What a call of gacc_admin.h returned: the caller's struct, and behind it all that it borrows. One thread at a time.
 */
#ifndef GACC_CLIENT_ANSWER_H
#define GACC_CLIENT_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

struct ProtobufCMessage;

/* A zeroed public struct of that size; NULL without memory. answer_free frees it with all that was kept. */
void *answer_new(size_t public_bytes);
void answer_free(void *public);
/* Takes a message, also on failure. False: no memory. */
bool answer_keep(void *public, struct ProtobufCMessage *msg);
/* n zeroed items (one at least) that live as long; NULL without memory. */
void *answer_items(void *public, size_t n, size_t bytes);
/* Takes a malloc'ed text, also on failure; NULL without memory, or when it was NULL. */
const char *answer_text(void *public, char *text);
/* The message as JSON; NULL without memory. */
const char *answer_json(void *public, const struct ProtobufCMessage *msg);

#endif

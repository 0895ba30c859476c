/* SPDX-License-Identifier: Apache-2.0 */
/* Owns what a call of gacc_admin.h returns: the public struct and, behind it, the message and strings that it points
 * to; freed together. One thread at a time. */
#include "lib/answer.h"

#include "lib/json.h"
#include "proto/bytes.h"

#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>

struct kept {
	struct kept *next;
	ProtobufCMessage *msg; /* or */
	void *block;
};

/* The public struct is behind it. */
struct answer {
	struct kept *kept;
	_Alignas(max_align_t) char public[];
};

static struct answer *answer_of(void *public)
{
	return (struct answer *)((char *)public - offsetof(struct answer, public));
}

void *answer_new(size_t public_bytes)
{
	struct answer *a = calloc(1, sizeof(*a) + public_bytes);

	return a ? a->public : NULL;
}

void answer_free(void *public)
{
	struct answer *a;

	if (!public)
		return;
	a = answer_of(public);
	while (a->kept) {
		struct kept *k = a->kept;

		a->kept = k->next;
		bytes_free(k->msg);
		free(k->block);
		free(k);
	}
	free(a);
}

static bool keep(void *public, ProtobufCMessage *msg, void *block)
{
	struct answer *a = answer_of(public);
	struct kept *k = msg || block ? malloc(sizeof(*k)) : NULL;

	if (!k) {
		bytes_free(msg);
		free(block);
		return false;
	}
	*k = (struct kept){ a->kept, msg, block };
	a->kept = k;
	return true;
}

bool answer_keep(void *public, struct ProtobufCMessage *msg)
{
	return keep(public, msg, NULL);
}

void *answer_items(void *public, size_t n, size_t bytes)
{
	void *items = calloc(n ? n : 1, bytes);

	return keep(public, NULL, items) ? items : NULL;
}

const char *answer_text(void *public, char *text)
{
	return keep(public, NULL, text) ? text : NULL;
}

const char *answer_json(void *public, const struct ProtobufCMessage *msg)
{
	return answer_text(public, json_of(msg));
}

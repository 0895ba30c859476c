/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: a new job, or the one that the submitter meant already. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_SUBMIT_H
#define GACC_EDGE_HOSTED_SUBMIT_H

#include "edge/submitting.h"

struct prepared;
struct Gacc__V1__JobSpec;

/* A new job: durable, then cb. `existed`: this user has a job of this request_id, or name, with the same spec already.
 * What the job needs of `prepared` is taken. */
struct submit {
	struct prepared *prepared;
	uint8_t request_id[16];
	uint32_t uid;
	const char *user;
	bool local;   /* uid is the kernel's word, here or on a node with a certificate, and not that of a token */
	bool by_name; /* Attach with create_if_missing: a live job of this name and user is the one meant */
	submitted_fn *cb;
	void *arg;
	int64_t by_ns; /* when the caller wants an answer: then it hears what its job waits for; INT64_MAX: never */
};
void hosted_submit(struct daemon *, const struct submit *);

/* gaccd ends: nobody is waited for any more, and jobs that are not durable yet are freed. After persist_mute. */
void hosted_submit_give_up(struct daemon *);

/* rpc_method.prepare and discard of methods with a specification: a struct prepared; NULL: there is none, or no
 * memory. */
void *prepare_spec(const struct Gacc__V1__JobSpec *);
void discard_spec(void *prepared);
/* What to do about a new job that does not fit, by the words that say why. */
const char *submit_hint_full(const char *why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Errors on the wire: the trailer grpc-status-details-bin, a google.rpc.Status with one gacc.v1.ErrorDetail.
 *
 * The server writes it from a struct rpc_error, the client reads it into a struct rpc_failure. Text is cut between two
 * characters to what fits: gRPC refuses metadata of more than 8 KiB. Any thread; no state.
 */
#ifndef GACC_PROTO_ERROR_DETAIL_H
#define GACC_PROTO_ERROR_DETAIL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ERROR_DETAIL_KEY "grpc-status-details-bin"
#define ERROR_TEXT_MAX 1000 /* bytes, without the NUL */

/* What the server says. Unset fields are zero. */
struct rpc_error {
	enum status status;  /* gives the code, and the detail's reason */
	const char *message; /* NULL: the table's text */
	const char *hint;    /* what to do next; NULL: the table's */
	const char *field;   /* the offending one */
	int64_t retry_after_ms;
	const uint32_t *missing_ranks;
	size_t n_missing_ranks;
};

#define RPC_MISSING_MAX 64
/* What the client hears. Strings are "" when absent. */
struct rpc_failure {
	enum status status; /* the detail's reason; without a detail that we know, the nearest to grpc_code */
	int grpc_code;
	char reason[64]; /* as sent: may be a name that this build does not know */
	char message[512];
	char hint[256];
	char field[128];
	int64_t retry_after_ms;
	uint32_t missing_ranks[RPC_MISSING_MAX];
	size_t n_missing_ranks;
	bool is_final; /* never sent: the client itself says that to repeat the call is of no use, whatever the status
			*/
};

/* Length of the longest prefix of s that has at most max bytes and ends between two UTF-8 characters. */
size_t error_text_fit(const char *s, size_t max);

/* Copies s (NULL: "") into room and returns that: cut as above, with a '?' for each byte that is not UTF-8. A sentence
 * that quotes a caller's name, cut somewhere, is not UTF-8. */
char *error_text_copy(const char *s, char room[ERROR_TEXT_MAX + 1]);

/* The trailer's bytes, malloc'ed; NULL and 0 without memory. */
void error_detail_pack(const struct rpc_error *error, uint8_t **out_data, size_t *out_len);

/* Fills the whole failure from a code, the n bytes of the status message and the trailer (NULL and 0 if absent). */
void error_detail_unpack(int grpc_code, const char *message, size_t n, const void *trailer, size_t n_trailer,
			 struct rpc_failure *out_failure);

#endif

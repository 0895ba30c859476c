/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of the logs of launched ranks, asked for by the coordinator and read at the rank's node, as messages of
 * gacc/internal/v1/cluster.proto. Any thread; no state. Each may be lost. */
#ifndef GACC_CLUSTER_LOG_MESSAGE_H
#define GACC_CLUSTER_LOG_MESSAGE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_PIECE_BYTES 32768
#define LOG_PIECE_TEXT 200

/* What comes next in a log, after what has been read. */
struct log_ask {
	uint64_t job_id, number; /* number: of the question, not 0 */
	uint8_t uuid[16];	 /* of the job */
	uint32_t rank;		 /* the job's number */
	uint64_t file, offset;	 /* as in the piece before; file 0: nothing has been read */
	bool from_end;		 /* file 0: begin with the last `tail` lines */
	uint64_t tail;
};

struct log_piece {
	uint64_t job_id, number;
	enum status status; /* ST_OK, or why it cannot be read, with text */
	char text[LOG_PIECE_TEXT];
	bool missing;	     /* there is no log, or not yet */
	bool more;	     /* there is more at once */
	uint64_t file;	     /* 0: there is none */
	uint64_t offset;     /* of the byte after the data */
	const uint8_t *data; /* LOG_PIECE_BYTES at most */
	uint32_t n;
	struct ProtobufCMessage *message; /* of log_piece_unpack: has the data */
};

/* For free(); NULL: no memory. */
void *log_ask_pack(const struct log_ask *, size_t *out_n);
/* ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is written only with ST_OK. */
enum status log_ask_unpack(const void *bytes, size_t n, struct log_ask *out, char *why, size_t n_why);
/* For free(); NULL: no memory. */
void *log_piece_pack(const struct log_piece *, size_t *out_n);
/* The same; with ST_OK for log_piece_release. */
enum status log_piece_unpack(const void *bytes, size_t n, struct log_piece *out, char *why, size_t n_why);
void log_piece_release(struct log_piece *);

#endif

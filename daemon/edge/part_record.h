/* SPDX-License-Identifier: Apache-2.0 */
/* The records that this node keeps of parts of jobs that another gaccd coordinates: the placement as it came, the
 * tensor set when ranks have declared it here, and that the job has begun. By them such a part comes back after a
 * restart, before its coordinator is heard. Private to the edge; loop thread.
 *
 * A part's record is durable before the service manager gets its memory and before the coordinator hears of it, and it
 * is gone before the manager lets go of that memory. So memory without a record is of a part that nobody waits for. A
 * part of a job that is coordinated here has none: its job has.
 */
#ifndef GACC_EDGE_PART_RECORD_H
#define GACC_EDGE_PART_RECORD_H

#include "edge/daemon.h"
#include "runtime/part.h"

/* A record of an earlier gaccd that has not become a part: not yet, or this gaccd cannot read it. */
struct part_record {
	struct part_record *next; /* ascending: job, then part */
	uint64_t job;
	uint32_t part;
	uint8_t uuid[16]; /* of the job */
	bool begun;
	struct shared *placement; /* NULL when it is set aside */
	struct shared *tensors;	  /* NULL: none, or they are in the placement */
	uint64_t kept_bytes;	  /* of its memory with the service manager, counted in node->host_bytes */
	bool giving_up;
};

/* ---- at the start ---- */
/* Reads all records: d->record. ST_NO_MEMORY, ST_STORE_FAILED. */
enum status part_records_read(struct daemon *);
void part_records_free(struct daemon *);
/* NULL: there is none. */
struct part_record *part_record_find(const struct daemon *, uint64_t job, uint32_t part);
/* It has become a part, or is gone. */
void part_record_drop(struct daemon *, struct part_record *);
/* It stays as it is, and so does its memory: an event says why. The coordinator's next placement of the part takes its
 * place. */
void part_record_set_aside(struct daemon *, struct part_record *, const char *why);
/* The coordinator wants the part no longer: the record goes, then its memory. */
void part_record_give_up(struct daemon *, struct part_record *);

/* The uuid of a job of which this node has a record or a part; NULL: of none. */
const uint8_t *part_record_uuid(const struct daemon *, uint64_t job);
/* Whether a message that says this uuid, in halves, is about the job that has `uuid`. One that says none is. */
bool part_record_is_of(const uint8_t uuid[16], uint64_t high, uint64_t low);

/* ---- of a part ---- */
/* Writes the record of a placement, which is held: cb(arg, outcome) follows, if this is ST_OK. ST_NO_MEMORY. */
enum status part_record_write(struct daemon *, uint64_t job, uint32_t part, const uint8_t uuid[16],
			      struct shared *placement, void (*cb)(void *arg, enum status), void *arg);
/* Removes it again; nobody waits. */
void part_record_remove(struct daemon *, uint64_t job, uint32_t part);
/* The coordinator has the part's tensor set: part_on_tensors_kept follows when the record has it, too. */
void part_record_tensors(struct part *);
/* Whether the record says that the job has begun. If not, that is being written: what would follow from it is to be
 * repeated. */
bool part_record_has_begun(struct part *);
/* Whether the part has no record, so that its memory may go. If it has, that is being changed: ask again. */
bool part_record_is_gone(struct part *);

#endif

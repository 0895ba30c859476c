/* SPDX-License-Identifier: Apache-2.0 */
/* The control segment: the record in two halves (base/halves.h), the ledger, and the undo areas.
 *
 * Layout of its data, all parts 64-byte aligned: record A, record B, ledger[ranks * max_micro_size], undo
 * stamps[shares], undo areas[shares], norms[n_tensors], trust ratios[n_tensors]. A record is control_record,
 * control_rank[ranks], three bitmaps (counted, void, and the counted one of the window before), zeros, and the
 * checksum. The bit of a micro-batch is number rank * max_micro_size + micro. The engine's main thread is the only
 * writer; control_page_publish is the only place that flips. Readers in other processes use control_page_read.
 */
#ifndef GACC_ENGINE_CONTROL_PAGE_H
#define GACC_ENGINE_CONTROL_PAGE_H

#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

#define UNDO_AREA_BYTES 1536 /* KERNEL_UNDO_BYTES */
#define UNDO_SHARES 8	     /* of an update, for each thread: who is slow takes fewer */

/* A record in private memory: pointers into one block that control_state_init allocates. */
struct control_state {
	struct control_record r;
	struct control_rank *rank;  /* [ranks] */
	uint64_t *counted, *voided; /* bitmaps of ranks * max_micro_size bits */
	uint64_t *last_counted;	    /* of window - 1: a late push learns from it that it is in */
	size_t n_words;		    /* of each bitmap */
	unsigned char *image;	    /* the block: a record as in the page; r goes to its start to publish */
};

struct control_page {
	unsigned char *base;
	uint32_t ranks, max_micro_size, shares; /* shares: threads * UNDO_SHARES */
	size_t record_bytes, ledger_offset, stamps_offset, undo_offset, norms_offset, trust_offset, bytes;
};

/* 64-bit words of a bitmap with a bit for each micro-batch that a window can have. */
size_t control_words(uint32_t ranks, uint32_t max_micro_size);
/* Bytes of data that a control segment needs; 0: more than can be addressed. */
uint64_t control_page_bytes(uint32_t ranks, uint32_t max_micro_size, uint32_t threads, uint64_t n_tensors);
/* View on a mapped segment of at least that size. */
void control_page_view(struct control_page *, void *data, uint32_t ranks, uint32_t max_micro_size, uint32_t threads,
		       uint64_t n_tensors);

enum status control_state_init(struct control_state *, uint32_t ranks, uint32_t max_micro_size); /* ST_NO_MEMORY */
void control_state_fini(struct control_state *);

/* Copies the record in force (valid checksum, highest seq). false: neither is valid (a new, zeroed segment, or corrupt:
 * then *corrupt is set when any byte of the records is not zero), and *out is undefined. */
bool control_page_read(const struct control_page *, struct control_state *out, bool *corrupt);
/* Of the newer record, whether it is valid or not; 0: there is none. Much cheaper than reading it. */
uint64_t control_page_seq(const struct control_page *);
/* seq+1 into the idle record, its seq last. A reader that meets a record being written, or one whose writer died, finds
 * that its own copy's checksum does not fit. */
void control_page_publish(struct control_page *, struct control_state *);

struct ledger_cell *control_page_ledger(const struct control_page *, uint32_t rank, uint32_t micro);
struct undo_stamp *control_page_stamp(const struct control_page *, uint32_t share);
void *control_page_undo(const struct control_page *, uint32_t share); /* UNDO_AREA_BYTES */
struct tensor_norm *control_page_norms(const struct control_page *);  /* [n_tensors] */
/* LAMB's ratios, one for each range of the plan, of which there are at most n_tensors; update.h says when they hold. */
double *control_page_trust(const struct control_page *);

bool control_bit(const uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro);
/* Of the rank's first n bits, those that are set. */
uint32_t control_count(const uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t n);
void control_set_bit(uint64_t *map, uint32_t max_micro_size, uint32_t rank, uint32_t micro);

#endif

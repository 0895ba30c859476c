/* SPDX-License-Identifier: Apache-2.0 */
/* A shared segment: a memfd with a header page, sealed SHRINK|GROW|SEAL, populated when it is created.
 *
 * Ownership: whoever calls segment_create or segment_adopt owns fd and mapping until segment_close. A segment has no
 * name in any file system: when the last descriptor and mapping are gone, so is the memory. Any thread.
 */
#ifndef GACC_ENGINE_SEGMENT_H
#define GACC_ENGINE_SEGMENT_H

#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

struct segment {
	int fd;			       /* -1: none */
	struct segment_header *header; /* the mapping; NULL: not mapped */
	void *data;		       /* header + data_offset, page-aligned */
	size_t data_bytes;
};
#define SEGMENT_NONE ((struct segment){ .fd = -1 })

/* New zeroed segment of data_bytes. All pages are allocated before it returns, so that a later touch cannot fail; mode
 * 0600. `map` keeps a writable mapping. ST_NO_MEMORY with the numbers in `why`, or ST_IO_ERROR. */
enum status segment_create(struct segment *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			   uint32_t role, uint32_t index, uint64_t data_bytes, bool map, char *why, size_t n_why);
/* The same in portions, for whoever must not work for long at a time: begin makes the descriptor, without pages; each
 * take allocates at most `most` bytes, from *taken on (0 at first), and the last one seals it. The segment is there
 * when *taken is SEGMENT_DATA_OFFSET + data_bytes. After an error the caller closes it. */
enum status segment_begin(struct segment *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			  uint32_t role, uint32_t index, uint64_t data_bytes, char *why, size_t n_why);
enum status segment_take(struct segment *, uint64_t *taken, uint64_t most, char *why, size_t n_why);
/* Maps an existing descriptor (taken on success) and checks seals, size and header. Fields that the caller knows
 * are compared: job_id, role, index, fingerprint. ST_SEGMENT_CORRUPT says in `why` what differs. */
enum status segment_adopt(struct segment *out, int fd, uint64_t job_id, uint64_t fingerprint, uint32_t role,
			  uint32_t index, bool writable, char *why, size_t n_why);
/* The header of a segment, wherever its memory is. `bytes` are of the whole memory. check: ST_SEGMENT_CORRUPT, `why`
 * says what differs. Pure. */
void segment_header_fill(struct segment_header *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			 uint32_t role, uint32_t index, uint64_t data_bytes);
enum status segment_header_check(const struct segment_header *, uint64_t bytes, char *why, size_t n_why);
/* That a checked header is of this job, place and layout. The same errors. */
enum status segment_header_match(const struct segment_header *, uint64_t job_id, uint64_t fingerprint, uint32_t role,
				 uint32_t index, char *why, size_t n_why);

/* Notes in a segment that nobody else has yet which job it is of. ST_IO_ERROR with `why`. */
enum status segment_set_owner(const struct segment *, const uint8_t uuid[16], char *why, size_t n_why);

/* Is it this job's? */
enum segment_owned {
	SEGMENT_OWN,
	SEGMENT_UNNAMED, /* all zeros: of a gaccd that did not name the owner */
	SEGMENT_OTHERS,	 /* another job's */
	SEGMENT_DAMAGED	 /* neither zeros nor what was written: nobody can say */
};
/* `header_crc`: of the segment's header. Pure. */
enum segment_owned segment_judge_owner(const struct segment_owner *, uint64_t header_crc, const uint8_t uuid[16]);
/* The same of a descriptor, which is not taken; *out is what it says. SEGMENT_UNNAMED also where the header cannot be
 * read: whoever maps it says what is wrong. */
enum segment_owned segment_read_owner(int fd, const uint8_t uuid[16], struct segment_owner *out);

/* Which session's device may write to this slot, in memory that others have; all zeros: none. ST_IO_ERROR. */
enum status segment_set_device(int fd, const struct segment_device *);
/* One that cannot be read is of a session that there never was. */
struct segment_device segment_read_device(int fd);

/* Reads the header only, for whoever finds a descriptor in the fd store; fd is not taken. */
enum status segment_peek(int fd, struct segment_header *out);
/* New descriptor of the same memory opened O_RDONLY: cannot be mapped writable. -errno on failure. */
int segment_readonly_fd(int fd);
/* Bytes that can be allocated without swapping, and within our control groups; UINT64_MAX when the kernel does not say.
 */
uint64_t segment_memory_available(void);
void segment_close(struct segment *); /* NULL or SEGMENT_NONE is fine */

#endif

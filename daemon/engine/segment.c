/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory in memfds: creates, seals, checks, adopts and closes segments, and marks their owner. For gaccd, which
 * makes and keeps them (loop thread and pool), and the engine (main thread); no state, any thread. */
#include "engine/segment.h"

#include "base/log.h"
#include "base/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uint64_t header_crc(const struct segment_header *h)
{
	return XXH3_64bits(h, offsetof(struct segment_header, crc));
}

void segment_header_fill(struct segment_header *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			 uint32_t role, uint32_t index, uint64_t data_bytes)
{
	*out = (struct segment_header){ .magic = SEGMENT_MAGIC,
					.version = SEGMENT_VERSION,
					.role = role,
					.index = index,
					.job_id = job_id,
					.generation = generation,
					.bytes = SEGMENT_DATA_OFFSET + data_bytes,
					.data_offset = SEGMENT_DATA_OFFSET,
					.fingerprint = fingerprint };
	out->crc = header_crc(out);
}

enum status segment_header_check(const struct segment_header *h, uint64_t bytes, char *why, size_t n_why)
{
	if (h->magic != SEGMENT_MAGIC || h->crc != header_crc(h))
		snprintf(why, n_why, "the header's magic or checksum is wrong");
	else if (h->version != SEGMENT_VERSION)
		snprintf(why, n_why, "segment version %u, this build knows %u", h->version, SEGMENT_VERSION);
	else if (h->data_offset != SEGMENT_DATA_OFFSET || h->bytes < SEGMENT_DATA_OFFSET || h->bytes != bytes)
		snprintf(why, n_why, "the header says %" PRIu64 " bytes, the descriptor %" PRIu64, h->bytes, bytes);
	else
		return ST_OK;
	return ST_SEGMENT_CORRUPT;
}

enum status segment_header_match(const struct segment_header *h, uint64_t job_id, uint64_t fingerprint, uint32_t role,
				 uint32_t index, char *why, size_t n_why)
{
	if (h->job_id == job_id && h->role == role && h->index == index && h->fingerprint == fingerprint)
		return ST_OK;
	snprintf(why, n_why,
		 "segment of job %" PRIu64 " role %u index %u layout %016" PRIx64 ", expected job %" PRIu64
		 " role %u index %u layout %016" PRIx64,
		 h->job_id, h->role, h->index, h->fingerprint, job_id, role, index, fingerprint);
	return ST_SEGMENT_CORRUPT;
}

uint64_t segment_memory_available(void)
{
	struct machine_memory m;
	return machine_memory_read("", &m) ? UINT64_MAX : m.available;
}

/* Turns an errno into a status, a log line and a sentence. */
static enum status failed(const char *what, uint64_t bytes, int error, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s of a segment of %" PRIu64 " bytes: %s", what, bytes, strerror(error));
	log_error("%s", why);
	return error == ENOMEM || error == ENOSPC || error == EFBIG ? ST_NO_MEMORY : ST_IO_ERROR;
}

/* Makes the descriptor and its header, without pages and seals. */
static enum status make_memfd(int *out, const struct segment_header *h, char *why, size_t n_why)
{
	char name[64];
	snprintf(name, sizeof(name), "gacc-%" PRIu64 "-%u-%u", h->job_id, h->role, h->index);
	const char *what = "memfd_create";
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return failed(what, h->bytes, errno, why, n_why);
	int error = 0;
	if (what = "fchmod", fchmod(fd, 0600) < 0)
		error = errno;
	else if (what = "ftruncate", ftruncate(fd, (off_t)h->bytes) < 0)
		error = errno;
	else if (what = "header", pwrite(fd, h, sizeof(*h), 0) != (ssize_t)sizeof(*h))
		error = errno ? errno : EIO;
	if (error) {
		close(fd);
		return failed(what, h->bytes, error, why, n_why);
	}
	*out = fd;
	return ST_OK;
}

static enum status map(struct segment *s, int fd, uint64_t bytes, bool writable, char *why, size_t n_why)
{
	int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *p = mmap(NULL, bytes, prot, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		return failed(errno == ENOMEM ? "mapping (see also vm.max_map_count)" : "mapping", bytes, errno, why,
			      n_why);
	s->header = p;
	s->data = (char *)p + SEGMENT_DATA_OFFSET;
	return ST_OK;
}

/* Whether the machine has enough memory for what the segment has not taken yet. */
static enum status check_available(uint64_t data_bytes, uint64_t taken, char *why, size_t n_why)
{
	uint64_t available = segment_memory_available();
	if (data_bytes <= INT64_MAX - SEGMENT_DATA_OFFSET && data_bytes + SEGMENT_DATA_OFFSET - taken <= available)
		return ST_OK;
	snprintf(why, n_why, "a segment of %" PRIu64 " bytes was asked for, %" PRIu64 " are available", data_bytes,
		 available);
	return ST_NO_MEMORY;
}

enum status segment_begin(struct segment *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			  uint32_t role, uint32_t index, uint64_t data_bytes, char *why, size_t n_why)
{
	enum status st = check_available(data_bytes, 0, why, n_why);
	if (st)
		return st;
	struct segment_header h;
	segment_header_fill(&h, job_id, generation, fingerprint, role, index, data_bytes);
	struct segment s = { .data_bytes = data_bytes };
	st = make_memfd(&s.fd, &h, why, n_why);
	if (!st)
		*out = s;
	return st;
}

/* Uses fallocate before the segment is mapped: a page that cannot be had is an error here, and would be a SIGBUS
 * later. */
enum status segment_take(struct segment *s, uint64_t *taken, uint64_t most, char *why, size_t n_why)
{
	uint64_t bytes = SEGMENT_DATA_OFFSET + s->data_bytes, left = bytes - *taken, n = left < most ? left : most;
	/* others may have taken some meanwhile */
	enum status st = *taken ? check_available(s->data_bytes, *taken, why, n_why) : ST_OK;
	if (st)
		return st;
	if (n && fallocate(s->fd, 0, (off_t)*taken, (off_t)n) < 0)
		return failed("allocation", bytes, errno, why, n_why);
	*taken += n;
	if (*taken == bytes && fcntl(s->fd, F_ADD_SEALS, SEALS) < 0)
		return failed("sealing", bytes, errno, why, n_why);
	return ST_OK;
}

enum status segment_create(struct segment *out, uint64_t job_id, uint64_t generation, uint64_t fingerprint,
			   uint32_t role, uint32_t index, uint64_t data_bytes, bool want_map, char *why, size_t n_why)
{
	struct segment s;
	uint64_t taken = 0;
	enum status st = segment_begin(&s, job_id, generation, fingerprint, role, index, data_bytes, why, n_why);
	if (st)
		return st;
	st = segment_take(&s, &taken, UINT64_MAX, why, n_why);
	if (!st && want_map)
		st = map(&s, s.fd, SEGMENT_DATA_OFFSET + data_bytes, true, why, n_why);
	if (st) {
		close(s.fd);
		return st;
	}
	*out = s;
	return ST_OK;
}

/* Checks header and seals of a descriptor of unknown origin: `why` names the first thing that is wrong. */
static enum status judge(int fd, struct segment_header *out, char *why, size_t n_why)
{
	struct segment_header h;
	struct stat info;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS)
		snprintf(why, n_why, "not a sealed memfd (seals 0x%x)", (unsigned)(seals < 0 ? 0 : seals));
	else if (fstat(fd, &info) < 0 || pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
		snprintf(why, n_why, "the header cannot be read");
	else if (!segment_header_check(&h, (uint64_t)info.st_size, why, n_why)) {
		*out = h;
		return ST_OK;
	}
	return ST_SEGMENT_CORRUPT;
}

enum status segment_adopt(struct segment *out, int fd, uint64_t job_id, uint64_t fingerprint, uint32_t role,
			  uint32_t index, bool writable, char *why, size_t n_why)
{
	struct segment_header h;
	enum status st = judge(fd, &h, why, n_why);
	if (st)
		return st;
	if ((st = segment_header_match(&h, job_id, fingerprint, role, index, why, n_why)))
		return st;
	struct segment s = { .fd = fd, .data_bytes = h.bytes - SEGMENT_DATA_OFFSET };
	if ((st = map(&s, fd, h.bytes, writable, why, n_why)))
		return st;
	*out = s;
	return ST_OK;
}

/* ---- the device ---- */

#define DEVICE_AT ((off_t)(sizeof(struct segment_header) + sizeof(struct segment_owner)))

enum status segment_set_device(int fd, const struct segment_device *d)
{
	if (pwrite(fd, d, sizeof(*d), DEVICE_AT) == (ssize_t)sizeof(*d))
		return ST_OK;
	log_error("noting a slot's device: %s", strerror(errno));
	return ST_IO_ERROR;
}

struct segment_device segment_read_device(int fd)
{
	struct segment_device d;
	if (pread(fd, &d, sizeof(d), DEVICE_AT) != (ssize_t)sizeof(d))
		d = (struct segment_device){ .used = 1 };
	return d;
}

enum status segment_peek(int fd, struct segment_header *out)
{
	char why[160];
	return judge(fd, out, why, sizeof(why));
}

/* ---- the owner ---- */

static uint64_t owner_crc(uint64_t header_crc, const uint8_t uuid[16])
{
	unsigned char both[sizeof(header_crc) + 16];
	memcpy(both, &header_crc, sizeof(header_crc));
	memcpy(both + sizeof(header_crc), uuid, 16);
	return XXH3_64bits(both, sizeof(both));
}

enum status segment_set_owner(const struct segment *s, const uint8_t uuid[16], char *why, size_t n_why)
{
	struct segment_header h;
	struct segment_owner o;
	ssize_t n = pread(s->fd, &h, sizeof(h), 0);
	memcpy(o.uuid, uuid, sizeof(o.uuid));
	o.crc = owner_crc(h.crc, uuid);
	if (n == (ssize_t)sizeof(h) && pwrite(s->fd, &o, sizeof(o), sizeof(h)) == (ssize_t)sizeof(o))
		return ST_OK;
	return failed("the owner", SEGMENT_DATA_OFFSET + s->data_bytes, errno ? errno : EIO, why, n_why);
}

enum segment_owned segment_judge_owner(const struct segment_owner *o, uint64_t header_crc, const uint8_t uuid[16])
{
	static const struct segment_owner unnamed;
	if (!memcmp(o, &unnamed, sizeof(unnamed)))
		return SEGMENT_UNNAMED;
	if (o->crc != owner_crc(header_crc, o->uuid))
		return SEGMENT_DAMAGED;
	return memcmp(o->uuid, uuid, sizeof(o->uuid)) ? SEGMENT_OTHERS : SEGMENT_OWN;
}

enum segment_owned segment_read_owner(int fd, const uint8_t uuid[16], struct segment_owner *out)
{
	struct segment_header h;
	*out = (struct segment_owner){ .crc = 0 };
	if (segment_peek(fd, &h) || pread(fd, out, sizeof(*out), sizeof(h)) != (ssize_t)sizeof(*out))
		return SEGMENT_UNNAMED;
	return segment_judge_owner(out, h.crc, uuid);
}

int segment_readonly_fd(int fd)
{
	char path[40];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int ro = open(path, O_RDONLY | O_CLOEXEC);
	return ro < 0 ? -errno : ro;
}

void segment_close(struct segment *s)
{
	if (!s || s->fd < 0)
		return;
	if (s->header)
		munmap(s->header, SEGMENT_DATA_OFFSET + s->data_bytes);
	close(s->fd);
	*s = SEGMENT_NONE;
}

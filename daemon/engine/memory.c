/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the plan and the segments of a job, one descriptor after the other, and locks them against a second engine.
 * For engine.c, on the main thread; memory_params and memory_values also for the workers. */
#include "engine/memory.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status take_plan(struct memory *m, int fd, char *why, size_t n_why)
{
	struct stat info;
	if (fstat(fd, &info) < 0 || info.st_size <= 0) {
		snprintf(why, n_why, "the plan's descriptor is empty");
		return ST_INVALID_ARGUMENT;
	}
	size_t bytes = (size_t)info.st_size;
	const struct plan *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED) {
		snprintf(why, n_why, "mapping the plan: %s", strerror(errno));
		log_error("%s", why);
		return ST_IO_ERROR;
	}
	enum status st = plan_check(p, bytes, why, n_why);
	if (st) {
		munmap((void *)p, bytes);
		return st;
	}
	m->plan = p;
	m->plan_bytes = bytes;
	m->n_wanted = plan_host_segments(p);
	m->max_device = plan_segments(p, NULL, 0) - m->n_wanted;
	m->device_fd = calloc((size_t)m->max_device + 1, sizeof(*m->device_fd));
	m->wanted = calloc((size_t)m->n_wanted, sizeof(*m->wanted));
	m->segment = calloc((size_t)m->n_wanted, sizeof(*m->segment));
	m->slot = calloc(p->slots, sizeof(*m->slot));
	if (!m->device_fd || !m->wanted || !m->segment || !m->slot)
		return ST_NO_MEMORY;
	plan_segments(p, m->wanted, m->n_wanted);
	plan_own(p, &m->own, &m->own_end);
	return ST_OK;
}

static void place(struct memory *m, const struct plan_segment *w, void *data)
{
	switch (w->role) {
	case SEG_CONTROL:
		control_page_view(&m->page, data, m->plan->ranks, m->plan->max_micro_size, m->plan->threads,
				  m->plan->n_tensors);
		break;
	case SEG_STATUS:
		m->status = data;
		m->progress = (struct status_progress *)((char *)data + STATUS_PROGRESS_OFFSET);
		break;
	case SEG_ACCUM0:
	case SEG_ACCUM1:
		m->accum[w->role - SEG_ACCUM0] = data;
		break;
	case SEG_PARAMS:
		m->params = data;
		break;
	case SEG_MASTER:
		m->master = data;
		break;
	case SEG_STATE0:
	case SEG_STATE1:
		m->state[w->role - SEG_STATE0] = data;
		break;
	default:
		m->slot[w->index] = data;
	}
}

/* Maps segment i; the caller closes the descriptor of one that is refused. */
static enum status adopt(struct memory *m, int i, int fd, uint64_t generation, char *why, size_t n_why)
{
	const struct plan_segment *w = &m->wanted[i];
	struct segment s = SEGMENT_NONE;
	char text[128];
	enum status st = segment_adopt(&s, fd, m->plan->job_id, m->plan->fingerprint, w->role, w->index, true, text,
				       sizeof(text));
	if (st == ST_OK && (s.data_bytes != w->bytes || s.header->generation != generation)) {
		snprintf(text, sizeof(text),
			 "%zu bytes of generation %" PRIu64 ", expected %" PRIu64 " of generation %" PRIu64,
			 s.data_bytes, s.header->generation, w->bytes, generation);
		st = ST_SEGMENT_CORRUPT;
		munmap(s.header, SEGMENT_DATA_OFFSET + s.data_bytes);
	}
	if (st) {
		snprintf(why, n_why, "segment %d (role %u): %s", i, w->role, text);
		return st;
	}
	segment_close(&m->segment[i]);
	m->segment[i] = s;
	place(m, w, s.data);
	return ST_OK;
}

static enum status take_segment(struct memory *m, int fd, uint64_t generation, char *why, size_t n_why)
{
	m->segment[m->n_taken] = SEGMENT_NONE;
	m->generation = generation;
	enum status st = adopt(m, m->n_taken, fd, generation, why, n_why);
	m->n_taken += !st;
	return st;
}

enum status memory_exchange_slot(struct memory *m, uint32_t slot, int fd, char *why, size_t n_why)
{
	enum status st = ST_INVALID_ARGUMENT;
	for (int i = 0; i < m->n_taken && st; i++)
		if (m->wanted[i].role == SEG_SLOT && m->wanted[i].index == slot) {
			st = adopt(m, i, fd, m->generation, why, n_why);
			break;
		}
	if (st)
		close(fd);
	return st;
}

enum status memory_take(struct memory *m, int fd, uint64_t generation, char *why, size_t n_why)
{
	enum status st = ST_INVALID_ARGUMENT;
	bool keep = false;
	if (!m->plan) {
		st = take_plan(m, fd, why, n_why);
	} else if (memory_missing(m) == 0 && m->n_device < m->max_device) {
		m->device_fd[m->n_device++] = fd;
		return ST_OK;
	} else if (memory_missing(m) == 0) {
		snprintf(why, n_why, "more than %d segments", m->n_wanted + m->max_device);
	} else {
		st = take_segment(m, fd, generation, why, n_why);
		keep = st == ST_OK;
	}
	if (!keep)
		close(fd);
	return st;
}

int memory_device(struct memory *m, int **out)
{
	const int n = m->n_device;
	*out = m->device_fd;
	m->n_device = 0;
	return n;
}

int memory_missing(const struct memory *m)
{
	return m->plan ? m->n_wanted - m->n_taken : 1;
}

/* The lock belongs to an open file description, and every process that was handed the descriptor shares gaccd's: so
 * the engine opens its own. */
enum status memory_lock(struct memory *m)
{
	char path[40];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", m->segment[0].fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		log_error("opening the control segment anew: %s", strerror(errno));
		return ST_IO_ERROR;
	}
	int rc = flock(fd, LOCK_EX | LOCK_NB);
	if (rc < 0 && errno == EWOULDBLOCK) {
		log_notice("waiting for the job's previous engine to end");
		do
			rc = flock(fd, LOCK_EX);
		while (rc < 0 && errno == EINTR);
	}
	if (rc < 0) {
		log_error("locking the control segment: %s", strerror(errno));
		close(fd);
		return ST_IO_ERROR;
	}
	m->lock_fd = fd;
	return ST_OK;
}

void memory_fini(struct memory *m)
{
	if (!m)
		return;
	for (int i = 0; i < m->n_taken; i++)
		segment_close(&m->segment[i]);
	for (int i = 0; i < m->n_device; i++)
		close(m->device_fd[i]);
	free(m->device_fd);
	if (m->plan)
		munmap((void *)m->plan, m->plan_bytes);
	if (m->lock_fd >= 0)
		close(m->lock_fd);
	free(m->wanted);
	free(m->segment);
	free(m->slot);
	*m = MEMORY_NONE;
}

void memory_params(const struct memory *m, uint32_t dtype_group, uint64_t start, struct kernel_params *out)
{
	const struct arena_group *g = &m->plan->group[dtype_group];
	unsigned char *own = m->params + g->param_offset + (start - g->start) * dtype_size(g->param_dtype);
	const bool is_own = start >= m->own && start < m->own_end;
	*out = (struct kernel_params){ .p16_dtype = g->param_dtype };
	if (g->param_dtype == DTYPE_F32) {
		out->p = (float *)own;
	} else {
		out->p16 = own;
		out->p = is_own && m->master ? m->master + (start - m->own) : NULL;
	}
	out->m = is_own && m->state[0] ? m->state[0] + (start - m->own) : NULL;
	out->v = is_own && m->state[1] ? m->state[1] + (start - m->own) : NULL;
}

const void *memory_values(const struct kernel_params *p, enum dtype *out_dtype)
{
	*out_dtype = p->p ? DTYPE_F32 : p->p16_dtype;
	return p->p ? p->p : p->p16;
}

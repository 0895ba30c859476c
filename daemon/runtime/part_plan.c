/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a part: which segments it has, how many bytes and threads, and on which GPU of its node it is. For
 * part_memory.c, and for the queue, which asks before there is a part. Loop thread; part_plan_fd and part_plan_place
 * also in the pool. */
#include "base/log.h"
#include "control/spec_nodes.h"
#include "engine/touched.h"
#include "runtime/part.h"
#include "runtime/stored.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int part_plan_fd(const struct plan *p)
{
	int fd = memfd_create("gacc-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || write(fd, p, p->bytes) != (ssize_t)p->bytes ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
		log_error("cannot write the engine's plan: %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

static uint32_t parts_here(const struct node *node, const struct job_spec *spec, uint32_t n_parts)
{
	const bool named = spec->nodes && *spec->nodes;
	return named ? spec_parts_on(spec, node->conf->node.name) : n_parts;
}

/* Parts on one node share its CPUs. */
static uint32_t default_threads(const struct node *node, const struct job_spec *spec, uint32_t n_parts)
{
	long n = node->conf->engine.threads ? (long)node->conf->engine.threads : sysconf(_SC_NPROCESSORS_ONLN);
	const uint32_t here = parts_here(node, spec, n_parts);
	n /= here ? (long)here : 1;
	return n < 1 ? 1 : n > PLAN_MAX_THREADS ? PLAN_MAX_THREADS : (uint32_t)n;
}

/* The control segment has a part for each worker: a job keeps the number that it began with, whatever the
 * configuration says now. 0: no control segment is stored. */
static uint32_t stored_threads(const struct part *p)
{
	struct plan_segment control = { .role = SEG_CONTROL };
	char name[FDSTORE_MAX_NAME];
	struct segment_header h;
	stored_name(p->id, p->number, p->n_parts, &control, name);
	for (size_t i = 0; i < p->node->n_stored; i++) {
		if (p->node->stored[i].fd < 0 || strcmp(p->node->stored[i].name, name) ||
		    segment_peek(p->node->stored[i].fd, &h))
			continue;
		for (uint32_t t = 1; t <= PLAN_MAX_THREADS; t++)
			if (touched_control_bytes(p->spec->ranks, p->spec->max_micro_size, t,
						  job_arena(p->job)->n_tensors,
						  p->spec->untouched == UNTOUCHED_SKIP) == h.bytes - h.data_offset)
				return t;
	}
	return 0;
}

struct plan_place part_plan_place(const struct part *p, uint32_t threads)
{
	const struct part_spec *s = job_part(p->job);
	/* each part of this node has a GPU of its own, the one that LOCAL_RANK means where it has one rank */
	const bool many = p->spec->device != DEVICE_HOST && parts_here(p->node, p->spec, p->n_parts) > 1;
	const uint32_t gpu = many ? 1 + spec_part_on_node(p->spec, s->number) : 0;
	return (struct plan_place){ p->id, s->number, s->n_parts, s->global, job_slots(p->job), threads, gpu };
}

enum status part_plan_head(struct part *p)
{
	uint32_t threads = stored_threads(p);
	p->mem.plan = malloc(sizeof(*p->mem.plan));
	if (!p->mem.plan)
		return ST_NO_MEMORY;
	const struct plan_place at =
		part_plan_place(p, threads ? threads : default_threads(p->node, p->spec, p->n_parts));
	plan_head(p->mem.plan, p->spec, job_arena(p->job), &at);
	p->mem.n = plan_segments(p->mem.plan, NULL, 0);
	p->mem.wanted = calloc((size_t)p->mem.n, sizeof(*p->mem.wanted));
	p->mem.segment = calloc((size_t)p->mem.n, sizeof(*p->mem.segment));
	p->mem.other_name = calloc((size_t)p->mem.n, sizeof(*p->mem.other_name));
	if (!p->mem.wanted || !p->mem.segment || !p->mem.other_name)
		return ST_NO_MEMORY;
	for (int i = 0; i < p->mem.n; i++)
		p->mem.segment[i] = SEGMENT_NONE;
	plan_segments(p->mem.plan, p->mem.wanted, p->mem.n);
	return ST_OK;
}

static uint64_t bytes_of(const struct plan_segment *wanted, int n, bool on_device)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i++)
		if (wanted[i].on_device == on_device && wanted[i].bytes)
			sum += wanted[i].bytes + SEGMENT_DATA_OFFSET;
	return sum;
}

void part_plan_bytes(struct part *p)
{
	p->mem.gpu_bytes = bytes_of(p->mem.wanted, p->mem.n, true);
	p->mem.bytes = bytes_of(p->mem.wanted, p->mem.n, false) + plan_exchange_bytes(p->mem.plan) +
		       part_mailboxes_need(p->spec, job_arena(p->job)->n_tensors);
}

/* The part that has the largest shard of a sharded job; 0 of another one, where all have the same. */
static uint32_t largest_shard(const struct job_spec *spec, const struct arena *a, const struct plan_place *at)
{
	struct plan plan;
	uint64_t shard[PLAN_MAX_PARTS + 1];
	uint32_t largest = 0;
	plan_head(&plan, spec, a, at);
	plan_shards(&plan, shard);
	for (uint32_t s = 1; s < plan.n_shards; s++)
		if (shard[s + 1] - shard[s] > shard[largest + 1] - shard[largest])
			largest = s;
	return largest;
}

enum status part_need(const struct node *node, const struct job_spec *spec, const struct arena *a, uint64_t *out)
{
	struct plan plan;
	struct plan_place at = { .n_parts = spec->parts,
				 .slots = spec_slots(spec),
				 .threads = default_threads(node, spec, spec->parts) };
	at.part = largest_shard(spec, a, &at);
	plan_head(&plan, spec, a, &at);
	int n_segments = plan_segments(&plan, NULL, 0);
	struct plan_segment *wanted = calloc((size_t)n_segments, sizeof(*wanted));
	if (!wanted)
		return ST_NO_MEMORY;
	plan_segments(&plan, wanted, n_segments);
	*out = bytes_of(wanted, n_segments, false) + plan_exchange_bytes(&plan) +
	       part_mailboxes_need(spec, a->n_tensors);
	free(wanted);
	return ST_OK;
}

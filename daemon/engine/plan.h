/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: all that an engine must know about its job, as one flat block of memory.
 *
 * gaccd builds it from the job's spec and tensor set and passes it as the first descriptor of ENGINE_START (a sealed
 * memfd). The engine trusts it (same uid, same binary) but checks version and size. Offsets are bytes from the start.
 */
#ifndef GACC_ENGINE_PLAN_H
#define GACC_ENGINE_PLAN_H

#include "math/arena.h"
#include "math/init.h"
#include "math/optim.h"
#include "proto/segment_layout.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_VERSION 12
#define PLAN_MAX_PARTS 16 /* of a job; control/part.h */
#define PLAN_MAX_THREADS 256
#define PLAN_GPU_BYTES 44 /* a text of 40, and the end */
#define PLAN_MAX_SLOTS 65536

/* A run of the arena with one dtype group and one parameter group: what one update kernel call may cover. With LAMB it
 * is one tensor (the gap behind it is zero and stays so), because ratios are per range; with skip_untouched it is one
 * tensor or a piece of one. */
struct plan_range {
	uint64_t start, count; /* elements; starts and ends at multiples of ARENA_ALIGN */
	uint32_t dtype_group;  /* index into `group` */
	uint32_t optim_group;  /* index into `optim_group` */
};

struct plan_tensor {
	uint64_t start, count; /* elements */
	uint32_t dtype_group;
	int32_t alias;	       /* -1: own storage */
	struct init_rule init; /* type 0: uploaded */
	double fan_in, fan_out;
	uint64_t key;	      /* XXH3-64 of the name */
	uint64_t name_offset; /* of the name, NUL-terminated, in the names */
	uint32_t n_dims, reserved;
	int64_t shape[ARENA_MAX_DIMS];
};

/* Where the arenas of a job lie. */
enum plan_device {
	PLAN_HOST, /* shared memory, which gaccd makes */
	PLAN_CUDA, /* a GPU's, which the job's first engine makes (device_plugin.h) */
	PLAN_DEVICES
};

struct plan {
	uint32_t version;
	uint32_t bytes_of_plan;
	uint64_t bytes; /* of the whole block */
	uint64_t job_id;
	uint64_t fingerprint; /* of the arena; equals the segment headers' */
	uint32_t ranks, max_micro_size;
	uint32_t micro_size;	   /* of the first window */
	uint32_t slots;		   /* all slots of this engine, spare ones included */
	uint32_t slots_per_rank;   /* of a session: rank r has those from r * slots_per_rank on, the spare set is behind
				      all */
	uint32_t threads;	   /* workers, the main thread included */
	uint32_t canonical;	   /* 1: add in canonical order; 0: on arrival */
	uint32_t reject_nonfinite; /* 1: a micro-batch with non-finite values becomes void */
	uint32_t master;	   /* 1: 16-bit parameters have an f32 master */
	uint32_t acc_dtype;	   /* enum dtype */
	uint32_t reduction, grad_of; /* enum reduction, enum grad_of: a push's coefficient follows from its weight */
	uint32_t void_is_error;	     /* 1: the trainer of a void micro-batch hears NONFINITE, as the job fails by it */
	uint32_t n_groups;
	struct arena_group group[ARENA_MAX_GROUPS];
	struct optim_config optim;
	double loss_scale; /* of the first window */
	uint64_t seed;
	uint64_t n_elements, slot_bytes, param_bytes;
	uint64_t n_tensors, tensors_offset;	      /* struct plan_tensor[] */
	uint64_t n_ranges, ranges_offset;	      /* struct plan_range[], ascending, covering the arena */
	uint64_t n_optim_groups, optim_groups_offset; /* struct optim_group[] */
	uint64_t names_bytes, names_offset;	      /* char[] */
	uint64_t numbers_offset; /* uint32_t[ranks]: the job's numbers of this engine's ranks; 0: they are the same */
	uint32_t part, n_parts;	 /* of the job: part < n_parts <= PLAN_MAX_PARTS */
	uint32_t n_shards;	 /* of masters and optimizer state, a divisor of n_parts; 1: each part has all */
	/* 1: no accumulators. The one micro-batch of a window stays in its slot, which is the sum (arith.h); one rank,
	   one micro-batch, f32 sums, no optimizer CLIENT */
	uint32_t in_slot;
	uint32_t device;	  /* enum plan_device */
	char gpu[PLAN_GPU_BYTES]; /* "GPU-", its UUID or the beginning of it; "": the one with the most free memory */
	/* Of a job on a device. 1: the slots are host memory, which the device reads, and trainers see a copy of the
	   parameters there; 0: both are the device's alone */
	uint32_t slots_on_host;
	uint32_t skip_untouched; /* 1: a step leaves out the tensors that its window has no gradient of (touched.h) */
	uint32_t verify_params;	 /* 1: notices that something else writes to the parameters (verify.c); not sharded */
};

static inline const struct plan_tensor *plan_tensors(const struct plan *p)
{
	return (const struct plan_tensor *)((const char *)p + p->tensors_offset);
}
static inline const char *plan_name(const struct plan *p, const struct plan_tensor *t)
{
	return (const char *)p + p->names_offset + t->name_offset;
}
static inline const struct plan_range *plan_ranges(const struct plan *p)
{
	return (const struct plan_range *)((const char *)p + p->ranges_offset);
}
static inline const struct optim_group *plan_optim_groups(const struct plan *p)
{
	return (const struct optim_group *)((const char *)p + p->optim_groups_offset);
}

/* What people call this rank: its number in the job. */
static inline uint32_t plan_rank_number(const struct plan *p, uint32_t rank)
{
	return p->numbers_offset ? ((const uint32_t *)((const char *)p + p->numbers_offset))[rank] : rank;
}

/* How the arena is divided over the D parts.
 *
 * It is cut into D shares: each part sums one of them. And it is cut into k = n_shards shards of D / k shares each: a
 * part updates one shard, and has the masters and the optimizer state of that alone. Each k consecutive parts are a
 * group that has all shards, in order; so every shard is in D / k groups, and the parts that have it sum its shares.
 * sharding: none is k = 1, full is k = D, where share and shard are the same. */
#define PLAN_SHARE_ALIGN (8 * KERNEL_BLOCK)
/* Share s is the elements [out[s], out[s + 1]). All but the last end at multiples of PLAN_SHARE_ALIGN; a small arena
 * has empty ones. out has n_parts + 1 places. */
void plan_shares(const struct plan *p, uint64_t *out);
/* The share that a part sums. */
static inline uint32_t plan_share_of(const struct plan *p, uint32_t part)
{
	return part % p->n_shards * (p->n_parts / p->n_shards) + part / p->n_shards;
}
/* As plan_shares; out has n_shards + 1 places. Part s has shard s % n_shards. */
void plan_shards(const struct plan *p, uint64_t *out);
/* No part has all masters and all of the optimizer state. */
static inline bool plan_is_sharded(const struct plan *p)
{
	return p->n_shards > 1;
}
/* What this part updates: its shard. Elements [*from, *end); no chunk of an update (update.h) crosses either. */
void plan_own(const struct plan *p, uint64_t *from, uint64_t *end);

/* The segments of a job, in a fixed order. Those on the host gaccd creates before the engine starts, and passes after
 * the plan; they come first. */
struct plan_segment {
	uint32_t role; /* enum segment_role */
	uint32_t index;
	uint64_t bytes; /* of data, without the header page; 0: the device knows (SEG_DEVICE, SEG_DEVICE_FILE) */
	bool on_device;
};
#define PLAN_BESIDE_SLOTS 8 /* segments, at most */
#define PLAN_ON_DEVICE 3    /* more, of a job on a device: DEVICE, PARAMS twice, DEVICE_FILE */
/* Fills out[] (at most n) and returns how many there are. Of a job on the host: CONTROL, STATUS, [ACCUM0, ACCUM1],
 * PARAMS, [MASTER], [STATE0], [STATE1], SLOT 0.. Of a job on a device first those on the host: CONTROL, STATUS and,
 * with slots_on_host, the copy of PARAMS and the slots; then the device's: DEVICE, what is left, in the same order, and
 * DEVICE_FILE.
 */
int plan_segments(const struct plan *p, struct plan_segment *out, int n);
/* How many of them are on the host. */
int plan_host_segments(const struct plan *p);
/* Bytes of a role's data, slots excepted; 0: this job has none. */
uint64_t plan_role_bytes(const struct plan *p, enum segment_role role);
/* Host memory that an engine on a device has besides segments: both sums of an exchange with other parts. */
uint64_t plan_exchange_bytes(const struct plan *p);
/* Where in the data of STATUS the rows of slots on a device begin: struct status_slot[slots]. A job whose slots are on
 * the host has none. */
uint64_t plan_status_slots(const struct plan *p);
/* XXH3-64 of the ranges: goes into the control record. */
uint64_t plan_ranges_hash(const struct plan *);
/* Version, sizes, counts and that every index and range stays inside: what the engine relies on. bytes: of the block at
 * p. On ST_INVALID_ARGUMENT `why` says what is wrong. */
enum status plan_check(const struct plan *p, uint64_t bytes, char *why, size_t n_why);

#endif

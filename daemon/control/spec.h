/* SPDX-License-Identifier: Apache-2.0 */
/* A job's specification as plain C: what gacc.v1.JobSpec says, with defaults filled in and checked.
 *
 * The edge converts from protobuf; control and the tests use only this. Numbers of the enums are those of the proto.
 */
#ifndef GACC_CONTROL_SPEC_H
#define GACC_CONTROL_SPEC_H

#include "control/loss_scale.h"
#include "math/arena.h"
#include "math/init.h"
#include "math/optim.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SPEC_MAX_PARTS 16
#define SPEC_MAX_RANKS 65536
#define SPEC_MAX_MICRO_SIZE 65536
/* ranks * max_micro_size: gaccd keeps some bits of each for each window that it remembers */
#define SPEC_MAX_MICROS (1 << 22)
#define SPEC_MAX_RULES 256
#define SPEC_MAX_PATTERN 255	 /* bytes; spec_match.h has the bounds of the matching */
#define SPEC_MAX_NAMED (1 << 18) /* names of tensors in all param_groups */
#define SPEC_MAX_NAME 128
/* command, environment, directories; one packet carries them (launch/channel.h) */
#define SPEC_MAX_LAUNCH_BYTES 65536
#define SPEC_GPU_BYTES 41 /* "GPU-", a UUID, and the end */
#define SPEC_MAX_GRACE_NS (INT64_C(3600) * 1000000000)

enum uneven { UNEVEN_FLUSH = 1, UNEVEN_DROP = 2, UNEVEN_ERROR = 3 };
enum nonfinite { NONFINITE_SKIP_STEP = 1, NONFINITE_REJECT_MICRO = 2, NONFINITE_ERROR = 3 };
enum launch_mode { LAUNCH_EXTERNAL = 1, LAUNCH_CLIENT = 2, LAUNCH_DAEMON = 3 };
enum sharding { SHARDING_NONE = 1, SHARDING_FULL = 2, SHARDING_HYBRID = 3 };
enum accumulate { ACCUMULATE_SUM = 1, ACCUMULATE_NONE = 2 };
enum untouched { UNTOUCHED_ZERO = 1, UNTOUCHED_SKIP = 2 };
enum spec_device { DEVICE_HOST = 1, DEVICE_CUDA = 2 };
enum slots_on { SLOTS_ON_HOST = 1, SLOTS_ON_DEVICE = 2 };
enum ordering { ORDER_CANONICAL = 1, ORDER_ARRIVAL = 2 };

struct spec_group {
	char *pattern; /* "": none */
	char **tensor; /* [n_tensors]: names, in one block with these pointers */
	uint32_t n_tensors;
	struct optim_group values;
	bool override_weight_decay;
};
struct spec_init {
	char *pattern;
	struct init_rule rule;
};

/* How gaccd starts ranks; the words themselves stay with the edge. */
struct spec_launch {
	uint32_t n_command;
	uint64_t bytes;		      /* of command, environment and directories */
	bool dirs_absolute, names_ok; /* directories begin with /, names of variables are not empty and have no = */
	uint32_t max_restarts;
	int64_t grace_ns;
	bool no_torch_env; /* ranks get none of torchrun's variables */
};

/* A step whose gradient norm is above factor times the usual one is skipped; factor 0: off. */
struct outlier_skip {
	double factor, decay;
	uint32_t warmup_steps;
};

struct job_spec {
	char name[SPEC_MAX_NAME];
	uint32_t ranks, micro_size, max_micro_size;
	uint32_t parts;		/* control/part.h */
	char *nodes;		/* where they are: spec_nodes.h; NULL or "": on the coordinator's node */
	enum sharding sharding; /* of a job of one part without effect: spec_is_sharded */
	uint32_t shard_size;	/* HYBRID: parts of a group; else 0 */
	uint64_t shard_threshold;
	uint64_t steps;
	enum reduction reduction;
	double fixed_divisor;
	enum grad_of grad_of;
	enum uneven uneven;
	enum accumulate accumulate;
	enum untouched untouched; /* what a step does with a tensor that its window has no gradient of */
	enum spec_device device;
	char gpu[SPEC_GPU_BYTES]; /* its UUID, or the beginning of it; "": any */
	enum slots_on slots_on;	  /* DEVICE: trainers import slots and parameters from the GPU */
	bool verify_params;	  /* with slots_on DEVICE: ends when something else writes to the parameters */
	enum dtype accumulate_dtype, gradient_dtype; /* gradient NONE: each tensor's own */
	bool master_f32;
	double clip_norm, clip_value;
	enum nonfinite nonfinite;
	double loss_scale; /* the first one, when it is dynamic */
	struct loss_scale_rules dynamic_loss_scale;
	struct outlier_skip outlier_skip;
	struct optim_config optim;
	struct schedule schedule;
	struct spec_group *group;
	uint32_t n_groups;
	struct spec_init *init;
	uint32_t n_init;
	uint64_t seed;
	enum ordering ordering;
	uint32_t slots_per_rank;
	int64_t stall_warn_ns, stall_abort_ns;
	int64_t abandoned_ns; /* without any attached rank, then the job fails */
	enum launch_mode launch_mode;
	struct spec_launch launch;
	struct {
		uint64_t every_steps; /* 0: never by itself */
		uint32_t keep;	      /* 0: all */
		bool at_end;
		bool bad_dir; /* relative, or with ".." */
	} checkpoint;
	bool restores;	       /* from a checkpoint */
	bool bad_restore_path; /* relative, or with ".." */
	uint64_t host_memory;  /* bytes, reserved while the tensors are not known */
};

/* Puts defaults where a field is zero ("unspecified"), then checks every field; nothing in *s is trusted. On error
 * `field` names the offending one (static storage) and `why` says what is wrong and what is allowed. */
enum status job_spec_check(struct job_spec *s, const char **field, char *why, size_t n_why);
/* Group i of n_groups + 1, as the optimizer has it: 0 for the tensors that no rule of param_groups matches, then the
 * rules in their order. */
struct optim_group job_spec_group(const struct job_spec *, uint32_t i);
void job_spec_fini(struct job_spec *); /* frees groups and rules */

/* In how many shards the optimizer state is divided (engine/plan.h). */
static inline uint32_t spec_shards(const struct job_spec *s)
{
	if (s->parts <= 1 || s->sharding == SHARDING_NONE)
		return 1;
	return s->sharding == SHARDING_FULL ? s->parts : s->shard_size;
}

/* No part has all of the optimizer state: each has a shard, and updates that shard of the parameters. */
static inline bool spec_is_sharded(const struct job_spec *s)
{
	return spec_shards(s) > 1;
}

/* Slots of an engine with all ranks, spare ones included. */
static inline uint32_t spec_slots(const struct job_spec *s)
{
	return (s->ranks + 1) * s->slots_per_rank;
}

#endif

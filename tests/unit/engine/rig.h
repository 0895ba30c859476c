/* SPDX-License-Identifier: Apache-2.0 */
/* A job without gaccd: plan, segments and a real engine process on the other end of a socketpair. */
#ifndef GACC_TEST_ENGINE_RIG_H
#define GACC_TEST_ENGINE_RIG_H

#include "base/packet.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "engine/memory.h"

#include <sys/types.h>

enum { COUNTED = 1, DUPLICATE = 2, ALREADY_COMMITTED = 3, VOID = 4 }; /* gacc.v1.PushResult */
enum { APPLIED = 1, SKIPPED = 2, EMPTY = 3, DROPPED = 4 };	      /* gacc.v1.StepOutcome */

#define RIG_JOB 7
#define RIG_GENERATION 3
#define RIG_MAX_TENSORS 16
#define RIG_MAX_PROGRESS 64

struct rig_config {
	struct tensor_spec tensor[RIG_MAX_TENSORS];
	int n_tensors;
	enum dtype grad_dtype, acc_dtype; /* NONE: the tensor's own; f32 */
	uint32_t ranks, micro_size, threads;
	uint32_t part, n_parts; /* of the job; 0, 0: it has one */
	uint32_t n_shards;	/* of the optimizer state; 0: 1 */
	bool arrival, reject_nonfinite, void_is_error, no_master;
	bool skip_untouched, verify_params;
	bool in_slot;	    /* no accumulators, and a second slot */
	bool slots_on_host; /* with device */
	bool device;	    /* PLAN_CUDA: only the segments on the host are made; rig.program has to be set */
	struct optim_config optim;
	unsigned frozen;       /* bit i: tensor i is frozen; bit 16 + i: in a group of lr_scale 0.5 */
	struct init_rule init; /* of every tensor */
};

struct rig {
	struct rig_config config;
	struct arena arena;
	struct plan *plan;
	int plan_fd;
	struct segment *segment; /* mapped here too */
	int n_segments;
	struct control_page page;
	struct control_state state; /* as of the last rig_read */
	int fd;			    /* our end of the channel; -1: no engine */
	pid_t pid;
	long cpu_us;	     /* the next engine dies of SIGPROF when it has used so much CPU; 0: it does not */
	const char *kernels; /* of the next engine; NULL: the best */
	bool few_fds;	     /* the next engine may have fewer descriptors than there are segments */
	uint64_t next_id;
	uint64_t window, applied_step;
	struct engine_answer progress[RIG_MAX_PROGRESS]; /* what the engine has said unasked */
	uint32_t n_progress;
	/* Of the next engine: the path of a program that is one, with the arguments in `argument`, instead of a fork of
	 * this process; NULL: a fork. */
	const char *program, *argument;
	int *device_fd; /* [n_device], of a job on a device: what rig_allocate has given */
	int n_device;
	bool others_are_over;	      /* as START says it */
	const struct engine_net *net; /* of the next engine, and what START says of it */
	int64_t stall_ns;
	unsigned char tail[ENGINE_MAX_TAIL]; /* of the last answer that had one */
};

/* Configurations that most tests start from: two ranks, two micro-batches, SGD with lr 1; a few f32, bf16 and f16
 * tensors with odd sizes and an alias, or (large) enough elements that threads share the work. */
struct rig_config rig_small(void);
struct rig_config rig_large(void);

/* Of r->config and r->arena, also as a descriptor. For rig_open. */
void rig_build_plan(struct rig *);
/* Allocates everything; there is one slot per (rank, micro): rank * micro_size + micro. Fails the test on error. */
void rig_open(struct rig *, const struct rig_config *);
void rig_close(struct rig *); /* ends the engine, too */
/* Starts an engine and sends START; the answer is HELLO. */
struct engine_answer rig_start(struct rig *);
/* Of a job on a device: starts an engine that makes its memory, then sends START. The answer is that to ALLOCATE, or
 * HELLO if it is OK. */
struct engine_answer rig_allocate(struct rig *);
/* The same with other descriptors: n of them after the plan. Returns the answer, or one with op 0 at end of file. */
struct engine_answer rig_start_with(struct rig *, const int *fds, int n);
/* Starts an engine and sends START, without waiting for HELLO. */
void rig_spawn(struct rig *);
void rig_kill(struct rig *); /* SIGKILL, and waits */
int rig_wait(struct rig *);  /* closes our end unless closed; exit code, or -signal */

void *rig_data(const struct rig *, uint32_t role, uint32_t index);
uint64_t rig_bytes(const struct rig *, uint32_t role, uint32_t index);
/* The control record in force into rig->state. */
void rig_read(struct rig *);

/* Sends a command (id is chosen) and returns the id; waits for any answer, and sets PROGRESS aside; sends and waits for
 * this one's answer. */
uint64_t rig_send(struct rig *, struct engine_command);
uint64_t rig_send_with(struct rig *, struct engine_command, const void *tail); /* n_present bytes */
bool rig_receive(struct rig *, struct engine_answer *out);		       /* false: the engine is gone */
/* The next PROGRESS, which was set aside or is waited for; no answer may come before it. */
struct engine_answer rig_progress(struct rig *);
struct engine_answer rig_call(struct rig *, struct engine_command);

/* Shortcuts. Session generation is 1 everywhere, slot as above. */
struct engine_command rig_add_command(const struct rig *, uint32_t rank, uint32_t micro, double weight);
struct engine_answer rig_add(struct rig *, uint32_t rank, uint32_t micro, double weight);
void rig_attach_all(struct rig *);
struct engine_answer rig_flush(struct rig *, uint32_t rank, bool leave);
struct engine_answer rig_close_window(struct rig *);
struct engine_answer rig_go(struct rig *, uint64_t attempt);
struct engine_command rig_commit_command(const struct rig *, uint32_t outcome, double scale, double lr);
/* CLOSE, GO, COMMIT; all must succeed. */
struct engine_answer rig_step(struct rig *, uint32_t outcome, double scale, double lr);
/* Uploads zeros and declares the parameters ready. */
void rig_zero_params(struct rig *);

/* rig_open, rig_start, rig_attach_all. */
void rig_begin(struct rig *, struct rig_config);
/* Fills all slots, with whole numbers or not. */
void rig_fill_all(struct rig *, uint64_t seed, bool exact);
/* Pushes every slot with weight 1 + slot, all sent before any answer is read; order (NULL: ascending) is of slots, in
 * canonical order of their ranks alone: a rank's own go in ascending order. All must be counted. */
void rig_add_all(struct rig *, const uint32_t *order);
void rig_shuffle(uint32_t *order, uint32_t n, uint64_t seed);

/* Element i of tensor t: in a slot, in the parameters. The setters round to the dtype. */
void rig_set_gradient(struct rig *, uint32_t slot, int tensor, uint64_t i, float value);
float rig_gradient(const struct rig *, uint32_t slot, int tensor, uint64_t i);
float rig_param(const struct rig *, int tensor, uint64_t i);
double rig_sum(const struct rig *, uint32_t half, int tensor, uint64_t i);
/* Gradients that depend on (seed, tensor, element) alone; all of the slot's tensors. */
void rig_fill_slot(struct rig *, uint32_t slot, uint64_t seed);
/* Whole numbers -8..8 instead, exact in every dtype. */
void rig_fill_slot_exact(struct rig *, uint32_t slot, uint64_t seed);
uint64_t rig_mix(uint64_t x);

/* `good`, changed, is answered with status `want`. */
#define REFUSED(change, want)                                                                                          \
	do {                                                                                                           \
		struct engine_command c = good;                                                                        \
		change;                                                                                                \
		ck_assert_uint_eq(rig_call(&rig, c).status, ST_##want);                                                \
	} while (0)

#endif

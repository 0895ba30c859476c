/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a snapshot: shared by snapshot.c, on the engine's main thread, and snapshot_writer.c, which is the writer's
 * thread. */
#ifndef GACC_ENGINE_SNAPSHOT_IMPL_H
#define GACC_ENGINE_SNAPSHOT_IMPL_H

#include "engine/snapshot.h"
#include "engine/snapshot_files.h"
#include "store/checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>

#define SNAPSHOT_OUT_BYTES (4u << 20) /* of one write */
/* bytes of memory that are left to the rest of the node when chunks are staged */
#define SNAPSHOT_MARGIN (UINT64_C(256) << 20)

enum chunk_state { CHUNK_PENDING, CHUNK_TAKEN, CHUNK_STAGED, CHUNK_DONE };

/* A role's memory, cut into chunks. */
struct area {
	enum segment_role role;
	uint64_t offset; /* of its first byte in the role's data */
	uint64_t start;	 /* the same, were the data that of the whole arena */
	uint64_t bytes;
	uint32_t n_chunks;
	_Atomic int *chunk;	 /* enum chunk_state of each */
	unsigned char *staging;	 /* where chunks are staged, in the same order; NULL: there is no room for it */
	_Atomic uint32_t n_warm; /* the first ones of `staging` have their memory, as long as they are PENDING */
};

struct snapshot {
	const struct memory *m;
	struct arith *arith;
	struct workers *workers;
	uint64_t (*available)(void);
	int fd;
	bool active;
	pthread_t thread;
	pthread_mutex_t lock; /* for `moved` alone */
	pthread_cond_t moved; /* the writer has taken a chunk, or has finished */
	_Atomic bool stop, finished;
	struct area area[SNAPSHOT_MAX_SECTIONS + 1];
	uint32_t n_areas;
	char *path;
	uint32_t x;
	bool with_model, with_state, inside_window;
	uint32_t ranks, micro_size;
	unsigned char *window; /* data of CHECKPOINT_WINDOW */
	/* of a job with untouched: skip; else NULL */
	unsigned char *touched; /* [touched.n_bytes] of that window */
	uint64_t *steps;	/* [n_tensors]: those that each tensor took part in */
	/* the writer's, until `finished` */
	unsigned char *held; /* a chunk that it has taken */
	unsigned char *out;
	size_t n_out;
	enum status status;
	char why[sizeof(((struct engine_answer *)0)->text)];
	struct checkpoint_dir dir;
	struct checkpoint_file file[CHECKPOINT_PARTS];
};

static inline uint64_t snapshot_chunk_bytes(const struct area *a, uint32_t i)
{
	uint64_t left = a->bytes - (uint64_t)i * SNAPSHOT_CHUNK;
	return left < SNAPSHOT_CHUNK ? left : SNAPSHOT_CHUNK;
}

/* Copies chunk i as it is now. Any thread. */
static inline void snapshot_read_chunk(const struct snapshot *s, const struct area *a, uint32_t i, void *to)
{
	const uint64_t at = a->offset + (uint64_t)i * SNAPSHOT_CHUNK;
	arith_need("reading for a checkpoint",
		   s->arith->ops->read(s->arith, a->role, at, snapshot_chunk_bytes(a, i), to));
}

/* Copies chunk i aside as it is now, if nobody has come to it. Any thread. */
static inline void snapshot_stage_chunk(const struct snapshot *s, struct area *a, uint32_t i)
{
	int state = CHUNK_PENDING;
	if (!atomic_compare_exchange_strong(&a->chunk[i], &state, CHUNK_TAKEN))
		return;
	snapshot_read_chunk(s, a, i, a->staging + (uint64_t)i * SNAPSHOT_CHUNK);
	atomic_store(&a->chunk[i], CHUNK_STAGED);
}

/* NULL: the snapshot does not hold this role. */
static inline struct area *snapshot_area(struct snapshot *s, enum segment_role role)
{
	for (uint32_t i = 0; i < s->n_areas; i++)
		if (s->area[i].role == role)
			return &s->area[i];
	return NULL;
}

/* The thread; arg is the snapshot, which it reads and whose part "the writer's" it fills. At its end `finished` is set
 * and the descriptor readable. */
void *snapshot_writer(void *arg);

#endif

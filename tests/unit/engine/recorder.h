/* SPDX-License-Identifier: Apache-2.0 */
/* An engine inside the test's process whose arithmetic is the host's, but notes what it is asked for. The engine's own
 * view of the memory has no arenas: code that goes around the seam ends in a null pointer. */
#ifndef GACC_TEST_ENGINE_RECORDER_H
#define GACC_TEST_ENGINE_RECORDER_H

#include "engine/process.h"
#include "rig.h"

#include <pthread.h>

#define RECORDED_IO 4096

/* A read or a write. */
struct recorded_io {
	bool write;
	enum segment_role role;
	uint64_t offset, n;
};

struct recorder {
	struct arith arith;
	struct arith *real;
	struct engine e;
	struct memory mem; /* with its arenas */
	int peer;	   /* gaccd's end of the engine's channel */
	const char *fail;  /* the operation that fails with ST_IO_ERROR; NULL: none */
	/* of the record in force when it failed; 0: it has not. In memory that parent and child share */
	uint64_t *failed_at;
	uint64_t n_commands;
	char said[2048]; /* every operation but reads and writes: its name and numbers */
	pthread_mutex_t lock;
	struct recorded_io io[RECORDED_IO];
	uint32_t n_io;
};

/* The channel and failed_at; then an engine on the rig's memory, which no other engine has now, with threads. Between
 * the two is the place for a fork. */
void recorder_prepare(struct recorder *);
void recorder_open(struct recorder *, const struct rig *);
void recorder_close(struct recorder *);	  /* of what recorder_open has made */
void recorder_dismiss(struct recorder *); /* of what recorder_prepare has made */
/* Gives the engine one command, in the way of engine.c; a push is queued. */
void recorder_command(struct recorder *, struct engine_command, const void *tail);
/* The next answer; it must be there. */
struct engine_answer recorder_answer(struct recorder *);
/* What was asked for since the last time is `want`. */
void recorder_expect(struct recorder *, const char *want);

#endif

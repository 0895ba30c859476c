/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that computes nothing: it attaches, fills its slots once with normal floats, and pushes. */
#ifndef GACC_TESTS_TRAINER_H
#define GACC_TESTS_TRAINER_H

#include <gacc/gacc.h>
#include <stdbool.h>
#include <stddef.h>

struct trainer {
	gacc_client *client;
	gacc_job *job;
	size_t n_elements, n_tensors;
	const void *filled[2]; /* slots that hold values */
	double norm;	       /* of what it pushes, computed in f64 */
};

struct trainer_options {
	const char *endpoint;
	const char *name;	/* of the job */
	const char *optimizer;	/* "sgd", "adamw" */
	int rank, ranks, parts; /* parts 0: one */
	const char *nodes;	/* of the parts: "a,b"; NULL: where the job is made */
	unsigned micro_size;
	size_t n_elements, n_tensors; /* n_elements in all, as evenly as they go */
	bool inlined;
};

/* Creates the job if it is not there, and returns when it runs: when each part has a rank that has called this. */
void trainer_open(struct trainer *trainer, const struct trainer_options *options);
/* Its two halves. The first makes the job, on the node that coordinates, and waits for nobody. */
void trainer_attach(struct trainer *trainer, const struct trainer_options *options);
void trainer_start(struct trainer *trainer);
void trainer_close(struct trainer *trainer);
/* One zero-copy push; the same values every time, and the same for every rank. */
void trainer_push(struct trainer *trainer);
/* Ends the program unless st is GACC_OK. */
void trainer_need(const struct trainer *trainer, gacc_status st);

#endif

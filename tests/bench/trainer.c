/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include "bench.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void trainer_need(const struct trainer *t, gacc_status st)
{
	if (st)
		bench_die("%s: %s", gacc_strerror(st), t->job ? gacc_last_error(t->job) : gacc_client_error(t->client));
}

static size_t elements_of(const struct trainer *t, size_t tensor)
{
	return t->n_elements / t->n_tensors + (tensor < t->n_elements % t->n_tensors);
}

static void declare(struct trainer *t)
{
	gacc_tensor *tensor = calloc(t->n_tensors, sizeof(*tensor));
	char(*name)[32] = calloc(t->n_tensors, sizeof(*name));
	for (size_t i = 0; i < t->n_tensors; i++) {
		snprintf(name[i], sizeof(name[i]), "t%zu", i);
		tensor[i] = (gacc_tensor){
			.name = name[i], .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)elements_of(t, i) }
		};
	}
	trainer_need(t, gacc_register(t->job, tensor, t->n_tensors));
	free(name);
	free(tensor);
}

void trainer_attach(struct trainer *t, const struct trainer_options *o)
{
	char spec[512], nodes[64] = "";
	gacc_attach_opts opts = { .struct_size = sizeof(opts),
				  .job = o->name,
				  .rank = o->rank,
				  .world_size = o->ranks,
				  .spec_yaml = spec,
				  .no_shared_memory = o->inlined };
	if (o->nodes)
		snprintf(nodes, sizeof(nodes), "nodes: \"%s\", ", o->nodes);
	snprintf(spec, sizeof(spec),
		 "metadata: {name: %s}\n"
		 "spec: {micro_size: %u, parts: %d, %sclip_norm: 1, optimizer: {type: %s, lr: 1.0e-6}, "
		 "init: [{pattern: \"*\", type: uniform, a: 0.001, b: 0.002}]}\n",
		 o->name, o->micro_size, o->parts ? o->parts : 1, nodes, o->optimizer);
	*t = (struct trainer){ .n_elements = o->n_elements, .n_tensors = o->n_tensors };
	gacc_status st = gacc_open(o->endpoint, &t->client);
	if (st)
		bench_die("gacc_open: %s", gacc_strerror(st));
	trainer_need(t, gacc_attach(t->client, &opts, &t->job));
}

void trainer_start(struct trainer *t)
{
	declare(t);
	trainer_need(t, gacc_ready(t->job, -1, NULL));
}

void trainer_open(struct trainer *t, const struct trainer_options *o)
{
	trainer_attach(t, o);
	trainer_start(t);
}

void trainer_close(struct trainer *t)
{
	gacc_detach(t->job, 1);
	gacc_close(t->client);
}

/* Values in [1e-3, 2e-3); what lies between tensors stays zero. */
static void fill(struct trainer *t, unsigned char *slot)
{
	uint32_t x = 4711;
	double sum = 0;
	for (size_t i = 0; i < t->n_tensors; i++) {
		float *a = (float *)(slot + gacc_offset(t->job, i));
		for (size_t j = 0, n = elements_of(t, i); j < n; j++) {
			x = x * 1664525u + 1013904223u;
			a[j] = 1e-3f * (1 + (float)(x >> 8) * 0x1p-24f);
			sum += (double)a[j] * a[j];
		}
	}
	t->norm = sqrt(sum);
}

void trainer_push(struct trainer *t)
{
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = 8, .loss = 1 };
	void *slot;
	trainer_need(t, gacc_grad_buffer(t->job, &slot, NULL));
	if (slot != t->filled[0] && slot != t->filled[1]) {
		fill(t, slot);
		t->filled[t->filled[0] != NULL] = slot;
	}
	trainer_need(t, gacc_push(t->job, &opts, NULL));
}

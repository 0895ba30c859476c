/* SPDX-License-Identifier: Apache-2.0 */
/* A small specification and a configuration, for tests of jobs on a node. */
#include "support/small_job.h"

#include "support/scratch.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void small_job(struct small_job *s)
{
	static char name[] = "rig", any[] = "*";
	gacc__v1__job_spec__init(&s->spec);
	gacc__v1__optimizer__init(&s->optimizer);
	gacc__v1__init_rule__init(&s->ones);
	s->optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD;
	s->optimizer.lr = 0.5;
	s->ones.pattern = any;
	s->ones.type = GACC__V1__INIT_TYPE__INIT_TYPE_ONES;
	s->init[0] = &s->ones;
	s->spec.name = name;
	s->spec.ranks = s->spec.micro_size = 2;
	s->spec.optimizer = &s->optimizer;
	s->spec.init = s->init;
	s->spec.n_init = 1;
	s->spec.tensors = s->tensors;
}

void small_job_add(struct small_job *s, const char *name, int64_t rows, int64_t columns)
{
	size_t i = s->spec.n_tensors++;
	ck_assert_uint_lt(i, sizeof(s->tensor) / sizeof(*s->tensor));
	Gacc__V1__TensorSpec *t = s->tensors[i] = &s->tensor[i];
	gacc__v1__tensor_spec__init(t);
	t->name = (char *)name;
	t->dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
	t->shape = s->shape[i];
	t->shape[0] = rows;
	t->shape[1] = columns;
	t->n_shape = columns ? 2 : 1;
}

struct conf *small_conf(const char *const *set)
{
	char dir[SCRATCH_PATH], file[SCRATCH_PATH + 16], why[256] = "";
	struct conf *conf = NULL;
	ck_assert(scratch_make(dir));
	snprintf(file, sizeof(file), "%s/empty.yaml", dir);
	close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	const struct conf_sources sources = { .file = file, .set = set };
	ck_assert_msg(conf_load(&sources, &conf, why, sizeof(why)) == ST_OK, "%s", why);
	return conf;
}

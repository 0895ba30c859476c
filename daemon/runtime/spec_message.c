/* SPDX-License-Identifier: Apache-2.0 */
/* A job's specification and its tensor set: from the protobuf messages of the API and of the journal to the structs
 * that control works with, and tensor sets back. Any thread. */
#include "runtime/spec_message.h"

#include "control/spec_nodes.h"
#include "gacc/v1/common.pb-c.h"
#include "proto/bytes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Control's numbers are the message's. */
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)GACC__V1__##theirs, #ours)
SAME(REDUCE_WEIGHTED_MEAN, REDUCTION__REDUCTION_WEIGHTED_MEAN);
SAME(REDUCE_MEAN, REDUCTION__REDUCTION_MEAN);
SAME(REDUCE_SUM, REDUCTION__REDUCTION_SUM);
SAME(REDUCE_FIXED, REDUCTION__REDUCTION_FIXED_DIVISOR);
SAME(GRAD_OF_MEAN, GRAD_OF__GRAD_OF_MEAN);
SAME(GRAD_OF_SUM, GRAD_OF__GRAD_OF_SUM);
SAME(UNEVEN_FLUSH, UNEVEN__UNEVEN_FLUSH);
SAME(UNEVEN_DROP, UNEVEN__UNEVEN_DROP);
SAME(UNEVEN_ERROR, UNEVEN__UNEVEN_ERROR);
SAME(NONFINITE_SKIP_STEP, NON_FINITE__NON_FINITE_SKIP_STEP);
SAME(NONFINITE_REJECT_MICRO, NON_FINITE__NON_FINITE_REJECT_MICRO);
SAME(NONFINITE_ERROR, NON_FINITE__NON_FINITE_ERROR);
SAME(ORDER_CANONICAL, ORDERING__ORDERING_CANONICAL);
SAME(ORDER_ARRIVAL, ORDERING__ORDERING_ARRIVAL);
SAME(SHARDING_NONE, SHARDING__SHARDING_NONE);
SAME(SHARDING_FULL, SHARDING__SHARDING_FULL);
SAME(SHARDING_HYBRID, SHARDING__SHARDING_HYBRID);
SAME(DEVICE_HOST, DEVICE__DEVICE_HOST);
SAME(DEVICE_CUDA, DEVICE__DEVICE_CUDA);
SAME(SLOTS_ON_HOST, SLOTS_ON__SLOTS_ON_HOST);
SAME(SLOTS_ON_DEVICE, SLOTS_ON__SLOTS_ON_DEVICE);
SAME(LAUNCH_EXTERNAL, LAUNCH_MODE__LAUNCH_MODE_EXTERNAL);
SAME(LAUNCH_CLIENT, LAUNCH_MODE__LAUNCH_MODE_CLIENT);
SAME(LAUNCH_DAEMON, LAUNCH_MODE__LAUNCH_MODE_DAEMON);

int64_t spec_ms(uint64_t ms)
{
	return ms > INT64_MAX / 1000000 ? INT64_MAX : (int64_t)(ms * 1000000);
}

/* The names in one block behind their pointers: there may be many of them. */
static bool copy_names(const Gacc__V1__ParamGroup *g, struct spec_group *o)
{
	size_t bytes = g->n_tensors * sizeof(*o->tensor);
	for (size_t i = 0; i < g->n_tensors; i++)
		bytes += strlen(g->tensors[i]) + 1;
	o->n_tensors = g->n_tensors < UINT32_MAX ? (uint32_t)g->n_tensors : UINT32_MAX;
	o->tensor = malloc(bytes + 1);
	if (!o->tensor)
		return false;
	char *at = (char *)(o->tensor + g->n_tensors);
	for (size_t i = 0; i < g->n_tensors; i++) {
		o->tensor[i] = at;
		at = stpcpy(at, g->tensors[i]) + 1;
	}
	return true;
}

static bool copy_groups(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	s->group = calloc(pb->n_param_groups + 1, sizeof(*s->group));
	if (!s->group)
		return false;
	for (size_t i = 0; i < pb->n_param_groups; i++) {
		const Gacc__V1__ParamGroup *g = pb->param_groups[i];
		struct spec_group *o = &s->group[s->n_groups];
		o->pattern = strdup(g->pattern);
		if (!o->pattern)
			return false;
		o->values = (struct optim_group){ .lr_scale = g->lr_scale,
						  .weight_decay = g->weight_decay,
						  .frozen = g->frozen };
		o->override_weight_decay = g->override_weight_decay;
		s->n_groups++; /* from here on job_spec_fini frees it */
		if (!copy_names(g, o))
			return false;
	}
	return true;
}

static bool copy_init(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	s->init = calloc(pb->n_init + 1, sizeof(*s->init));
	if (!s->init)
		return false;
	for (size_t i = 0; i < pb->n_init; i++) {
		const Gacc__V1__InitRule *r = pb->init[i];
		struct spec_init *o = &s->init[s->n_init];
		o->pattern = strdup(r->pattern);
		if (!o->pattern)
			return false;
		o->rule = (struct init_rule){ (enum init_type)r->type, r->a, r->b };
		s->n_init++;
	}
	return true;
}

static void copy_optimizer(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	if (pb->optimizer) {
		const Gacc__V1__Optimizer *o = pb->optimizer;
		s->optim = (struct optim_config){ .type = (enum optim_type)o->type,
						  .lr = o->lr,
						  .momentum = o->momentum,
						  .dampening = o->dampening,
						  .weight_decay = o->weight_decay,
						  .beta1 = o->beta1,
						  .beta2 = o->beta2,
						  .eps = o->eps,
						  .nesterov = o->nesterov };
	}
	if (pb->schedule) {
		const Gacc__V1__Schedule *c = pb->schedule;
		s->schedule = (struct schedule){ .type = (enum schedule_type)c->type,
						 .warmup_steps = c->warmup_steps,
						 .total_steps = c->total_steps,
						 .step_size = c->step_size,
						 .min_factor = c->min_factor,
						 .gamma = c->gamma,
						 .warmup_start_factor = c->warmup_start_factor };
	}
}

static bool absolute_or_empty(const char *path)
{
	return !*path || *path == '/';
}

static bool absolute_and_straight(const char *path)
{
	for (const char *at = path; (at = strstr(at, "/..")); at++)
		if (!at[3] || at[3] == '/')
			return false;
	return path[0] == '/';
}

static void copy_checkpoint(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	const Gacc__V1__CheckpointPolicy *c = pb->checkpoint;
	s->restores = *pb->restore_from;
	s->bad_restore_path = s->restores && !absolute_and_straight(pb->restore_from);
	s->checkpoint.bad_dir = c && *c->dir && !absolute_and_straight(c->dir);
	if (!c)
		return;
	s->checkpoint.every_steps = c->every_steps;
	s->checkpoint.keep = c->keep;
	s->checkpoint.at_end = c->at_end;
}

static void copy_launch(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	const Gacc__V1__Launch *l = pb->launch_command;
	s->launch_mode = (enum launch_mode)pb->launch;
	s->host_memory = pb->host_memory;
	s->launch = (struct spec_launch){ .names_ok = true,
					  .bytes = strlen(pb->log_dir) + 1,
					  .dirs_absolute = absolute_or_empty(pb->log_dir) };
	if (!l)
		return;
	s->launch.n_command = (uint32_t)l->n_command;
	s->launch.max_restarts = l->max_restarts;
	s->launch.grace_ns = spec_ms(l->grace_ms);
	s->launch.no_torch_env = l->no_torch_env;
	s->launch.dirs_absolute &= absolute_or_empty(l->working_dir);
	s->launch.bytes += strlen(l->working_dir) + 1;
	for (size_t i = 0; i < l->n_command; i++)
		s->launch.bytes += strlen(l->command[i]) + 1;
	for (size_t i = 0; i < l->n_environment; i++) {
		const Gacc__V1__Label *v = l->environment[i];
		s->launch.bytes += strlen(v->key) + strlen(v->value) + 2;
		s->launch.names_ok &= *v->key && !strchr(v->key, '=');
	}
}

static void copy_loss_scale(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	const Gacc__V1__DynamicLossScale *d = pb->dynamic_loss_scale;
	const Gacc__V1__OutlierSkip *o = pb->outlier_skip;
	if (d)
		s->dynamic_loss_scale =
			(struct loss_scale_rules){ d->enabled,	       d->growth_factor, d->backoff_factor,
						   d->growth_interval, d->hysteresis,	 d->min_scale,
						   d->max_scale };
	if (o)
		s->outlier_skip = (struct outlier_skip){ o->factor, o->decay, o->warmup_steps };
}

static bool copy_nodes(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	s->nodes = strdup(pb->nodes);
	return s->nodes != NULL;
}

static void copy_scalars(const Gacc__V1__JobSpec *pb, struct job_spec *s)
{
	s->ranks = pb->ranks;
	s->parts = pb->parts;
	s->micro_size = pb->micro_size;
	s->max_micro_size = pb->max_micro_size;
	s->steps = pb->steps;
	s->reduction = (enum reduction)pb->reduction;
	s->fixed_divisor = pb->fixed_divisor;
	s->grad_of = (enum grad_of)pb->grad_of;
	s->uneven = (enum uneven)pb->uneven;
	s->accumulate = (enum accumulate)pb->accumulate;
	s->untouched = (enum untouched)pb->untouched;
	s->device = (enum spec_device)pb->device;
	s->slots_on = (enum slots_on)pb->slots_on;
	s->verify_params = pb->verify_params;
	s->accumulate_dtype = (enum dtype)pb->accumulate_dtype;
	s->gradient_dtype = (enum dtype)pb->gradient_dtype;
	s->master_f32 = pb->master != GACC__V1__MASTER__MASTER_NONE;
	s->clip_norm = pb->clip_norm;
	s->clip_value = pb->clip_value;
	s->nonfinite = (enum nonfinite)pb->nonfinite;
	s->loss_scale = pb->loss_scale;
	copy_loss_scale(pb, s);
	s->seed = pb->seed;
	s->ordering = (enum ordering)pb->ordering;
	s->slots_per_rank = pb->slots_per_rank;
	s->sharding = (enum sharding)pb->sharding;
	s->shard_size = pb->shard_size;
	s->shard_threshold = pb->shard_threshold;
	s->stall_warn_ns = spec_ms(pb->stall_warn_ms);
	s->stall_abort_ns = spec_ms(pb->stall_abort_ms);
	s->abandoned_ns = spec_ms(pb->abandoned_ms);
}

#define MAX_LABELS 256
#define MAX_PATH_BYTES 4096
/* of a path, %j and %x not replaced yet; gaccd's names beneath it fit behind it */
#define MAX_CHECKPOINT_BYTES 3840
#define REFUSE(name, ...) (*field = (name), snprintf(why, n_why, __VA_ARGS__), ST_INVALID_SPEC)

static const char *control_character(const char *s)
{
	while (*s && (unsigned char)*s >= 0x20 && *s != 0x7f)
		s++;
	return *s ? s : NULL;
}

/* Checks fields that only the message has, and values that struct job_spec cannot hold. */
static enum status check_message(const Gacc__V1__JobSpec *pb, const char **field, char *why, size_t n_why)
{
	const char *strange = control_character(pb->name);
	if (strlen(pb->name) >= SPEC_MAX_NAME)
		return REFUSE("name", "name has %zu bytes, at most %d are allowed", strlen(pb->name),
			      SPEC_MAX_NAME - 1);
	if (strange)
		return REFUSE("name", "name has the control character 0x%02x at byte %td", (unsigned)*strange,
			      strange - pb->name);
	if (pb->master < 0 || pb->master > GACC__V1__MASTER__MASTER_NONE)
		return REFUSE("master", "master %d is unknown: f32 or none", (int)pb->master);
	if (strlen(pb->log_dir) > MAX_PATH_BYTES)
		return REFUSE("log_dir", "log_dir has %zu bytes, at most %d are allowed", strlen(pb->log_dir),
			      MAX_PATH_BYTES);
	if (pb->checkpoint && strlen(pb->checkpoint->dir) > MAX_CHECKPOINT_BYTES)
		return REFUSE("checkpoint.dir", "checkpoint.dir has %zu bytes, at most %d are allowed",
			      strlen(pb->checkpoint->dir), MAX_CHECKPOINT_BYTES);
	if (strlen(pb->restore_from) > MAX_CHECKPOINT_BYTES)
		return REFUSE("restore_from", "restore_from has %zu bytes, at most %d are allowed",
			      strlen(pb->restore_from), MAX_CHECKPOINT_BYTES);
	if (strlen(pb->nodes) > SPEC_MAX_NODES_BYTES)
		return REFUSE("nodes", "nodes has %zu bytes, at most %d are allowed", strlen(pb->nodes),
			      SPEC_MAX_NODES_BYTES);
	if (strlen(pb->gpu) >= SPEC_GPU_BYTES)
		return REFUSE("gpu", "gpu has %zu bytes, at most %d are allowed", strlen(pb->gpu), SPEC_GPU_BYTES - 1);
	if (pb->n_labels > MAX_LABELS)
		return REFUSE("labels", "%zu labels, at most %d are allowed", pb->n_labels, MAX_LABELS);
	return ST_OK;
}

enum status spec_from_message(const Gacc__V1__JobSpec *pb, struct job_spec *out, const char **field, char *why,
			      size_t n_why)
{
	struct job_spec s = { .ranks = 0 };
	enum status st = check_message(pb, field, why, n_why);
	if (st)
		return st;
	strcpy(s.name, pb->name);
	strcpy(s.gpu, pb->gpu);
	copy_scalars(pb, &s);
	copy_optimizer(pb, &s);
	copy_launch(pb, &s);
	copy_checkpoint(pb, &s);
	st = ST_NO_MEMORY;
	if (pb->n_param_groups > SPEC_MAX_RULES || pb->n_init > SPEC_MAX_RULES) {
		*field = pb->n_init > SPEC_MAX_RULES ? "init" : "param_groups";
		snprintf(why, n_why, "%zu param_groups and %zu init rules, at most %d each", pb->n_param_groups,
			 pb->n_init, SPEC_MAX_RULES);
		st = ST_INVALID_SPEC;
	} else if (copy_groups(pb, &s) && copy_init(pb, &s) && copy_nodes(pb, &s)) {
		st = job_spec_check(&s, field, why, n_why);
	}
	if (st)
		job_spec_fini(&s);
	else
		*out = s;
	return st;
}

void spec_message_sum(const void *spec, size_t n, uint8_t out[16])
{
	XXH128_canonical_t sum;
	XXH128_canonicalFromHash(&sum, XXH3_128bits(spec, n));
	memcpy(out, sum.digest, sizeof(sum.digest));
}

static enum status tensor_from_message(const Gacc__V1__TensorSpec *t, size_t i, struct tensor_spec *out, char *why,
				       size_t n_why)
{
	if (t->n_shape > ARENA_MAX_DIMS) {
		snprintf(why, n_why, "tensor %zu \"%.80s\" has %zu dimensions, at most %d are allowed", i, t->name,
			 t->n_shape, ARENA_MAX_DIMS);
		return ST_INVALID_ARGUMENT;
	}
	*out = (struct tensor_spec){ .name = t->name,
				     .dtype = (enum dtype)t->dtype,
				     .n_dims = (int)t->n_shape,
				     .alias_of = *t->alias_of ? t->alias_of : NULL };
	for (size_t d = 0; d < t->n_shape; d++)
		out->shape[d] = t->shape[d];
	return ST_OK;
}

enum status tensors_from_message(Gacc__V1__TensorSpec *const *t, size_t n, struct tensor_spec **out, char *why,
				 size_t n_why)
{
	struct tensor_spec *s = calloc(n + 1, sizeof(*s));
	enum status st = s ? ST_OK : ST_NO_MEMORY;
	for (size_t i = 0; i < n && !st; i++)
		st = tensor_from_message(t[i], i, &s[i], why, n_why);
	if (st)
		free(s);
	else
		*out = s;
	return st;
}

void *tensors_to_message(const struct tensor_spec *t, uint64_t n, size_t *out_n)
{
	Gacc__V1__JobSpec set = GACC__V1__JOB_SPEC__INIT;
	Gacc__V1__TensorSpec *pb = calloc(n, sizeof(*pb)), **list = calloc(n, sizeof(*list));
	void *bytes = NULL;
	for (uint64_t i = 0; i < n && pb && list; i++) {
		gacc__v1__tensor_spec__init(&pb[i]);
		pb[i].name = (char *)t[i].name;
		pb[i].dtype = (Gacc__V1__DataType)t[i].dtype;
		pb[i].n_shape = (size_t)t[i].n_dims;
		pb[i].shape = (int64_t *)t[i].shape;
		if (t[i].alias_of)
			pb[i].alias_of = (char *)t[i].alias_of;
		list[i] = &pb[i];
	}
	set.n_tensors = n;
	set.tensors = list;
	if (pb && list)
		bytes = bytes_pack(&set.base, out_n);
	free(list);
	free(pb);
	return bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a job file into gacc.v1.JobSpec: applies defaults (PyTorch's for optimizers), fills lists, and changes single
 * keys of a gacc_spec. For gaccctl and gacc_admin.h; no globals, any thread. */
#include "lib/spec_impl.h"

#include "gacc/gacc_admin.h"
#include "lib/failure.h"
#include "lib/json.h"
#include "proto/bytes.h"
#include "text/yaml_table.h"

#include <gacc/v1/common.pb-c.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- PyTorch's defaults ---- */

static double or_default(double v, double otherwise)
{
	return isnan(v) ? otherwise : v;
}

static const struct yaml_field *key_of(const struct yaml_field *table, const char *name)
{
	while (strcmp(table->name, name) != 0)
		table++;
	return table;
}

/* True if the key was given; then `error` says that this optimizer has no such thing. */
static bool strange(struct spec_file *f, const char *name, const char *type)
{
	const char *origin = yaml_origin(&f->origins, key_of(spec_optimizer_keys, name));
	if (!*origin || strcmp(origin, "default") == 0)
		return false;
	snprintf(f->error.text, sizeof(f->error.text), "%s: spec.optimizer.%s: %s has no %s", origin, name, type, name);
	return true;
}

static bool check_optimizer(struct spec_file *f)
{
	static const char *const of_sgd[] = { "momentum", "dampening", "nesterov" }, *const of_adam[] = { "betas",
													  "eps" };
	int type = f->optimizer.type;
	bool sgd = type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD;
	const char *name = "client";
	if (type == 0)
		return true;
	for (const struct yaml_name *o = spec_optimizers; o->name; o++)
		if (o->value == type)
			name = o->name;
	bool client = type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT;
	for (size_t i = 0; i < 3; i++)
		if (!sgd && strange(f, of_sgd[i], name))
			return false;
	for (size_t i = 0; i < 2; i++)
		if ((sgd || client) && strange(f, of_adam[i], name))
			return false;
	return !client || (!strange(f, "lr", name) && !strange(f, "weight_decay", name));
}

static Gacc__V1__Optimizer full_optimizer(const struct spec_file *f)
{
	Gacc__V1__Optimizer o = GACC__V1__OPTIMIZER__INIT;
	const Gacc__V1__Optimizer *in = &f->optimizer;
	bool client = in->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_CLIENT;
	bool adamw = in->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_ADAMW;
	bool lamb = in->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_LAMB;
	bool adam = in->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_ADAM || adamw || lamb;
	o.type = in->type;
	o.lr = or_default(in->lr, client || !in->type ? 0 : 1e-3);
	o.momentum = or_default(in->momentum, 0);
	o.dampening = or_default(in->dampening, 0);
	o.nesterov = in->nesterov;
	o.weight_decay = or_default(in->weight_decay, adamw || lamb ? 1e-2 : 0);
	o.beta1 = or_default(f->betas[0], adam ? 0.9 : 0);
	o.beta2 = or_default(f->betas[1], adam ? 0.999 : 0);
	o.eps = or_default(in->eps, lamb ? 1e-6 : adam ? 1e-8 : 0);
	return o;
}

static Gacc__V1__Schedule full_schedule(const struct spec_file *f)
{
	Gacc__V1__Schedule s = f->schedule;
	s.base.descriptor = &gacc__v1__schedule__descriptor;
	bool step = s.type == GACC__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_STEP;
	s.gamma = or_default(s.gamma, step ? 0.1 : 0);
	s.warmup_start_factor = or_default(s.warmup_start_factor, s.warmup_steps ? 1.0 / 3 : 0);
	return s;
}

/* wants_x: the job says something about x; else the specification has no such message. */
static bool wants_loss_scale(const Gacc__V1__DynamicLossScale *d)
{
	return d->enabled || d->growth_factor != 0 || d->backoff_factor != 0 || d->growth_interval || d->hysteresis ||
	       d->min_scale != 0 || d->max_scale != 0;
}

static bool wants_outlier_skip(const Gacc__V1__OutlierSkip *o)
{
	return o->factor != 0 || o->decay != 0 || o->warmup_steps;
}

/* Nor a launch_command, of a job that says nothing about it. */
static void fill_launch(struct spec_file *f, Gacc__V1__Label **environment, Gacc__V1__JobSpec *m)
{
	Gacc__V1__Launch *o = &f->launch;
	o->base.descriptor = &gacc__v1__launch__descriptor;
	o->n_command = f->command.n;
	o->command = f->command.items;
	o->n_environment = f->environment.n;
	o->environment = environment;
	bool any = o->n_command || o->n_environment || (o->working_dir && *o->working_dir) || o->max_restarts ||
		   o->grace_ms || o->no_torch_env;
	m->launch_command = any ? o : NULL;
}

/* ---- the message ---- */

/* Room for a list's messages and the pointers to them, in one block; NULL without memory. *out_msg has n messages. */
static void *messages(size_t n, size_t bytes, void *out_msg)
{
	char *block = calloc(n + 1, sizeof(void *) + bytes);
	if (!block)
		return NULL;
	char *first = block + (n + 1) * sizeof(void *);
	for (size_t i = 0; i < n; i++)
		((void **)block)[i] = first + i * bytes;
	*(void **)out_msg = first;
	return block;
}

static Gacc__V1__ParamGroup **group_messages(const struct yaml_list *l)
{
	const struct group_item *in = l->items;
	Gacc__V1__ParamGroup *g, **all = messages(l->n, sizeof(*g), &g);
	for (size_t i = 0; all && i < l->n; i++) {
		gacc__v1__param_group__init(&g[i]);
		if (in[i].pattern)
			g[i].pattern = in[i].pattern;
		g[i].n_tensors = in[i].tensors.n;
		g[i].tensors = in[i].tensors.items;
		g[i].lr_scale = in[i].lr_scale;
		g[i].override_weight_decay = !isnan(in[i].weight_decay);
		g[i].weight_decay = or_default(in[i].weight_decay, 0);
		g[i].frozen = in[i].frozen;
	}
	return all;
}

static Gacc__V1__InitRule **init_messages(const struct yaml_list *l)
{
	const struct init_item *in = l->items;
	Gacc__V1__InitRule *r, **all = messages(l->n, sizeof(*r), &r);
	for (size_t i = 0; all && i < l->n; i++) {
		gacc__v1__init_rule__init(&r[i]);
		r[i].pattern = in[i].pattern;
		r[i].type = (Gacc__V1__InitType)in[i].type;
		r[i].a = in[i].a;
		r[i].b = in[i].b;
	}
	return all;
}

static Gacc__V1__TensorSpec **tensor_messages(const struct yaml_list *l)
{
	const struct tensor_item *in = l->items;
	Gacc__V1__TensorSpec *t, **all = messages(l->n, sizeof(*t), &t);
	for (size_t i = 0; all && i < l->n; i++) {
		gacc__v1__tensor_spec__init(&t[i]);
		t[i].name = in[i].name;
		t[i].alias_of = in[i].alias_of;
		t[i].dtype = (Gacc__V1__DataType)in[i].dtype;
		t[i].n_shape = in[i].shape.n;
		t[i].shape = in[i].shape.items;
	}
	return all;
}

static Gacc__V1__Label **label_messages(const struct yaml_list *l)
{
	const struct yaml_pair *in = l->items;
	Gacc__V1__Label *b, **all = messages(l->n, sizeof(*b), &b);
	for (size_t i = 0; all && i < l->n; i++) {
		gacc__v1__label__init(&b[i]);
		b[i].key = in[i].key;
		b[i].value = in[i].value;
	}
	return all;
}

static bool wants_checkpoints(const Gacc__V1__CheckpointPolicy *c)
{
	return (c->dir && *c->dir) || c->every_steps || c->keep || c->at_end;
}

static enum status build(struct spec_file *f, Gacc__V1__JobSpec **out)
{
	if (!check_optimizer(f))
		return ST_INVALID_ARGUMENT;
	Gacc__V1__JobSpec m = f->spec;
	Gacc__V1__Optimizer optimizer = full_optimizer(f);
	Gacc__V1__Schedule schedule = full_schedule(f);
	f->checkpoint.base.descriptor = &gacc__v1__checkpoint_policy__descriptor;
	m.checkpoint = wants_checkpoints(&f->checkpoint) ? &f->checkpoint : NULL;
	m.base.descriptor = &gacc__v1__job_spec__descriptor;
	m.optimizer = &optimizer;
	m.schedule = &schedule;
	f->loss_scale.base.descriptor = &gacc__v1__dynamic_loss_scale__descriptor;
	m.dynamic_loss_scale = wants_loss_scale(&f->loss_scale) ? &f->loss_scale : NULL;
	f->outlier.base.descriptor = &gacc__v1__outlier_skip__descriptor;
	m.outlier_skip = wants_outlier_skip(&f->outlier) ? &f->outlier : NULL;
	m.n_param_groups = f->groups.n;
	m.param_groups = group_messages(&f->groups);
	m.n_init = f->init.n;
	m.init = init_messages(&f->init);
	m.n_tensors = f->tensors.n;
	m.tensors = tensor_messages(&f->tensors);
	m.n_labels = f->labels.n;
	m.labels = label_messages(&f->labels);
	Gacc__V1__Label **environment = label_messages(&f->environment);
	fill_launch(f, environment, &m);
	bool whole = m.param_groups && m.init && m.tensors && m.labels && environment;
	Gacc__V1__JobSpec *copy = whole ? (Gacc__V1__JobSpec *)bytes_clone(&m.base) : NULL;
	free(m.param_groups);
	free(m.init);
	free(m.tensors);
	free(m.labels);
	free(environment);
	if (copy)
		*out = copy;
	return copy ? ST_OK : ST_NO_MEMORY;
}

/* ---- reading ---- */

static enum status explain(const struct spec_file *f, enum status st, char *why, size_t n_why)
{
	st = st == ST_INVALID_ARGUMENT ? ST_INVALID_SPEC : st;
	if (st)
		snprintf(why, n_why, "%s", st == ST_INVALID_SPEC ? f->error.text : status_info(st)->text);
	return st;
}

static enum status read_file(struct spec_file *f, const char *text, size_t n, const char *name, Gacc__V1__JobSpec **out,
			     char *why, size_t n_why)
{
	enum status st = yaml_init(spec_table(), f, &f->origins, &f->error);
	if (!st && text)
		st = yaml_read(spec_table(), f, name, text, n, &f->origins, &f->error);
	if (!st)
		st = build(f, out);
	return explain(f, st, why, n_why);
}

enum status spec_parse(const char *text, size_t n, const char *name, struct Gacc__V1__JobSpec **out, char *why,
		       size_t n_why)
{
	struct spec_file *f = calloc(1, sizeof(*f));
	if (!f)
		return ST_NO_MEMORY;
	enum status st = read_file(f, text, n, name, out, why, n_why);
	yaml_fini(spec_table(), f);
	free(f);
	return st;
}

void spec_free(struct Gacc__V1__JobSpec *m)
{
	if (m)
		gacc__v1__job_spec__free_unpacked(m, NULL);
}

/* ---- gacc_admin.h ---- */

struct gacc_spec {
	struct spec_file file;
	Gacc__V1__JobSpec *message;
	char *json;
};

struct Gacc__V1__JobSpec *spec_message(const struct gacc_spec *s)
{
	return s->message;
}

gacc_status gacc_spec_parse(const char *text, const char *name, gacc_spec **out, char *why, size_t n)
{
	gacc_spec *s = calloc(1, sizeof(*s));
	if (!s) {
		snprintf(why, n, "%s", status_info(ST_NO_MEMORY)->text);
		return GACC_ENOMEM;
	}
	enum status st = read_file(&s->file, text, text ? strlen(text) : 0, name, &s->message, why, n);
	if (st)
		gacc_spec_free(s);
	else
		*out = s;
	return gacc_status_of(st);
}

gacc_status gacc_spec_set(gacc_spec *s, const char *key, const char *value, char *why, size_t n)
{
	static const char *const tops[] = { "api_version", "kind", "metadata", "spec" };
	char path[160];
	Gacc__V1__JobSpec *message = NULL;
	bool whole = false;
	for (size_t i = 0; i < sizeof(tops) / sizeof(*tops); i++)
		whole |= strcspn(key, ".") == strlen(tops[i]) && strncmp(key, tops[i], strlen(tops[i])) == 0;
	snprintf(path, sizeof(path), "%s%s", whole ? "" : "spec.", key); /* "optimizer.lr" is "spec.optimizer.lr" */
	enum status st = yaml_set(spec_table(), &s->file, path, value, "--set", &s->file.origins, &s->file.error);
	if (!st)
		st = build(&s->file, &message);
	if (!st) {
		spec_free(s->message);
		s->message = message;
	}
	return gacc_status_of(explain(&s->file, st, why, n));
}

const char *gacc_spec_json(gacc_spec *s)
{
	free(s->json);
	return s->json = json_of(&s->message->base);
}

void gacc_spec_free(gacc_spec *s)
{
	if (!s)
		return;
	yaml_fini(spec_table(), &s->file);
	spec_free(s->message);
	free(s->json);
	free(s);
}

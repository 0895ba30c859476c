/* SPDX-License-Identifier: Apache-2.0 */
/* From gacc.v1.JobSpec to struct job_spec: every field. */
#include "spec_full.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* ---- every field ---- */

START_TEST(scalars)
{
	struct job_spec s = spec_full_take();
	ck_assert_str_eq(s.name, "full");
	ck_assert(s.ranks == 3 && s.micro_size == 2 && s.max_micro_size == 16 && s.parts == 1 && s.steps == 100);
	ck_assert(s.reduction == REDUCE_MEAN && s.fixed_divisor == 2.5 && s.grad_of == GRAD_OF_MEAN);
	ck_assert(s.uneven == UNEVEN_FLUSH && s.nonfinite == NONFINITE_SKIP_STEP && s.ordering == ORDER_CANONICAL);
	ck_assert(s.accumulate_dtype == DTYPE_F32 && s.gradient_dtype == DTYPE_F16 && s.master_f32);
	ck_assert(s.clip_norm == 1.5 && s.clip_value == 3.5 && s.loss_scale == 1024 && s.seed == 77);
	ck_assert(s.slots_per_rank == 1 && s.host_memory == 123456);
	ck_assert_int_eq(s.stall_warn_ns, INT64_C(5000000000));
	ck_assert_int_eq(s.stall_abort_ns, INT64_C(70000000000));
	ck_assert_int_eq(s.abandoned_ns, INT64_C(90000000000));
	job_spec_fini(&s);
}
END_TEST

START_TEST(messages_inside)
{
	struct job_spec s = spec_full_take();
	const struct optim_config *o = &s.optim;
	ck_assert(o->type == OPTIM_ADAMW && o->lr == 0.125 && o->momentum == 0.25 && o->dampening == 0.375);
	ck_assert(o->weight_decay == 0.0625 && o->beta1 == 0.5 && o->beta2 == 0.75 && o->eps == 0.03125);
	ck_assert(!o->nesterov);
	const struct schedule *c = &s.schedule;
	ck_assert(c->type == SCHEDULE_COSINE && c->warmup_steps == 10 && c->total_steps == 90 && c->step_size == 7);
	ck_assert(c->min_factor == 0.1 && c->gamma == 0.5 && c->warmup_start_factor == 0.2);
	const struct loss_scale_rules *d = &s.dynamic_loss_scale;
	ck_assert(d->enabled && d->growth_factor == 3 && d->backoff_factor == 0.25 && d->growth_interval == 50);
	ck_assert(d->hysteresis == 2 && d->min == 2 && d->max == 65536);
	ck_assert(s.outlier_skip.factor == 4 && s.outlier_skip.decay == 0.5 && s.outlier_skip.warmup_steps == 9);
	ck_assert(s.checkpoint.every_steps == 20 && s.checkpoint.keep == 3 && s.checkpoint.at_end);
	ck_assert(!s.checkpoint.bad_dir && s.restores && !s.bad_restore_path);
	job_spec_fini(&s);
}
END_TEST

START_TEST(rules_and_commands)
{
	struct job_spec s = spec_full_take();
	ck_assert_uint_eq(s.n_groups, 2);
	ck_assert_str_eq(s.group[0].pattern, "w*");
	ck_assert(s.group[0].values.lr_scale == 0.5 && s.group[0].values.weight_decay == 0.25);
	ck_assert(s.group[0].override_weight_decay && !s.group[0].values.frozen);
	ck_assert_str_eq(s.group[1].pattern, "b*");
	ck_assert(!s.group[1].override_weight_decay && s.group[1].values.frozen);
	ck_assert_uint_eq(s.n_init, 1);
	ck_assert_str_eq(s.init[0].pattern, "*");
	ck_assert(s.init[0].rule.type == INIT_NORMAL && s.init[0].rule.a == 0.5 && s.init[0].rule.b == 0.75);
	ck_assert_ptr_ne(s.init[0].pattern, rule.pattern); /* copies */
	ck_assert_int_eq(s.launch_mode, LAUNCH_CLIENT);
	ck_assert_uint_eq(s.launch.n_command, 2);
	ck_assert_uint_eq(s.launch.max_restarts, 4);
	ck_assert_int_eq(s.launch.grace_ns, INT64_C(1500000000));
	ck_assert(s.launch.dirs_absolute && s.launch.names_ok);
	ck_assert_uint_eq(s.launch.bytes, strlen("/bin/true-xNAMEvalue/logs/work") + 6);
	job_spec_fini(&s);
}
END_TEST

START_TEST(what_is_left_out_has_its_default)
{
	char name[] = "short";
	gacc__v1__job_spec__init(&full);
	full.name = name;
	full.ranks = 1;
	full.micro_size = 1;
	full.optimizer = &optimizer;
	struct job_spec s = spec_full_take();
	ck_assert(s.master_f32 && s.parts == 1 && s.slots_per_rank == 2 && s.max_micro_size == 64);
	ck_assert(s.reduction == REDUCE_WEIGHTED_MEAN && s.schedule.type == SCHEDULE_CONSTANT && s.loss_scale == 1);
	ck_assert_int_eq(s.launch_mode, LAUNCH_EXTERNAL);
	ck_assert(!s.restores && !s.checkpoint.every_steps && !s.n_groups && !s.n_init && !s.launch.n_command);
	ck_assert_int_eq(s.stall_warn_ns, INT64_C(60000000000));
	job_spec_fini(&s);
}
END_TEST

/* All that a specification says, as text that two of them can be compared by. */
static char *describe(const struct job_spec *s)
{
	static char text[2][4096];
	static int turn;
	char *at = text[turn ^= 1];
	const struct optim_config *o = &s->optim;
	const struct schedule *c = &s->schedule;
	const struct loss_scale_rules *d = &s->dynamic_loss_scale;
	int n = snprintf(at, 4096,
			 "%s %u %u %u %u %llu|%d %g %d %d %d %d %d|%g %g %d %g|%d %g %g %g %g %g %g %g %d|%d %llu %llu "
			 "%llu %g %g %g|%d %g %g %u %u %g %g|%g %g %u|",
			 s->name, s->ranks, s->micro_size, s->max_micro_size, s->parts, (unsigned long long)s->steps,
			 s->reduction, s->fixed_divisor, s->grad_of, s->uneven, s->accumulate_dtype, s->gradient_dtype,
			 s->master_f32, s->clip_norm, s->clip_value, s->nonfinite, s->loss_scale, o->type, o->lr,
			 o->momentum, o->dampening, o->weight_decay, o->beta1, o->beta2, o->eps, o->nesterov, c->type,
			 (unsigned long long)c->warmup_steps, (unsigned long long)c->total_steps,
			 (unsigned long long)c->step_size, c->min_factor, c->gamma, c->warmup_start_factor, d->enabled,
			 d->growth_factor, d->backoff_factor, d->growth_interval, d->hysteresis, d->min, d->max,
			 s->outlier_skip.factor, s->outlier_skip.decay, s->outlier_skip.warmup_steps);
	n += snprintf(
		at + n, 4096 - (size_t)n,
		"%d %d %d %d %d %d %u %llu %d %u %lld %lld %lld|%d %u %llu %d %d %u %lld %d|%llu %u %d %d %d %llu",
		s->accumulate, s->untouched, s->device, s->slots_on, s->verify_params, s->sharding, s->shard_size,
		(unsigned long long)s->seed, s->ordering, s->slots_per_rank, (long long)s->stall_warn_ns,
		(long long)s->stall_abort_ns, (long long)s->abandoned_ns, s->launch_mode, s->launch.n_command,
		(unsigned long long)s->launch.bytes, s->launch.dirs_absolute, s->launch.names_ok,
		s->launch.max_restarts, (long long)s->launch.grace_ns, s->launch.no_torch_env,
		(unsigned long long)s->checkpoint.every_steps, s->checkpoint.keep, s->checkpoint.at_end,
		s->checkpoint.bad_dir, s->restores, (unsigned long long)s->host_memory);
	for (uint32_t i = 0; i < s->n_groups; i++)
		n += snprintf(at + n, 4096 - (size_t)n, "|%s %s %g %g %d %d", s->group[i].pattern,
			      s->group[i].n_tensors ? s->group[i].tensor[0] : "-", s->group[i].values.lr_scale,
			      s->group[i].values.weight_decay, s->group[i].values.frozen,
			      s->group[i].override_weight_decay);
	for (uint32_t i = 0; i < s->n_init; i++)
		n += snprintf(at + n, 4096 - (size_t)n, "|%s %d %g %g", s->init[i].pattern, s->init[i].rule.type,
			      s->init[i].rule.a, s->init[i].rule.b);
	return at;
}

/* It shows in the specification, or the specification is refused for it. */
static void expect_noticed(const char *before, const ProtobufCFieldDescriptor *f)
{
	struct job_spec s;
	const char *field = "";
	char why[320];
	enum status st = spec_from_message(&full, &s, &field, why, sizeof(why));
	if (st) {
		ck_assert_msg(st == ST_INVALID_SPEC && strstr(field, f->name), "%s: refused for %s", f->name, field);
		return;
	}
	ck_assert_msg(strcmp(before, describe(&s)) != 0, "%s changes nothing", f->name);
	job_spec_fini(&s);
}

static int try_all(const char *before, ProtobufCMessage *m);

/* Another value. */
static void change(void *at, ProtobufCType type)
{
	static char other[] = "other/../path";
	if (type == PROTOBUF_C_TYPE_DOUBLE)
		*(double *)at *= 1.25;
	else if (type == PROTOBUF_C_TYPE_UINT64)
		++*(uint64_t *)at;
	else if (type == PROTOBUF_C_TYPE_STRING)
		*(char **)at = other;
	else if (type == PROTOBUF_C_TYPE_BOOL)
		*(protobuf_c_boolean *)at ^= 1;
	else
		++*(uint32_t *)at;
}

static int try_field(const char *before, ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
	void *at = (char *)m + f->offset;
	bool large = f->type == PROTOBUF_C_TYPE_DOUBLE || f->type == PROTOBUF_C_TYPE_UINT64 ||
		     f->type == PROTOBUF_C_TYPE_STRING;
	char saved[8];
	if (f->label == PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_STRING) {
		size_t *n = (void *)((char *)m + f->quantifier_offset);
		--*n;
		expect_noticed(before, f);
		++*n;
		return 1;
	}
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		return try_all(before, f->label == PROTOBUF_C_LABEL_REPEATED ? **(ProtobufCMessage ***)at
									     : *(ProtobufCMessage **)at);
	memcpy(saved, at, large ? 8 : 4);
	change(at, f->type);
	expect_noticed(before, f);
	memcpy(at, saved, large ? 8 : 4);
	return 1;
}

static int try_all(const char *before, ProtobufCMessage *m)
{
	int n = 0;
	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
		/* shown to people, or taken by tensors_from_message */
		if (m == &full.base &&
		    (!strcmp(f->name, "batch") || !strcmp(f->name, "labels") || !strcmp(f->name, "tensors")))
			continue;
		n += try_field(before, m, f);
	}
	return n;
}

/* A field that is new in the message and forgotten here fails this test. */
START_TEST(no_field_is_left_out)
{
	char before[4096];
	struct job_spec s = spec_full_take();
	strcpy(before, describe(&s));
	job_spec_fini(&s);
	ck_assert_int_ge(try_all(before, &full.base), 70);
	s = spec_full_take();
	ck_assert_str_eq(before, describe(&s)); /* nothing of the tries is left */
	job_spec_fini(&s);
}
END_TEST

START_TEST(sums_tell_specifications_apart)
{
	uint8_t a[16], b[16];
	spec_message_sum("specification", 13, a);
	spec_message_sum("specification", 13, b);
	ck_assert_mem_eq(a, b, 16);
	spec_message_sum("specificatioN", 13, b);
	ck_assert_mem_ne(a, b, 16);
	spec_message_sum("specification", 12, b);
	ck_assert_mem_ne(a, b, 16);
}
END_TEST

Suite *refused_suite(void);
Suite *tensors_suite(void);

int main(void)
{
	Suite *s = suite_create("spec_message");
	TCase *t = tcase_create("spec_message");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, spec_full, NULL);
	tcase_add_test(t, scalars);
	tcase_add_test(t, messages_inside);
	tcase_add_test(t, rules_and_commands);
	tcase_add_test(t, what_is_left_out_has_its_default);
	tcase_add_test(t, no_field_is_left_out);
	tcase_add_test(t, sums_tell_specifications_apart);
	return suite_run(s, refused_suite(), tensors_suite());
}

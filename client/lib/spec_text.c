/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a job's specification as a job file again, to be edited and submitted anew (gacc_spec_of_job). Pure; any
 * thread. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/json.h"
#include "lib/spec.h"
#include "proto/bytes.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Enum values are lower case in a job file; unset ones are left out. */
static const char *const enum_keys[] = { "reduction",	   "grad_of",	 "uneven",    "accumulate_dtype",
					 "gradient_dtype", "master",	 "nonfinite", "ordering",
					 "sharding",	   "accumulate", "device",    "type",
					 "dtype",	   "mode",	 "untouched", "slots_on" };

static bool is_enum(const char *key)
{
	for (size_t i = 0; i < sizeof(enum_keys) / sizeof(*enum_keys); i++)
		if (!strcmp(key, enum_keys[i]))
			return true;
	return false;
}

static json_t *lower(const char *name)
{
	char text[64];
	size_t n = 0;

	for (; name[n] && n < sizeof(text) - 1; n++)
		text[n] = (char)tolower((unsigned char)name[n]);
	text[n] = '\0';
	return json_string(text);
}

static void lower_enums(json_t *o)
{
	const char *key;
	json_t *v;
	void *next;

	json_object_foreach_safe(o, next, key, v)
	{
		const char *name = json_string_value(v);

		if (!name || !is_enum(key))
			continue;
		if (!strcmp(name, "UNSPECIFIED"))
			json_object_del(o, key);
		else
			json_object_set_new(o, key, lower(name));
	}
}

/* Zero stands for the default nearly everywhere; the default of the file is then the same. */
static void drop_unset(json_t *o)
{
	const char *key;
	json_t *v;
	void *next;

	json_object_foreach_safe(o, next, key, v) if (json_is_null(v) || json_is_false(v) ||
						      (json_is_number(v) && json_number_value(v) == 0) ||
						      (json_is_string(v) && !json_string_length(v)) ||
						      (json_is_array(v) && !json_array_size(v)))
		json_object_del(o, key);
}

/* Moves from[key], a number of milliseconds, to to[name] as "250ms". */
static void move_ms(json_t *from, const char *key, json_t *to, const char *name)
{
	json_int_t ms = json_integer_value(json_object_get(from, key));

	if (ms)
		json_object_set_new(to, name, json_sprintf("%lldms", (long long)ms));
	json_object_del(from, key);
}

static void move(json_t *from, const char *key, json_t *to, const char *name)
{
	json_t *v = json_object_get(from, key);

	if (v)
		json_object_set(to, name, v);
	json_object_del(from, key);
}

/* [{key, value}] as {key: value}. */
static void pairs_to_map(json_t *o, const char *key)
{
	json_t *map = json_object(), *pair;
	size_t i;

	json_array_foreach(json_object_get(o, key), i, pair)
		json_object_set(map, json_string_value(json_object_get(pair, "key")), json_object_get(pair, "value"));
	json_object_set_new(o, key, map);
}

static void each_item(json_t *spec, const char *list, void (*change)(json_t *item))
{
	json_t *item;
	size_t i;

	json_array_foreach(json_object_get(spec, list), i, item) change(item);
}

/* A file may only name what its optimizer has. */
static void rewrite_optimizer(json_t *o)
{
	static const char *const of_sgd[] = { "momentum", "dampening", "nesterov" };
	const char *type = json_string_value(json_object_get(o, "type"));
	bool sgd = type && !strcmp(type, "sgd"), client = !type || !strcmp(type, "client");

	if (!sgd && !client)
		json_object_set_new(o, "betas",
				    json_pack("[O, O]", json_object_get(o, "beta1"), json_object_get(o, "beta2")));
	if (sgd || client)
		json_object_del(o, "eps");
	for (size_t i = 0; i < 3 && !sgd; i++)
		json_object_del(o, of_sgd[i]);
	if (client) {
		json_object_del(o, "lr");
		json_object_del(o, "weight_decay");
	}
	json_object_del(o, "beta1");
	json_object_del(o, "beta2");
}

static void rewrite_group(json_t *group)
{
	if (!json_string_length(json_object_get(group, "pattern")))
		json_object_del(group, "pattern");
	if (!json_array_size(json_object_get(group, "tensors")))
		json_object_del(group, "tensors");
	if (!json_is_true(json_object_get(group, "override_weight_decay")))
		json_object_del(group, "weight_decay");
	json_object_del(group, "override_weight_decay");
}

static void rewrite_launch(json_t *spec)
{
	json_t *launch = json_object(), *command = json_object_get(spec, "launch_command");

	move(spec, "launch", launch, "mode");
	if (json_is_object(command)) {
		pairs_to_map(command, "environment");
		move_ms(command, "grace_ms", launch, "grace");
		json_object_update(launch, command);
	}
	json_object_del(spec, "launch_command");
	lower_enums(launch);
	drop_unset(launch);
	json_object_set_new(spec, "launch", launch);
}

static json_t *rewrite(json_t *spec, const struct Gacc__V1__JobSpec *message)
{
	static const char *const sections[] = { "dynamic_loss_scale", "outlier_skip", "checkpoint" };
	json_t *metadata = json_object(), *timeouts = json_object(), *output = json_object();

	pairs_to_map(spec, "labels");
	move(spec, "name", metadata, "name");
	move(spec, "labels", metadata, "labels");
	move_ms(spec, "stall_warn_ms", timeouts, "stall_warn");
	move_ms(spec, "stall_abort_ms", timeouts, "stall_abort");
	move_ms(spec, "abandoned_ms", timeouts, "abandoned");
	move(spec, "log_dir", output, "log_dir");
	lower_enums(spec);
	lower_enums(json_object_get(spec, "optimizer"));
	lower_enums(json_object_get(spec, "schedule"));
	/* JSON's are signed */
	json_object_set_new(spec, "seed", json_sprintf("%llu", (unsigned long long)message->seed));
	each_item(spec, "tensors", lower_enums);
	each_item(spec, "init", lower_enums);
	each_item(spec, "param_groups", rewrite_group);
	rewrite_optimizer(json_object_get(spec, "optimizer"));
	rewrite_launch(spec);
	for (size_t i = 0; i < 3; i++)
		drop_unset(json_object_get(spec, sections[i]));
	drop_unset(spec);
	return json_pack("{s:o, s:{s:o, s:o}}", "metadata", metadata, "spec", "timeouts", timeouts, "output", output);
}

char *spec_text(const struct Gacc__V1__JobSpec *message)
{
	char *json = json_of(&message->base), *text = NULL;
	json_t *spec = json ? json_loads(json, 0, NULL) : NULL, *file = spec ? rewrite(spec, message) : NULL;

	if (file && !json_object_update(json_object_get(file, "spec"), spec))
		text = json_dumps(file, JSON_INDENT(2));
	json_decref(file);
	json_decref(spec);
	free(json);
	return text;
}

gacc_status gacc_spec_of_job(gacc_client *client, const char *job, gacc_spec **out)
{
	Gacc__V1__GetRequest request = GACC__V1__GET_REQUEST__INIT;
	char *text = NULL, why[512] = "out of memory";
	const Gacc__V1__GetResponse *r;
	ProtobufCMessage *reply;
	gacc_status st;

	request.job = unconst(job);
	st = admin_call(client, &gacc__v1__job_service__descriptor, "Get", &request.base, &reply);
	if (st)
		return st;
	r = (Gacc__V1__GetResponse *)reply;
	if (r->job && r->job->spec)
		text = spec_text(r->job->spec);
	bytes_free(reply);
	st = text ? gacc_spec_parse(text, job, out, why, sizeof(why)) : GACC_ENOMEM;
	free(text);
	if (st)
		return admin_fail(client, st == GACC_ENOMEM ? ST_NO_MEMORY : ST_INVALID_SPEC, why);
	return GACC_OK;
}

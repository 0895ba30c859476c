/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the job that a command registers from its job file, --set and its own options, with an error that names
 * file, line and key. gaccctl's main thread. */
#include "job_file.h"

#include "output.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool spec_set(struct invocation *inv, gacc_spec *spec, const char *key, const char *value, int *st)
{
	char why[512] = "";

	if (!gacc_spec_set(spec, key, value, why, sizeof(why)))
		return true;
	*st = fail_with(inv, EXIT_USAGE, "INVALID_SPEC", NULL, "%s", why);
	return false;
}

gacc_spec *spec_read(struct invocation *inv, const char *path, int *out_exit)
{
	char why[512] = "", *text = NULL;
	gacc_spec *spec = NULL;

	if (path) {
		text = read_file(inv, path, out_exit);
		if (!text)
			return NULL;
	}
	if (gacc_spec_parse(text, path ? path : "defaults", &spec, why, sizeof(why)))
		*out_exit = fail_with(inv, EXIT_USAGE, "INVALID_SPEC", NULL, "%s", why);
	free(text);
	return spec;
}

/* --set KEY=VALUE, in order. */
static bool apply_sets(struct invocation *inv, gacc_spec *spec, int *st)
{
	const char *given;

	for (size_t i = 0; (given = opt_each(inv, "set", i)); i++) {
		const char *equals = strchr(given, '=');
		char key[128];

		if (!equals || equals - given >= (ptrdiff_t)sizeof(key)) {
			*st = fail_usage(inv, "--set %s: KEY=VALUE is needed, such as optimizer.lr=0.01", given);
			return false;
		}
		snprintf(key, sizeof(key), "%.*s", (int)(equals - given), given);
		if (!spec_set(inv, spec, key, equals + 1, st))
			return false;
	}
	return true;
}

static bool apply_options(struct invocation *inv, gacc_spec *spec, int *st)
{
	static const struct {
		const char *option, *key;
	} map[] = { { "ranks", "ranks" },
		    { "micro-size", "micro_size" },
		    { "steps", "steps" },
		    { "batch", "batch" },
		    { "name", "metadata.name" } };

	for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
		if (opt(inv, map[i].option) && !spec_set(inv, spec, map[i].key, opt(inv, map[i].option), st))
			return false;
	return true;
}

bool spec_apply(struct invocation *inv, gacc_spec *spec, int *st)
{
	return apply_sets(inv, spec, st) && apply_options(inv, spec, st);
}

/* A string of the specification as it is now; malloc'ed, "" when it is not set. */
static char *current(gacc_spec *spec, const char *key)
{
	const char *json = gacc_spec_json(spec);
	json_t *all = json ? json_loads(json, 0, NULL) : NULL;
	const char *value = json_string_value(json_object_get(all, key));
	char *copy = strdup(value ? value : "");

	json_decref(all);
	return copy;
}

bool spec_has_optimizer(struct invocation *inv, gacc_spec *spec, int *st)
{
	const char *json = gacc_spec_json(spec);
	json_t *all = json ? json_loads(json, 0, NULL) : NULL;
	const char *type = json_string_value(json_object_get(json_object_get(all, "optimizer"), "type"));
	bool ok = !type || strcmp(type, "UNSPECIFIED") != 0;

	json_decref(all);
	if (!ok)
		*st = fail_with(
			inv, EXIT_USAGE, "INVALID_SPEC",
			"spec.optimizer.type in the job file, or --set optimizer.type=sgd --set optimizer.lr=0.1",
			"no optimizer: client, sgd, adam, adamw or lamb is needed");
	return ok;
}

/* If nobody gave another. */
static bool default_name(struct invocation *inv, gacc_spec *spec, const char *otherwise, int *st)
{
	char *name = current(spec, "name");
	bool ok = (name && *name) || spec_set(inv, spec, "metadata.name", otherwise, st);

	free(name);
	return ok;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* mlp of jobs/mlp.yaml. */
static bool name_of_file(struct invocation *inv, gacc_spec *spec, const char *path, int *st)
{
	char name[NAME_MAX + 1], *dot;

	snprintf(name, sizeof(name), "%s", path && strcmp(path, "-") ? last_part(path) : "job");
	dot = strrchr(name, '.');
	if (dot && dot != name)
		*dot = '\0';
	return default_name(inv, spec, name, st);
}

/* With the uuid: ids are of one gaccd, and another one, or that of another node with the same home, counts from 1, too.
 */
static void default_log_dir(char *out, size_t n)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

	if (state && *state == '/')
		snprintf(out, n, "%s/gacc/jobs/%%j-%%u", state);
	else if (home && *home == '/')
		snprintf(out, n, "%s/.local/state/gacc/jobs/%%j-%%u", home);
	else
		snprintf(out, n, "/tmp/gacc-%u/jobs/%%j-%%u", (unsigned)getuid());
}

/* Where the logs go, as an absolute path: the job may be looked at from another directory. Without one: our own, or
 * with `theirs` the daemon's. */
static bool log_dir(struct invocation *inv, gacc_spec *spec, bool theirs, int *st)
{
	char *given = opt(inv, "log-dir") ? strdup(opt(inv, "log-dir")) : current(spec, "log_dir");
	char path[2 * PATH_MAX], here[PATH_MAX] = "";
	bool ok;

	if (!given || !*given) {
		if (theirs) {
			free(given);
			return true;
		}
		default_log_dir(path, sizeof(path));
	} else if (*given == '/')
		snprintf(path, sizeof(path), "%s", given);
	else
		snprintf(path, sizeof(path), "%s/%s", getcwd(here, sizeof(here)) ? here : "", given);
	ok = spec_set(inv, spec, "output.log_dir", path, st);
	free(given);
	return ok;
}

static bool is_word(json_t *o, const char *key, const char *word)
{
	const char *v = json_string_value(json_object_get(o, key));

	return v && !strcmp(v, word);
}

/* Keys that say nothing without another one, which was probably forgotten. */
static void warn_of_unused(struct invocation *inv, json_t *spec)
{
	json_t *command = json_object_get(json_object_get(spec, "launch_command"), "command");

	if (json_array_size(command) && is_word(spec, "launch", "EXTERNAL"))
		tell(inv->err,
		     "warning: launch.command is not used: launch.mode is external, so others start the ranks; "
		     "gaccd does with launch.mode=daemon\n");
	if (json_number_value(json_object_get(spec, "fixed_divisor")) != 0 &&
	    !is_word(spec, "reduction", "FIXED_DIVISOR"))
		tell(inv->err, "warning: fixed_divisor is not used: reduction is not fixed_divisor\n");
}

/* It may be meant, so it is no error. */
static void warn_of_what_is_odd(struct invocation *inv, gacc_spec *spec)
{
	const char *json = gacc_spec_json(spec);
	json_t *all = json ? json_loads(json, 0, NULL) : NULL, *optimizer = json_object_get(all, "optimizer");
	const char *type = json_string_value(json_object_get(optimizer, "type"));
	json_t *lr = json_object_get(optimizer, "lr");

	if (type && strcmp(type, "CLIENT") != 0 && (!lr || json_number_value(lr) == 0))
		tell(inv->err, "warning: optimizer.lr is 0: no step changes the parameters\n");
	warn_of_unused(inv, all);
	json_decref(all);
}

gacc_spec *run_spec(struct invocation *inv, int *out_exit)
{
	gacc_spec *spec = spec_read(inv, opt(inv, "file"), out_exit);

	if (!spec)
		return NULL;
	if (spec_apply(inv, spec, out_exit) && spec_has_optimizer(inv, spec, out_exit) &&
	    default_name(inv, spec, last_part(inv->operand[0]), out_exit) && log_dir(inv, spec, false, out_exit) &&
	    spec_set(inv, spec, "launch.mode", "client", out_exit)) {
		warn_of_what_is_odd(inv, spec);
		return spec;
	}
	gacc_spec_free(spec);
	return NULL;
}

/* gaccd starts the program where the user stands, as other launchers do. */
static bool working_dir(struct invocation *inv, gacc_spec *spec, int *st)
{
	const char *json = gacc_spec_json(spec);
	json_t *all = json ? json_loads(json, 0, NULL) : NULL;
	const char *mode = json_string_value(json_object_get(all, "launch"));
	const char *dir = json_string_value(json_object_get(json_object_get(all, "launch_command"), "working_dir"));
	bool wanted = mode && !strcmp(mode, "DAEMON") && !(dir && *dir);
	char here[PATH_MAX];

	json_decref(all);
	return !wanted || !getcwd(here, sizeof(here)) || spec_set(inv, spec, "launch.working_dir", here, st);
}

gacc_spec *submit_spec(struct invocation *inv, int *out_exit)
{
	const char *path = opt(inv, "file");
	gacc_spec *spec = spec_read(inv, path, out_exit);

	if (!spec)
		return NULL;
	if (spec_apply(inv, spec, out_exit) && spec_has_optimizer(inv, spec, out_exit) &&
	    name_of_file(inv, spec, path, out_exit) && log_dir(inv, spec, true, out_exit) &&
	    working_dir(inv, spec, out_exit)) {
		warn_of_what_is_odd(inv, spec);
		return spec;
	}
	gacc_spec_free(spec);
	return NULL;
}

/* The ranks of "a:4,b:4" together; 0: it does not say. */
static uint64_t ranks_of_nodes(const char *nodes)
{
	uint64_t sum = 0;

	for (const char *at = nodes; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		const char *colon = at + strcspn(at, ":,");

		if (*colon != ':')
			return 0;
		sum += strtoul(colon + 1, NULL, 10);
	}
	return sum;
}

/* How many each node has says how many there are. */
static bool apply_nodes(struct invocation *inv, gacc_spec *spec, int *st)
{
	const uint64_t ranks = ranks_of_nodes(opt(inv, "nodes"));
	char number[24];

	snprintf(number, sizeof(number), "%llu", (unsigned long long)ranks);
	return spec_set(inv, spec, "nodes", opt(inv, "nodes"), st) &&
	       (!ranks || opt(inv, "ranks") || spec_set(inv, spec, "ranks", number, st));
}

/* The program and its arguments, as YAML reads them. */
static bool apply_command(struct invocation *inv, gacc_spec *spec, int *st)
{
	json_t *list = json_array();
	bool ok = true;

	for (int i = 0; i < inv->n_operands; i++)
		ok &= !json_array_append_new(list, json_string(inv->operand[i]));
	char *text = ok ? json_dumps(list, 0) : NULL;

	json_decref(list);
	ok = text && spec_set(inv, spec, "launch.command", text, st);
	if (!text)
		*st = fail_with(inv, EXIT_USAGE, "INVALID_SPEC", NULL, "the command is no UTF-8 text");
	free(text);
	return ok;
}

static bool apply_launch(struct invocation *inv, gacc_spec *spec, int *st)
{
	static const struct {
		const char *option, *key;
	} map[] = { { "max-restarts", "launch.max_restarts" }, { "grace", "launch.grace" } };

	for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
		if (opt(inv, map[i].option) && !spec_set(inv, spec, map[i].key, opt(inv, map[i].option), st))
			return false;
	if (opt_flag(inv, "no-torch-env") && !spec_set(inv, spec, "launch.no_torch_env", "true", st))
		return false;
	return spec_set(inv, spec, "launch.mode", "daemon", st) && apply_command(inv, spec, st) &&
	       working_dir(inv, spec, st);
}

gacc_spec *nodes_spec(struct invocation *inv, int *out_exit)
{
	gacc_spec *spec = spec_read(inv, opt(inv, "file"), out_exit);

	if (!spec)
		return NULL;
	if (spec_apply(inv, spec, out_exit) && apply_nodes(inv, spec, out_exit) &&
	    spec_has_optimizer(inv, spec, out_exit) && default_name(inv, spec, last_part(inv->operand[0]), out_exit) &&
	    log_dir(inv, spec, true, out_exit) && apply_launch(inv, spec, out_exit)) {
		warn_of_what_is_odd(inv, spec);
		return spec;
	}
	gacc_spec_free(spec);
	return NULL;
}

/* cancel, flush, health, config, version, completion, help. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "output.h"
#include "run_spec.h"

int cmd_cancel(struct invocation *inv)
{
	const char *reason = opt(inv, "reason");
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	for (int i = 0; i < inv->n_operands; i++) {
		gacc_jobs *jobs;

		if (gacc_job_cancel(inv->client, job_operand(inv->operand[i]), reason ? reason : "gaccctl cancel", &jobs))
			return fail_client(inv);
		if (wants_json(inv))
			st = print_json(inv, jobs->job[0].json);
		else
			fprintf(inv->out, "job %" PRIu64 " (%s) is %s; see: gaccctl describe job/%" PRIu64 "\n",
				jobs->job[0].id, jobs->job[0].name, jobs->job[0].state_name, jobs->job[0].id);
		gacc_jobs_free(jobs);
	}
	return st;
}

int cmd_flush(struct invocation *inv)
{
	const char *job = job_operand(inv->operand[0]);
	uint64_t window;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_job_flush(inv->client, job, &window))
		return fail_client(inv);
	if (wants_json(inv))
		fprintf(inv->out, "{\"window\":%" PRIu64 "}\n", window);
	else
		fprintf(inv->out, "window %" PRIu64 " of job %s closes; see: gaccctl status %s\n", window, job, job);
	return EXIT_OK;
}

int cmd_health(struct invocation *inv)
{
	gacc_node_info *node;
	char used[SHORT];
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	if (wants_json(inv))
		print_json(inv, node->json);
	else
		fprintf(inv->out, "%s: gaccd %s on %s, %.1f ms, %u jobs, %s shared memory\n",
			node->draining ? "stopping" : "ok", node->version, node->name, (double)node->round_trip_ns / 1e6,
			node->jobs, bytes(used, node->host_bytes_used));
	st = node->draining ? EXIT_UNHEALTHY : EXIT_OK;
	gacc_node_free(node);
	return st;
}

static int say_valid(struct invocation *inv, const char *path, gacc_spec *spec)
{
	const char *json = gacc_spec_json(spec);

	if (!json)
		return fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	if (wants_json(inv))
		return print_json(inv, json);
	fprintf(inv->out, "%s: ok\n", path);
	return EXIT_OK;
}

int cmd_config(struct invocation *inv)
{
	const char *path = inv->operand[1];
	char why[512] = "", *text;
	gacc_spec *spec;
	int st = EXIT_OK;

	if (strcmp(inv->operand[0], "validate"))
		return fail_usage(inv, "usage: gaccctl config validate FILE");
	text = read_file(inv, path, &st);
	if (!text)
		return st;
	if (gacc_spec_parse(text, path, &spec, why, sizeof(why))) {
		free(text);
		return fail_with(inv, EXIT_USAGE, "INVALID_SPEC", NULL, "%s", why);
	}
	free(text);
	if (spec_has_optimizer(inv, spec, &st))
		st = say_valid(inv, path, spec);
	gacc_spec_free(spec);
	return st;
}

/* Without a daemon this still has something to say. */
int cmd_version(struct invocation *inv)
{
	gacc_node_info *node = NULL;
	int st;

	if (!open_client(inv, &st))
		return st;
	gacc_node_get(inv->client, &node);
	if (wants_json(inv))
		fprintf(inv->out, "{\"gaccctl\":\"%s\",\"gaccd\":%s%s%s}\n", gacc_version(), node ? "\"" : "",
			node ? node->version : "null", node ? "\"" : "");
	else
		fprintf(inv->out, "gaccctl %s\ngaccd   %s\n", gacc_version(),
			node ? node->version : gacc_failure(inv->client).message);
	gacc_node_free(node);
	return EXIT_OK;
}

int cmd_completion(struct invocation *inv)
{
	if (!print_completion(inv->out, inv->operand[0]))
		return fail_usage(inv, "%s: bash, zsh or fish is needed", inv->operand[0]);
	return EXIT_OK;
}

int cmd_help(struct invocation *inv)
{
	const struct command *c;

	if (!inv->n_operands) {
		print_help(inv->out);
		return EXIT_OK;
	}
	c = command_find(inv->operand[0]);
	if (!c)
		return fail_usage(inv, "unknown command \"%s\"", inv->operand[0]);
	print_command_help(inv->out, c);
	return EXIT_OK;
}

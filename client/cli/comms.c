/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl comms: which communicator the engine of each part of a job has joined, and whom it could not reach. From the
 * job's JSON, as libgacc gives it. gaccctl's main thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

static uint64_t number(const json_t *part, const char *key)
{
	const json_t *v = json_object_get(part, key);

	/* 64 bits are strings where JSON's numbers are too short for them */
	return json_is_string(v) ? strtoull(json_string_value(v), NULL, 10) : (uint64_t)json_integer_value(v);
}

/* "": gaccd is older than this. */
static const char *node_of(const json_t *part)
{
	const char *name = json_string_value(json_object_get(part, "node"));

	return name ? name : "";
}

/* "part 1 (b)", "parts 0 (a), 2 (c)"; "-" for none. Parts are in the order of their numbers. */
static const char *name_parts(const json_t *list, const json_t *parts, char *text, size_t n)
{
	const size_t n_parts = json_array_size(list);
	size_t at = (size_t)snprintf(text, n, "%s", !n_parts ? "-" : n_parts == 1 ? "part" : "parts");

	for (size_t i = 0; i < n_parts && at < n; i++) {
		const json_int_t part = json_integer_value(json_array_get(list, i));
		const char *node = node_of(json_array_get(parts, (size_t)part));

		at += (size_t)snprintf(text + at, n - at, "%s %" JSON_INTEGER_FORMAT, i ? "," : "", part);
		if (*node && at < n)
			at += (size_t)snprintf(text + at, n - at, " (%s)", node);
	}
	return text;
}

static void add_row(struct sheet *s, const json_t *part, const json_t *parts)
{
	const uint64_t first = number(part, "first_rank"), ranks = number(part, "n_ranks");
	const json_t *unreachable = json_object_get(part, "unreachable");
	char text[1280]; /* all parts, and their nodes */

	sheet_row(s, json_array_size(unreachable) ? "red" : number(part, "communicator") ? NULL : "yellow");
	sheet_cell(s, "%" PRIu64, number(part, "number"));
	sheet_cell(s, "%s", *node_of(part) ? node_of(part) : "-");
	sheet_cell(s, "%" PRIu64 "-%" PRIu64, first, first + ranks - 1);
	if (number(part, "engine_pid"))
		sheet_cell(s, "%" PRIu64, number(part, "engine_pid"));
	else
		sheet_cell(s, "-");
	if (number(part, "communicator"))
		sheet_cell(s, "%" PRIu64, number(part, "communicator"));
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%s", name_parts(unreachable, parts, text, sizeof(text)));
}

static void view_comms(struct invocation *inv, const gacc_job_info *j, const json_t *parts)
{
	static const struct column columns[] = {
		{ "PART", true, false },   { "NODE", false, false },  { "RANKS", true, false },
		{ "ENGINE", true, false }, { "JOINED", true, false }, { "CANNOT REACH", false, false },
		{ NULL, false, false },
	};
	struct sheet *s;

	if (!json_array_size(parts)) {
		tell(inv->err, "job %" PRIu64 " has one part, whose engine needs no other%s\n", j->id,
		     j->ended ? ", or is over" : "");
		return;
	}
	s = sheet_new(inv, columns);
	for (size_t i = 0; i < json_array_size(parts); i++)
		add_row(s, json_array_get(parts, i), parts);
	sheet_print(s);
	if (inv->headers && *j->reason)
		tell(inv->out, "%s: %s\n", j->state_name, j->reason);
}

/* The parts that others name, each once. */
static void name_suspects(struct invocation *inv, const gacc_job_info *j, const json_t *parts)
{
	uint64_t named = 0;

	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *list = json_object_get(json_array_get(parts, i), "unreachable");

		for (size_t k = 0; k < json_array_size(list); k++)
			named |= UINT64_C(1) << (json_integer_value(json_array_get(list, k)) & 63);
	}
	for (; named; named &= named - 1)
		tell(inv->out, "job/%" PRIu64 "/part/%d\n", j->id, __builtin_ctzll(named));
}

static int show_comms(struct invocation *inv, const gacc_job_info *j)
{
	json_t *job = json_loads(j->json, 0, NULL);
	const json_t *parts = json_object_get(job, "parts");
	int st = EXIT_OK;

	if (wants_data(inv)) {
		char *text = parts ? json_dumps(parts, JSON_COMPACT) : NULL;

		st = print_jsonf(inv, "{\"id\":%" PRIu64 ",\"parts\":%s}", j->id, text ? text : "[]");
		free(text);
	} else if (inv->format == FORMAT_NAME)
		name_suspects(inv, j, parts);
	else
		view_comms(inv, j, parts);
	json_decref(job);
	return st;
}

int cmd_comms(struct invocation *inv)
{
	gacc_jobs *jobs;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_job_get(inv->client, job_operand(inv->operand[0]), &jobs))
		return fail_client(inv);
	st = show_comms(inv, &jobs->job[0]);
	gacc_jobs_free(jobs);
	return st;
}

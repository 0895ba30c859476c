/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl nodes, buffers, version: the nodes of the cluster, what jobs have there, and versions. gaccctl's main
 * thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <string.h>

/* Without a daemon this still has something to say. */
int cmd_version(struct invocation *inv)
{
	gacc_node_info *node = NULL;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	gacc_node_get(inv->client, &node);
	if (wants_data(inv))
		st = print_jsonf(inv, "{\"gaccctl\":\"%s\",\"gaccd\":%s%s%s}", gacc_version(), node ? "\"" : "",
				 node ? node->version : "null", node ? "\"" : "");
	else
		tell(inv->out, "gaccctl %s\ngaccd   %s\n", gacc_version(),
		     node ? node->version : gacc_failure(inv->client).message);
	gacc_node_free(node);
	return st;
}

/* ---- the cluster ---- */

static const char *node_color(const gacc_cluster_node *n)
{
	return !strcmp(n->state, "UP") ? NULL : !strcmp(n->state, "DOWN") ? "red" : "yellow";
}

static void node_row(struct sheet *s, const gacc_cluster_node *n)
{
	const char *role = n->coordinates ? "coordinator" : "node";
	char when[SHORT], heard[SHORT], used[SHORT], limit[SHORT];

	sheet_row(s, node_color(n));
	sheet_cell(s, "%s", n->name);
	sheet_cell(s, "%s%s", n->state, n->drained ? ",drained" : "");
	sheet_cell(s, "%s", age_since(when, n->state_since_unix_nanos));
	sheet_cell(s, "%s", n->heard_unix_nanos ? age(heard, n->silent_ns / 1000000000) : "-");
	sheet_cell(s, "%s", role);
	sheet_cell(s, "%u", n->parts);
	if (*n->version) {
		sheet_cell(s, "%u", n->cpus);
		sheet_cell(s, "%s", bytes(used, n->host_bytes_used));
		sheet_cell(s, "%s", bytes(limit, n->host_bytes_limit));
	} else {
		for (int i = 0; i < 3; i++)
			sheet_cell(s, "-");
	}
	sheet_cell(s, "%s", *n->data_address ? n->data_address : "-");
	sheet_cell(s, "%s", *n->reason ? n->reason : "-");
	sheet_cell(s, "%s", *n->version ? n->version : "-");
	if (*n->kernels)
		sheet_cell(s, "%s/%u", n->kernels, n->kernels_revision);
	else
		sheet_cell(s, "-");
	sheet_cell(s, "%s", *n->collectives ? n->collectives : "-");
	sheet_cell(s, "%" PRIu64, n->incarnation);
}

static void view_nodes(struct invocation *inv, const gacc_nodes *nodes)
{
	static const struct column columns[] = {
		{ "NAME", false, false },   { "STATE", false, false },	{ "FOR", true, false },
		{ "SILENT", true, false },  { "ROLE", false, false },	{ "PARTS", true, false },
		{ "CPUS", true, false },    { "MEMORY", true, false },	{ "LIMIT", true, false },
		{ "DATA", false, false },   { "REASON", false, false }, { "VERSION", false, true },
		{ "KERNELS", false, true }, { "COLL", false, true },	{ "STARTS", true, true },
		{ NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < nodes->n; i++)
		node_row(s, &nodes->node[i]);
	sheet_print(s);
}

/* "nodes", "nodes drain NAME", "nodes undrain NAME" */
static gacc_status ask_nodes(struct invocation *inv, gacc_nodes **out)
{
	if (!inv->n_operands)
		return gacc_node_list(inv->client, out);
	return gacc_node_drain(inv->client, inv->operand[1], !strcmp(inv->operand[0], "drain"), out);
}

int cmd_nodes(struct invocation *inv)
{
	const char *verb = inv->n_operands ? inv->operand[0] : NULL;
	gacc_nodes *nodes;
	int st = EXIT_OK;

	if (verb && (inv->n_operands != 2 || (strcmp(verb, "drain") && strcmp(verb, "undrain"))))
		return fail_usage(inv, "nodes %s: nothing, drain NAME or undrain NAME is needed", verb);
	if (!open_client(inv, &st))
		return st;
	if (ask_nodes(inv, &nodes))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json_list(inv, "nodes", nodes->node, nodes->n);
	else if (inv->format == FORMAT_NAME)
		for (size_t i = 0; i < nodes->n; i++)
			tell(inv->out, "node/%s\n", nodes->node[i].name);
	else
		view_nodes(inv, nodes);
	gacc_nodes_free(nodes);
	return st;
}

/* ---- memory ---- */

static void buffer_row(struct sheet *s, const gacc_buffer_info *b)
{
	char size[SHORT];

	sheet_row(s, NULL);
	if (b->job)
		sheet_cell(s, "%" PRIu64, b->job);
	else
		sheet_cell(s, "-");
	if (*b->node) {
		sheet_cell(s, "%s", b->node);
		sheet_cell(s, "%u", b->part);
	} else {
		sheet_cell(s, "-");
		sheet_cell(s, "-");
	}
	sheet_cell(s, "%s", b->kind);
	sheet_cell(s, "%u", b->segments);
	sheet_cell(s, "%" PRIu64, b->tensors);
	sheet_cell(s, "%s", bytes(size, b->bytes));
	sheet_cell(s, "%u", b->clients);
}

static void say_memory(struct invocation *inv, const char *label, const gacc_node_memory *n)
{
	char used[SHORT], limit[SHORT];

	tell(inv->out, "%s: %s", label, bytes(used, n->host_bytes_used));
	if (n->host_bytes_limit)
		tell(inv->out, " of %s", bytes(limit, n->host_bytes_limit));
	tell(inv->out, "   yours: %s", bytes(used, n->user_bytes_used));
	if (n->user_bytes_limit)
		tell(inv->out, " of %s", bytes(limit, n->user_bytes_limit));
	fputc('\n', inv->out);
}

/* What each node has; an older gaccd speaks of its own alone, and does not name it. */
static void say_nodes(struct invocation *inv, const gacc_buffers *b)
{
	char label[128];

	for (size_t i = 0; i < b->n_node; i++) {
		snprintf(label, sizeof(label), "node %s", b->node[i].name);
		if (b->node[i].heard)
			say_memory(inv, label, &b->node[i]);
		else
			tell(inv->out, "%s: not heard yet\n", label);
	}
	if (!b->n_node)
		say_memory(inv, "node",
			   &(gacc_node_memory){ .host_bytes_used = b->host_bytes_used,
						.host_bytes_limit = b->host_bytes_limit,
						.user_bytes_used = b->user_bytes_used,
						.user_bytes_limit = b->user_bytes_limit });
}

static void view_buffers(struct invocation *inv, const gacc_buffers *b)
{
	static const struct column columns[] = {
		{ "JOB", true, false },	  { "NODE", false, false },    { "PART", true, false },
		{ "KIND", false, false }, { "SEGMENTS", true, false }, { "TENSORS", true, false },
		{ "BYTES", true, false }, { "CLIENTS", true, false },  { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < b->n; i++)
		buffer_row(s, &b->buffer[i]);
	sheet_print(s);
	if (inv->headers)
		say_nodes(inv, b);
}

/* Has an earlier row of the job this kind? Rows of a job follow each other. */
static bool is_named(const gacc_buffer_info *b, size_t i)
{
	for (size_t k = i; k-- && b[k].job == b[i].job;)
		if (!strcmp(b[k].kind, b[i].kind))
			return true;
	return false;
}

static void name_buffers(struct invocation *inv, const gacc_buffers *b)
{
	for (size_t i = 0; i < b->n; i++)
		if (!is_named(b->buffer, i))
			tell(inv->out, "job/%" PRIu64 "/%s\n", b->buffer[i].job, b->buffer[i].kind);
}

int cmd_buffers(struct invocation *inv)
{
	const char *job = inv->n_operands ? job_operand(inv->operand[0]) : NULL;
	gacc_buffers *b;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_node_buffers(inv->client, job, &b))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json(inv, b->json);
	else if (inv->format == FORMAT_NAME)
		name_buffers(inv, b);
	else
		view_buffers(inv, b);
	gacc_buffers_free(b);
	return st;
}

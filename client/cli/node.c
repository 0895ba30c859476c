/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl nodes, buffers, version: nodes, memory and versions of the gaccd that gaccctl is connected to.
 * gaccctl's main thread. */
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

static void view_buffers(struct invocation *inv, const gacc_buffers *b)
{
	static const struct column columns[] = {
		{ "JOB", true, false },	    { "KIND", false, false }, { "SEGMENTS", true, false },
		{ "TENSORS", true, false }, { "BYTES", true, false }, { "CLIENTS", true, false },
		{ NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);
	char used[SHORT], limit[SHORT];

	for (size_t i = 0; i < b->n; i++) {
		const gacc_buffer_info *item = &b->buffer[i];

		sheet_row(s, NULL);
		if (item->job)
			sheet_cell(s, "%" PRIu64, item->job);
		else
			sheet_cell(s, "-");
		sheet_cell(s, "%s", item->kind);
		sheet_cell(s, "%u", item->segments);
		sheet_cell(s, "%" PRIu64, item->tensors);
		sheet_cell(s, "%s", bytes(used, item->bytes));
		sheet_cell(s, "%u", item->clients);
	}
	sheet_print(s);
	if (!inv->headers)
		return;
	tell(inv->out, "node: %s", bytes(used, b->host_bytes_used));
	if (b->host_bytes_limit)
		tell(inv->out, " of %s", bytes(limit, b->host_bytes_limit));
	tell(inv->out, "   yours: %s", bytes(used, b->user_bytes_used));
	if (b->user_bytes_limit)
		tell(inv->out, " of %s", bytes(limit, b->user_bytes_limit));
	fputc('\n', inv->out);
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
		for (size_t i = 0; i < b->n; i++)
			tell(inv->out, "job/%" PRIu64 "/%s\n", b->buffer[i].job, b->buffer[i].kind);
	else
		view_buffers(inv, b);
	gacc_buffers_free(b);
	return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl health, buffers, version: state, memory and versions of the gaccd that gaccctl is connected to. gaccctl's
 * main thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <string.h>

int cmd_health(struct invocation *inv)
{
	gacc_node_info *node;
	char used[SHORT];
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	if (wants_data(inv))
		print_json(inv, node->json);
	else
		tell(inv->out, "%s: gaccd %s on %s, %.1f ms, %u jobs, %s shared memory\n",
		     node->draining    ? "stopping"
		     : node->disk_full ? "disk full"
				       : "ok",
		     node->version, node->name, (double)node->round_trip_ns / 1e6, node->jobs,
		     bytes(used, node->host_bytes_used));
	if (node->disk_full)
		tell(inv->err,
		     "the disk of gaccd's state_dir is full (%s are free): new jobs and checkpoints there are "
		     "refused\n",
		     bytes(used, node->disk_free));
	st = node->draining || node->disk_full ? EXIT_UNHEALTHY : EXIT_OK;
	gacc_node_free(node);
	return st;
}

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

/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl health: whether the gaccd that gaccctl is connected to is well, and with --gpus whether this machine's GPUs
 * can be used. gaccctl's main thread. */
#include "command.h"
#include "gpus.h"
#include "output.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Is gaccd on this machine? By the endpoint's text, as libgacc reads it. */
static bool is_local(const struct invocation *inv)
{
	const char *endpoint = opt(inv, "endpoint");

	if (!endpoint || !*endpoint)
		endpoint = getenv("GACC_ENDPOINT");
	if (!endpoint || !*endpoint || !strncmp(endpoint, "unix:", 5))
		return true;
	return strchr(endpoint, '/') && strncmp(endpoint, "dns:", 4) != 0 && strncmp(endpoint, "ipv", 3) != 0;
}

static void look(const gacc_node_info *node, bool devices, struct gpu_report *out)
{
	const char *mps = getenv("CUDA_MPS_PIPE_DIRECTORY");
	struct gpu_places places = { "/dev", "/sys/bus/pci/devices", mps && *mps ? mps : "/tmp/nvidia-mps" };

	gpus_look(node, &places, devices, out);
}

static bool has_fault(const struct gpu_report *r)
{
	bool found = false;

	for (size_t i = 0; i < r->n; i++)
		found |= r->check[i].state == GPU_FAULT;
	return found;
}

/* Without --gpus the faults alone: most machines have nothing to say. */
static void view_gpus(struct invocation *inv, const struct gpu_report *r, bool all)
{
	static const struct column columns[] = {
		{ "CHECK", false, false }, { "STATE", false, false }, { "OF", false, false },
		{ "FOUND", false, false }, { "FIX", false, false },   { NULL, false, false },
	};
	struct sheet *s;

	if (all && !r->n)
		tell(inv->out, "no GPU here: %s\n", r->none);
	if (!r->n || !(all || has_fault(r)))
		return;
	s = sheet_new(inv, columns);
	for (size_t i = 0; i < r->n; i++) {
		const struct gpu_check *c = &r->check[i];

		if (!all && c->state != GPU_FAULT)
			continue;
		sheet_row(s, c->state == GPU_FAULT ? "red" : c->state == GPU_NOTE ? "yellow" : NULL);
		sheet_cell(s, "%s", c->name);
		sheet_cell(s, "%s", gpu_state_name(c->state));
		sheet_cell(s, "%s", *c->on ? c->on : "-");
		sheet_cell(s, "%s", c->value);
		sheet_cell(s, "%s", *c->fix ? c->fix : "-");
	}
	sheet_print(s);
}

/* gaccd's answer, and beside its members what was found here; `r` NULL: nothing was looked for. */
static int print_data(struct invocation *inv, const gacc_node_info *node, const struct gpu_report *r)
{
	json_t *all, *list;
	char *text;
	int st;

	if (!r)
		return print_json(inv, node->json);
	all = json_loads(node->json, 0, NULL);
	list = json_array();
	for (size_t i = 0; i < r->n; i++) {
		const struct gpu_check *c = &r->check[i];

		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "check", c->name, "state",
						      gpu_state_name(c->state), "of", c->on, "found", c->value, "fix",
						      c->fix));
	}
	json_object_set_new(all, "gpu_checks", list);
	text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	st = print_json(inv, text ? text : "");
	free(text);
	return st;
}

static void view_node_line(struct invocation *inv, const gacc_node_info *node)
{
	char used[SHORT];

	tell(inv->out, "%s: gaccd %s on %s, %.1f ms, %u jobs, %s shared memory\n",
	     node->draining    ? "stopping"
	     : node->disk_full ? "disk full"
			       : "ok",
	     node->version, node->name, (double)node->round_trip_ns / 1e6, node->jobs,
	     bytes(used, node->host_bytes_used));
}

int cmd_health(struct invocation *inv)
{
	bool gpus = opt_flag(inv, "gpus");
	struct gpu_report report = { .n = 0 };
	gacc_node_info *node;
	char free_bytes[SHORT];
	int st = EXIT_OK;

	if (gpus && !is_local(inv))
		return fail_usage(inv,
				  "--gpus looks at the GPUs of this machine, and gaccd is on another: run it there");
	if (!open_client(inv, &st))
		return st;
	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	if (is_local(inv))
		look(node, gpus, &report);
	if (wants_data(inv)) {
		st = print_data(inv, node, is_local(inv) ? &report : NULL);
	} else {
		view_node_line(inv, node);
		view_gpus(inv, &report, gpus);
	}
	if (node->disk_full)
		tell(inv->err,
		     "the disk of gaccd's state_dir is full (%s are free): new jobs and checkpoints there are "
		     "refused\n",
		     bytes(free_bytes, node->disk_free));
	if (*node->certificate_fault)
		tell(inv->err, "other gaccds refuse this one: %s\n", node->certificate_fault);
	if (*node->certificate_note)
		tell(inv->err, "warning: %s\n", node->certificate_note);
	if (node->draining || node->disk_full || *node->certificate_fault || (gpus && has_fault(&report)))
		st = EXIT_UNHEALTHY;
	gacc_node_free(node);
	return st;
}

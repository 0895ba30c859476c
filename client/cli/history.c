/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl history, norms: prints the outcome of each window of a job, and the gradient norms of its tensors.
 * gaccctl's main thread. */
#include "command.h"
#include "output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NORMS_TIMEOUT_MS 600000 /* until the next window closes */

/* ---- windows ---- */

/* "0,3 (a), 5 (b)"; "0,3,5" where the nodes are not known; or "-". */
static const char *short_ranks(char *out, size_t n, const gacc_window_info *w)
{
	size_t at = 0;

	snprintf(out, n, "-");
	for (size_t i = 0; i < w->n_short && at < n; i++) {
		const char *node = w->short_node[i], *next = i + 1 < w->n_short ? w->short_node[i + 1] : "";
		const bool last = *node && strcmp(node, next) != 0; /* of those on this node */

		at += (size_t)snprintf(out + at, n - at, "%u%s%s%s%s", w->short_rank[i], last ? " (" : "",
				       last ? node : "", last ? ")" : "",
				       i + 1 == w->n_short ? ""
				       : last		   ? ", "
							   : ",");
	}
	return out;
}

#define SCALARS_SHOWN 4 /* that do not make a line too long; with -o wide SCALARS_WIDE */
#define SCALARS_WIDE 24

static const gacc_scalar *find_scalar(const gacc_window_info *w, const char *name)
{
	for (size_t i = 0; i < w->n_scalar; i++)
		if (!strcmp(w->scalar[i].name, name))
			return &w->scalar[i];
	return NULL;
}

static void scalar_cells(struct sheet *s, const gacc_window_info *w, const struct column *column)
{
	for (; column->name; column++) {
		const gacc_scalar *v = find_scalar(w, column->name);

		if (v)
			sheet_cell(s, "%.4g", v->value);
		else
			sheet_cell(s, "-");
	}
}

/* A column for each name that these windows have, behind `at` columns. */
static void add_scalar_columns(struct column *column, size_t at, const gacc_history *h)
{
	const struct column *first = &column[at];

	for (size_t i = 0; i < h->n; i++)
		for (size_t k = 0; k < h->window[i].n_scalar; k++) {
			const char *name = h->window[i].scalar[k].name;
			const struct column *c = first;

			while (c->name && strcmp(c->name, name) != 0)
				c++;
			if (!c->name && c < first + SCALARS_WIDE)
				column[c - column] = (struct column){ name, true, c >= first + SCALARS_SHOWN };
		}
}

static void window_row(struct sheet *s, const gacc_window_info *w, const struct column *scalars)
{
	bool applied = !strcmp(w->outcome, "APPLIED"), skipped = !strcmp(w->outcome, "SKIPPED");
	char text[256], when[SHORT];

	sheet_row(s, applied ? NULL : "yellow");
	sheet_cell(s, "%" PRIu64, w->window);
	sheet_cell(s, "%" PRIu64, w->applied_step);
	sheet_cell(s, skipped ? "%s (%s)" : "%s", w->outcome, w->skip_reason);
	sheet_cell(s, "%" PRIu64, w->micro_count);
	sheet_cell(s, "%g", w->total_weight);
	sheet_cell(s, "%.4f", w->mean_loss);
	sheet_cell(s, "%.4g", w->grad_norm);
	sheet_cell(s, "%.3g", w->lr);
	sheet_cell(s, "%u", w->last_rank);
	sheet_cell(s, "%s", *w->last_node ? w->last_node : "-");
	sheet_cell(s, "%.1f ms", (double)w->last_lag_ns / 1e6);
	sheet_cell(s, "%s", short_ranks(text, sizeof(text), w));
	sheet_cell(s, "%s", age_since(when, w->closed_unix_nanos));
	sheet_cell(s, "%g", w->divisor);
	sheet_cell(s, "%g", w->loss_scale);
	scalar_cells(s, w, scalars);
}

static void view_windows(struct invocation *inv, const gacc_history *h)
{
	static const struct column common[] = {
		{ "WINDOW", true, false }, { "STEP", true, false },    { "OUTCOME", false, false },
		{ "MICROS", true, false }, { "WEIGHT", true, false },  { "LOSS", true, false },
		{ "NORM", true, false },   { "LR", true, false },      { "LAST", true, false },
		{ "NODE", false, false },  { "LATE BY", true, false }, { "SHORT", false, false },
		{ "AGE", true, false },	   { "DIVISOR", true, true },  { "SCALE", true, true },
		{ NULL, false, false },
	};
	const size_t n = sizeof(common) / sizeof(*common) - 1;
	struct column columns[sizeof(common) / sizeof(*common) + SCALARS_WIDE] = { 0 };
	struct sheet *s;

	memcpy(columns, common, sizeof(common));
	add_scalar_columns(columns, n, h);
	s = sheet_new(inv, columns);
	for (size_t i = 0; i < h->n; i++)
		window_row(s, &h->window[i], &columns[n]);
	sheet_print(s);
}

static void micro_rows(struct sheet *s, const gacc_window_info *w)
{
	for (size_t i = 0; i < w->n_micro; i++) {
		const gacc_micro_info *m = &w->micro[i];

		sheet_row(s, m->rejected ? "yellow" : NULL);
		sheet_cell(s, "%" PRIu64, w->window);
		sheet_cell(s, "%u", m->rank);
		sheet_cell(s, "%s", *m->node ? m->node : "-");
		sheet_cell(s, "%u", m->micro);
		sheet_cell(s, "%s", m->rejected ? "void" : "counted");
		sheet_cell(s, "%g", m->weight);
		sheet_cell(s, "%.4f", m->loss);
		sheet_cell(s, "%.1f ms", (double)m->lag_ns / 1e6);
		sheet_cell(s, "%016" PRIx64, m->data_key);
	}
}

static void view_micros(struct invocation *inv, const gacc_history *h)
{
	static const struct column columns[] = {
		{ "WINDOW", true, false }, { "RANK", true, false },    { "NODE", false, false },
		{ "MICRO", true, false },  { "STATE", false, false },  { "WEIGHT", true, false },
		{ "LOSS", true, false },   { "LATE BY", true, false }, { "DATA KEY", false, true },
		{ NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < h->n; i++)
		micro_rows(s, &h->window[i]);
	sheet_print(s);
}

/* --whole is all that there is, so that a number or micro-batches would be lost. */
static gacc_status get_history(struct invocation *inv, uint32_t limit, bool micros, gacc_history **out)
{
	const char *job = job_operand(inv->operand[0]);

	return opt_flag(inv, "whole") ? gacc_job_history_whole(inv->client, job, out)
				      : gacc_job_history(inv->client, job, 0, limit, micros, out);
}

int cmd_history(struct invocation *inv)
{
	bool micros = opt_flag(inv, "micros");
	gacc_history *h;
	uint64_t limit;
	int st = EXIT_OK;

	if (opt_flag(inv, "whole") && (micros || opt(inv, "count")))
		return fail_usage(inv,
				  "--whole has one line for each window that it has: leave out --count and --micros");
	if (!opt_uint(inv, "count", 1, UINT32_MAX, 20, &limit, &st) || !open_client(inv, &st))
		return st;
	if (get_history(inv, (uint32_t)limit, micros, &h))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json_list(inv, "windows", h->window, h->n);
	else if (inv->format == FORMAT_NAME)
		for (size_t i = 0; i < h->n; i++)
			fprintf(inv->out, "window/%" PRIu64 "\n", h->window[i].window);
	else if (!h->n)
		tell(inv->err, "no window of job %s has closed yet\n", inv->operand[0]);
	else if (micros)
		view_micros(inv, h);
	else
		view_windows(inv, h);
	gacc_history_free(h);
	return st;
}

/* ---- norms ---- */

static void view_norms(struct invocation *inv, const gacc_norms *norms)
{
	static const struct column columns[] = {
		{ "TENSOR", false, false }, { "GRADIENT", true, false }, { "PARAMETER", true, false },
		{ "RATIO", true, false },   { NULL, false, false },
	};
	struct sheet *s = sheet_new(inv, columns);

	if (inv->headers)
		fprintf(inv->out, "window %" PRIu64 "\n", norms->window);
	for (size_t i = 0; i < norms->n; i++) {
		const gacc_tensor_norm *t = &norms->norm[i];

		sheet_row(s, NULL);
		sheet_cell(s, "%s", t->name);
		sheet_cell(s, "%.4g", t->grad_norm);
		sheet_cell(s, "%.4g", t->param_norm);
		if (t->param_norm > 0)
			sheet_cell(s, "%.2e", t->grad_norm / t->param_norm);
		else
			sheet_cell(s, "-");
	}
	sheet_print(s);
}

int cmd_norms(struct invocation *inv)
{
	gacc_norms *norms;
	int st = EXIT_OK;

	if (!open_client_for(inv, NORMS_TIMEOUT_MS, &st))
		return st;
	if (gacc_job_norms(inv->client, job_operand(inv->operand[0]), &norms))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json(inv, norms->json);
	else if (inv->format == FORMAT_NAME)
		for (size_t i = 0; i < norms->n; i++)
			tell(inv->out, "%s\n", norms->norm[i].name);
	else
		view_norms(inv, norms);
	gacc_norms_free(norms);
	return st;
}

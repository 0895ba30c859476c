/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl bench: measures pushing, accumulating and reducing on this node for a series of sizes, and prints a table
 * in the form of nccl-tests. gaccctl's main thread. */
#include "bench_size.h"
#include "command.h"
#include "output.h"
#include "signals.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MAX 256

struct bench_run {
	struct invocation *inv;
	struct bench_size size;	      /* of the row being measured */
	uint64_t first, last, factor; /* bytes */
	char node[64], version[32];
	json_t *rows;
	double bandwidth; /* sum over the rows */
	uint64_t wrong;
	size_t n;
};

/* ---- options ---- */

static bool parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMG";
	char *end;
	unsigned long long v = strtoull(text, &end, 10);
	const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;

	if (*text < '0' || *text > '9' || (*end && (!unit || end[1])) || v > (UINT64_C(1) << 40) >> shift)
		return false;
	*out = (uint64_t)v << shift;
	return *out >= sizeof(float);
}

static bool opt_size(struct invocation *inv, const char *name, uint64_t fallback, uint64_t *out, int *st)
{
	const char *text = opt(inv, name);

	*out = fallback;
	if (!text || parse_size(text, out))
		return true;
	*st = fail_usage(inv, "--%s %s: a size such as 4096, 512K, 64M or 1G is needed", name, text);
	return false;
}

static bool read_path(struct bench_run *b, int *st)
{
	const char *path = opt(b->inv, "path");

	if (path && strcmp(path, "shm") && strcmp(path, "inline")) {
		*st = fail_usage(b->inv, "--path %s: shm or inline is needed", path);
		return false;
	}
	b->size.inlined = path && !strcmp(path, "inline");
	return true;
}

static bool read_options(struct bench_run *b, int *st)
{
	struct invocation *inv = b->inv;
	uint64_t iters, warmup, check, ranks;

	if (!opt_size(inv, "begin", 1 << 20, &b->first, st) || !opt_size(inv, "end", 64 << 20, &b->last, st) ||
	    !opt_uint(inv, "factor", 2, 1 << 20, 4, &b->factor, st) ||
	    !opt_uint(inv, "iters", 1, 1000000, 20, &iters, st) ||
	    !opt_uint(inv, "warmup", 0, 1000000, 2, &warmup, st) || !opt_uint(inv, "check", 0, 1, 1, &check, st) ||
	    !opt_uint(inv, "ranks", 1, RANKS_MAX, 2, &ranks, st) || !read_path(b, st))
		return false;
	if (b->last < b->first) {
		*st = fail_usage(inv, "--end is less than --begin");
		return false;
	}
	b->size.iters = (uint32_t)iters;
	b->size.warmup = (uint32_t)warmup;
	b->size.ranks = (uint32_t)ranks;
	b->size.check = check != 0;
	return true;
}

/* ---- rows ---- */

static void print_head(struct bench_run *b)
{
	if (wants_data(b->inv))
		return;
	tell(b->inv->out, "# gaccctl %s  gaccd %s  node %s  path %s  ranks %u  iters %u  warmup %u  check %d\n",
	     gacc_version(), b->version, b->node, b->size.inlined ? "inline" : "shm", b->size.ranks, b->size.iters,
	     b->size.warmup, b->size.check);
	fputs("# turn: waiting to be added in rank order; busbw: gradients of all ranks per second\n", b->inv->out);
	fprintf(b->inv->out, "#%11s %11s %6s %9s %9s %9s %9s %8s %8s %7s\n", "size", "count", "type", "push", "turn",
		"reduce", "total", "algbw", "busbw", "#wrong");
	fprintf(b->inv->out, "#%11s %11s %6s %9s %9s %9s %9s %8s %8s\n", "(B)", "(elements)", "", "(us)", "(us)",
		"(us)", "(us)", "(GB/s)", "(GB/s)");
	fflush(b->inv->out);
}

static void add_row(struct bench_run *b, const struct bench_result *r)
{
	uint64_t bytes_each = b->size.count * sizeof(float);
	double algbw = (double)bytes_each / r->total_us / 1e3, busbw = algbw * b->size.ranks;

	b->bandwidth += busbw;
	b->wrong += r->wrong;
	b->n++;
	json_array_append_new(b->rows, json_pack("{s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "size",
						 (json_int_t)bytes_each, "count", (json_int_t)b->size.count, "type",
						 "f32", "push_us", r->push_us, "turn_us", r->turn_us, "reduce_us",
						 r->reduce_us, "total_us", r->total_us, "algbw", algbw, "busbw", busbw,
						 "wrong", (json_int_t)r->wrong));
	if (wants_data(b->inv))
		return;
	fprintf(b->inv->out, " %11" PRIu64 " %11" PRIu64 " %6s %9.1f %9.1f %9.1f %9.1f %8.2f %8.2f", bytes_each,
		b->size.count, "f32", r->push_us, r->turn_us, r->reduce_us, r->total_us, algbw, busbw);
	fprintf(b->inv->out, b->size.check ? " %7" PRIu64 "\n" : "     N/A\n", r->wrong);
	fflush(b->inv->out);
}

/* ---- the end ---- */

static bool write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	bool ok = f && fprintf(f, "%s\n", text) >= 0;

	return f && !fclose(f) && ok;
}

/* The whole as JSON: to --json's file, and to the output if that is asked for. */
static int report(struct bench_run *b, double average)
{
	const char *path = opt(b->inv, "json");
	json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:O, s:f, s:I, s:b}", "gaccctl",
				gacc_version(), "gaccd", b->version, "node", b->node, "path",
				b->size.inlined ? "inline" : "shm", "ranks", (int)b->size.ranks, "iters",
				(int)b->size.iters, "warmup", (int)b->size.warmup, "check", b->size.check, "results",
				b->rows, "average_busbw", average, "wrong", (json_int_t)b->wrong, "ok", b->wrong == 0);
	char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
	int st = EXIT_OK;

	if (!text)
		st = fail_with(b->inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	else if (path && !write_file(path, text))
		st = fail_with(b->inv, EXIT_FAILED, "FILE", NULL, "%s cannot be written", path);
	else if (wants_data(b->inv))
		st = print_json(b->inv, text);
	free(text);
	json_decref(all);
	return st;
}

static int conclude(struct bench_run *b)
{
	double average = b->n ? b->bandwidth / (double)b->n : 0;
	int st = report(b, average);

	if (st)
		return st;
	if (!wants_data(b->inv))
		fprintf(b->inv->out, "# Out of bounds values : %" PRIu64 " %s\n# Avg bus bandwidth    : %.3f GB/s\n",
			b->wrong, b->wrong ? "FAILED" : "OK", average);
	return b->wrong ? EXIT_FAILED : EXIT_OK;
}

static int measure(struct bench_run *b, int signals)
{
	struct bench_result result;
	char why[512];

	for (uint64_t n = b->first; n <= b->last; n *= b->factor) {
		gacc_status st;

		b->size.count = n / sizeof(float);
		st = bench_size_run(b->inv->client, &b->size, signals, &result, why, sizeof(why));
		if (st == GACC_EAGAIN)
			return EXIT_INTERRUPTED;
		if (st)
			return fail_with(b->inv, exit_status_of(st), status_name(st), NULL, "%s", why);
		add_row(b, &result);
	}
	return conclude(b);
}

int cmd_bench(struct invocation *inv)
{
	struct bench_run b = { .inv = inv };
	gacc_node_info *node;
	int signals, st = EXIT_OK;

	if (!read_options(&b, &st))
		return st;
	signals_block(); /* before there are threads */
	if (!open_client(inv, &st))
		return st;
	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	snprintf(b.node, sizeof(b.node), "%s", node->name);
	snprintf(b.version, sizeof(b.version), "%s", node->version);
	gacc_node_free(node);
	b.size.endpoint = gacc_endpoint(inv->client);
	b.rows = json_array();
	signals = signals_open();
	print_head(&b);
	st = measure(&b, signals);
	if (signals >= 0)
		close(signals);
	json_decref(b.rows);
	return st;
}

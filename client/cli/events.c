/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl events: prints what has happened in a job or on the node, page by page, and with --watch what happens from
 * then on. gaccctl's main thread. */
#include "command.h"
#include "output.h"
#include "view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE 1000
#define LOOK_MS 500

struct look {
	const char *job; /* NULL: all */
	uint64_t after_id;
	int64_t since_nanos; /* 0: all */
	bool first;	     /* nothing has been printed yet */
	struct contact contact;
};

/* Those of the page that are young enough; ids and times ascend together. */
static int print_page(struct invocation *inv, struct look *look, const gacc_events *page)
{
	const gacc_job_event *event = page->event;
	size_t n = page->n;
	bool headers = inv->headers;
	int st = EXIT_OK;

	for (; n && event->unix_nanos < look->since_nanos; n--)
		event++;
	if (wants_data(inv)) {
		st = print_json_list(inv, "events", event, n);
	} else if (inv->format == FORMAT_NAME) {
		for (size_t i = 0; i < n; i++)
			fprintf(inv->out, "event/%" PRIu64 "\n", event[i].id);
	} else if (n) {
		inv->headers = headers && look->first; /* once, over several pages */
		view_events(inv, event, n, true);
		inv->headers = headers;
	}
	look->first = look->first && !n;
	fflush(inv->out);
	return st;
}

/* All that there is after look->after_id. */
static int print_new(struct invocation *inv, struct look *look)
{
	gacc_events *page;
	size_t n = PAGE;
	int st = EXIT_OK;

	while (n == PAGE && st == EXIT_OK) {
		if (gacc_job_events(inv->client, look->job, look->after_id, PAGE, &page))
			return contact_failed(inv, &look->contact);
		contact_made(&look->contact);
		n = page->n;
		if (n)
			look->after_id = page->event[n - 1].id;
		if (n || (look->first && !opt_flag(inv, "watch")))
			st = print_page(inv, look, page);
		gacc_events_free(page);
	}
	return st;
}

int cmd_events(struct invocation *inv)
{
	struct look look = { .job = inv->n_operands ? job_operand(inv->operand[0]) : NULL, .first = true };
	int64_t since_ms;
	int st = EXIT_OK;

	if (!opt_duration(inv, "since", 0, &since_ms, &st) || !open_client(inv, &st))
		return st;
	if (since_ms)
		look.since_nanos = unix_nanos_now() - since_ms * 1000000;
	st = print_new(inv, &look);
	while (st == EXIT_OK && opt_flag(inv, "watch") && !ferror(inv->out)) {
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000L }, NULL);
		st = print_new(inv, &look);
	}
	return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A real coordinator with many fake parts that report as real ones do: all at once, with all ranks in each report. For
 * what the coordinator costs: nothing here waits, sleeps or depends on the clock. Wrong inputs end the program.
 */
#ifndef TESTS_SUPPORT_PARTS_H
#define TESTS_SUPPORT_PARTS_H

#include "control/coordinator.h"

#define PARTS_MICRO_SIZE 4

struct parts;

/* The job runs; `ranks` ranks are dealt to n_parts parts of equal size, side by side. */
struct parts *parts_new(uint32_t ranks, uint32_t n_parts);
void parts_free(struct parts *);
struct coord *parts_coord(struct parts *);
/* One window: each part reports that its ranks have half of their micro-batches, then all; each does what the orders
 * say, the journal what it is told, until the next window is open. */
void parts_window(struct parts *);
/* All parts but the last have given all, and wait; then so many ticks go by. */
void parts_await_last(struct parts *, uint32_t ticks);
/* Of the newest calls of parts_window or parts_await_last. */
uint64_t parts_reports(const struct parts *);
uint64_t parts_orders(const struct parts *);

#endif

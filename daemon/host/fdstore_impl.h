/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of host/fdstore.h share. */
#ifndef GACC_HOST_FDSTORE_IMPL_H
#define GACC_HOST_FDSTORE_IMPL_H

#include "host/fdstore.h"

#include <uv.h>

/* A message without a descriptor that the manager has had no room for. */
struct fdstore_text {
	struct fdstore_text *next;
	char text[];
};

struct fdstore {
	int fd; /* connected to the manager; -1: none */
	uint64_t watchdog_us, room;
	uv_poll_t writable;
	bool started, watching; /* `writable` is open; is active */
	bool watchdog_due;
	int64_t next_starting_ns; /* when fdstore_starting tells the manager again */
	struct fdstore_text *text, **text_tail;
	struct fdstore_request *request, **request_tail;
	int64_t stuck_since_ns; /* 0: something was taken since the last look */
	bool told;		/* that it is stuck */
};

bool fdstore_valid_name(const char *name, size_t n);

#endif

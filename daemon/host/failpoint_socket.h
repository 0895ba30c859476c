/* SPDX-License-Identifier: Apache-2.0 */
/* <runtime_dir>/failpoints.sock: where a tester arms failpoints (proto/failpoint.h). Only in builds with
 * GACC_FAILPOINTS; mode 0600, and open to root and gaccd's own user alone. A line is a command, answered by lines that
 * end with "ok" or "error: ...".
 *
 * Loop thread.
 */
#ifndef GACC_HOST_FAILPOINT_SOCKET_H
#define GACC_HOST_FAILPOINT_SOCKET_H

#include "proto/status.h"

#include <stddef.h>

struct failpoint_socket;

#ifdef GACC_FAILPOINTS

/* `loop` is a uv_loop_t. Errors as listener_open. */
enum status failpoint_socket_open(void *loop, const char *runtime_dir, struct failpoint_socket **out);
/* Memory goes when the loop has run once more. NULL is fine. */
void failpoint_socket_close(struct failpoint_socket *);

#else

static inline enum status failpoint_socket_open(void *loop, const char *runtime_dir, struct failpoint_socket **out)
{
	(void)loop;
	(void)runtime_dir;
	*out = NULL;
	return ST_OK;
}

static inline void failpoint_socket_close(struct failpoint_socket *s)
{
	(void)s;
}

#endif
#endif

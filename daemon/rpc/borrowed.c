/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that gRPC borrows from a handler (rpc_send_bulk): any thread of gRPC returns one, and the pump then runs the
 * handler's release on the loop thread. The server cannot stop while one is out. */
#include "rpc/private.h"
#include "proto/handoff.h"

#include <stdlib.h>

struct borrowed {
	struct rpc_tag tag;
	struct rpc_server *server;
	void (*release)(void *arg);
	void *arg;
};

static void on_returned(struct rpc_tag *tag, bool ok)
{
	struct borrowed *b = (struct borrowed *)tag;
	struct rpc_server *server = b->server;
	b->release(b->arg);
	free(b);
	server->borrowed--;
	rpc_server_check_idle(server);
}

void rpc_borrowed_end(void *borrowed)
{
	handoff_taken(borrowed);
	rpc_pump_post(((struct borrowed *)borrowed)->server->pump, borrowed);
}

void *rpc_borrowed_new(struct rpc_server *server, void (*release)(void *arg), void *arg)
{
	struct borrowed *b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	*b = (struct borrowed){ .tag.run = on_returned, .server = server, .release = release, .arg = arg };
	server->borrowed++;
	handoff_given(b);
	return b;
}

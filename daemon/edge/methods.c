/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the server the rows of all methods, so that it knows their handlers. Called by daemon.c before the server
 * starts. Loop thread. */
#include "edge/methods.h"

#include "edge/node_serve.h"

enum status methods_add(struct daemon *d)
{
	enum status st = rpc_server_add(d->rpc, gradient_methods, n_gradient_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, inline_methods, n_inline_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, state_methods, n_state_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, job_methods, n_job_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, control_methods, n_control_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, checkpoint_methods, n_checkpoint_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, node_methods, n_node_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, look_methods, n_look_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, log_methods, n_log_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, scalar_methods, n_scalar_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, nodes_methods, n_nodes_methods, d);
	if (!st)
		st = rpc_server_add(d->rpc, peer_methods, n_peer_methods, d);
	return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of each method file. Private to the edge. */
#ifndef GACC_EDGE_METHODS_H
#define GACC_EDGE_METHODS_H

#include "rpc/rpc.h"

extern const struct rpc_method gradient_methods[], inline_methods[], job_methods[], control_methods[];
extern const struct rpc_method checkpoint_methods[], node_methods[], look_methods[], nodes_methods[];
extern const struct rpc_method log_methods[], scalar_methods[], state_methods[];
extern const size_t n_log_methods, n_scalar_methods, n_gradient_methods, n_inline_methods, n_job_methods,
	n_control_methods;
extern const size_t n_checkpoint_methods, n_node_methods, n_look_methods, n_nodes_methods, n_state_methods;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the RPC layer share: a server and a channel to it, and calls to the fixture's methods. */
#ifndef GACC_TESTS_RPC_CALLS_H
#define GACC_TESTS_RPC_CALLS_H

#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "support/rpc_fixture.h"

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>

#define GRADIENT (&gacc__v1__gradient_service__descriptor)
#define SECONDS 1000

extern struct fixture *server;
extern struct rpc_channel *channel;
extern struct rpc_failure failure; /* of the last failed call, for tests with one thread */

struct rpc_channel *open_channel(const char *target, const char *token);
void start_with(struct fixture_options options);
void set_up(void);
void tear_down(void);
enum status flush_on(struct rpc_channel *on, uint64_t window, int64_t timeout_ms, uint32_t *out_count,
		     struct rpc_failure *f);
enum status flush(uint64_t window, int64_t timeout_ms, uint32_t *out_count);
bool any_begun(const struct fixture_counts *counts);
bool any_broken(const struct fixture_counts *counts);
struct rpc_stream *parked_call(void);
struct rpc_stream *get_parameters(uint64_t bytes, uint64_t chunk);
struct rpc_stream *watch(uint64_t n);
size_t read_all(struct rpc_stream *stream);
void temp_dir(char dir[64]);

#endif

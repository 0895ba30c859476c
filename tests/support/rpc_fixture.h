/* SPDX-License-Identifier: Apache-2.0 */
/* An RPC server in a thread of its own, behind a unix socket in a temporary directory, with a row for every method of
 * gacc.v1 and simple answers. For test_rpc.c and, as a program, for test_rpc_interop.py.
 *
 * Flush          micro_count = window; the windows below ask for something else
 * PushInline     parked_ns = bytes, micro_count = messages, window = sum of the bytes; a header.window of FIXTURE_HOLD
 *                leaves the first message unread
 * GetParameters  `bytes` bytes (byte i is i % 251) in chunks of `offset` bytes, by reference
 * WatchSession   session.id messages as fast as the queue takes them; ends RESOURCE_EXHAUSTED when it is full
 * PutParametersInline  fails at the first message
 * Push           needs a deadline; micro_count = micro
 * JobService.Get  a job whose reason has as many bytes as `job` says
 * all others     NOT_SUPPORTED
 */
#ifndef GACC_TESTS_RPC_FIXTURE_H
#define GACC_TESTS_RPC_FIXTURE_H

#include "rpc/rpc.h"

#define FIXTURE_PARK 1001 /* never answered */
#define FIXTURE_FAIL 1002 /* WINDOW_CLOSED with hint, field and ranks 3, 5 missing */
#define FIXTURE_UID 1003  /* micro_count = the peer's uid */
#define FIXTURE_PID 1004
/* a message of 6000 bytes of 2-byte characters and 2000 missing ranks */
#define FIXTURE_LONG_ERROR 1005
#define FIXTURE_NAME 1006 /* NOT_READY, with the peer's name as message */
#define FIXTURE_HOLD 2000

struct fixture_options {
	struct rpc_config config;	    /* `loop` is set by the fixture */
	const char *socket;		    /* NULL: in a directory of the fixture's own */
	const struct rpc_tcp_identity *tcp; /* listen on 127.0.0.1 too */
	const char *tcp_address;	    /* NULL: "127.0.0.1:0" */
	int drain_ms;
	int grace_ms;
};

/* Counters of the loop thread; read them in fixture_do. */
struct fixture_counts {
	unsigned messages;  /* on_message ran */
	unsigned begun;	    /* calls that a handler has seen */
	unsigned completed; /* on_end(true) */
	unsigned broken;    /* on_end(false) */
	unsigned released;  /* rpc_send_bulk memory given back */
	uint64_t last_id;
	int last_fd;	     /* of the newest connection */
	bool fd_open_at_end; /* was it open in the last on_end? */
};

struct fixture {
	struct rpc_server *server;
	struct rpc_health *health;
	struct fixture_counts counts;
	char target[160]; /* "unix:..." */
	int tcp_port;
	struct fixture_private *private;
};

struct fixture *fixture_start(const struct fixture_options *options);
/* Runs fn(fixture, arg) on the loop and waits for it. */
void fixture_do(struct fixture *fixture, void (*fn)(struct fixture *fixture, void *arg), void *arg);
/* Counters once cond(counts) holds; fails the process after 10 s. */
struct fixture_counts fixture_wait(struct fixture *fixture, bool (*cond)(const struct fixture_counts *counts));
/* Starts the stop without waiting for it. */
void fixture_stop_begin(struct fixture *fixture);
/* Stops and frees. */
void fixture_stop(struct fixture *fixture);

/* The rows, for servers that a test puts together itself. */
enum { FIXTURE_ROWS = 37 };
void fixture_rows(struct rpc_method *out_rows);

#endif

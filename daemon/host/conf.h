/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's configuration: one table of keys in conf.c gives names, types, ranges, defaults and documentation.
 *
 * A value comes from the command line, else from the environment (GACC_LISTEN_SOCKET is listen.socket), else from the
 * file (YAML; JSON is YAML), else it is the default. Unknown keys are errors.
 */
#ifndef GACC_HOST_CONF_H
#define GACC_HOST_CONF_H

#include "base/log.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CONF_DEFAULT_FILE GACC_SYSCONFDIR "/gacc/gaccd.yaml"

/* Strings are never NULL; "" means not set. */
struct conf {
	struct {
		char *name;
		char *data_address; /* an IP address */
	} node;
	struct {
		char *coordinator; /* HOST:PORT; "": this gaccd coordinates */
		char *token_file;
		uint64_t lease_ms;
		uint32_t relay_min_uid;
	} cluster;
	struct {
		char *socket;
		char *attach_socket; /* not a key: <socket>.attach */
		uint32_t mode;
		char *group;
		char *tcp; /* host:port; off when "" */
		char *token_file;
		uint32_t connections_per_user;
	} listen;
	struct {
		char *cert, *key, *ca;
		char *revoked; /* file of serial numbers; "": none */
	} tls;
	struct {
		uint64_t host_memory;	       /* bytes */
		uint64_t host_memory_per_user; /* bytes; 0: no limit of its own */
		/* bytes of all GPUs; 0: no limit */
		uint64_t device_memory, device_memory_per_user;
		uint32_t jobs, jobs_per_user, queued_per_user;
		uint64_t request_memory;  /* bytes */
		uint64_t journal_reserve; /* bytes */
		uint64_t state_per_user;  /* bytes; 0: half of the file system */
	} limits;
	struct {
		uint64_t windows, events, jobs; /* how many are kept */
	} history;
	struct {
		int level;	   /* enum log_level */
		int format_key;	   /* as written: enum log_format, or -1 for auto */
		int format;	   /* not a key: enum log_format */
		uint64_t rank_max; /* bytes */
	} log;
	struct {
		uint64_t orphan_timeout_ms;
	} launch;
	struct {
		char *allowed_dirs; /* colon-separated */
	} checkpoint;
	char *state_dir, *runtime_dir;
	struct {
		uint32_t threads;    /* 0: one per CPU */
		char *kernels;	     /* "auto" or a kernel table's name */
		uint64_t timeout_ms; /* without a sign of life; then it is killed */
		uint32_t exchanges;  /* of several jobs on one node at the same time; the coordinator's */
	} engine;
	struct {
		uint64_t stall_ms; /* without progress of a sum over several parts; then the attempt fails */
	} coll;
};

struct conf_sources {
	const char *file;	  /* NULL: CONF_DEFAULT_FILE if it is there */
	const char *const *set;	  /* command line: "listen.socket=/tmp/s", NULL-terminated; NULL: none */
	char *const *environment; /* "NAME=value", NULL-terminated; NULL: none */
};

/* Reads, checks and fills in. On ST_INVALID_CONFIG or ST_IO_ERROR `why` is one line for the user:
 * FILE:LINE:COLUMN: what and what instead. */
enum status conf_load(const struct conf_sources *, struct conf **out, char *why, size_t n_why);
void conf_free(struct conf *);

/* Calls `fn` for each key, "listen.socket", its value and where it came from, until it returns false; false: it did, or
 * no memory. */
bool conf_each(const struct conf *, bool (*fn)(void *arg, const char *key, const char *value, const char *origin),
	       void *arg);

/* The effective configuration as a YAML file, with the documentation of each key above it and where it came from behind
 * it. */
void conf_print(const struct conf *, FILE *);

#endif

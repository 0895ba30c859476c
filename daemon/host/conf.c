/* SPDX-License-Identifier: Apache-2.0 */
/* Reads gaccd's configuration from command line, environment and file into one table of keys, and checks it. Once at
 * the start, before threads; also for `gaccd --check-config` and the documentation of the keys. */
#include "host/conf.h"

#include "base/machine.h"
#include "base/loopback.h"
#include "base/node_name.h"
#include "text/yaml_table.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IN(section, field) (offsetof(struct conf, section.field) - offsetof(struct conf, section))
/* KEY(name, type, where it lies, options ...) */
#define KEY(name_, type_, at, ...)                                                                                     \
	{                                                                                                              \
		.name = name_, .type = YAML_##type_, .offset = at, __VA_ARGS__                                         \
	}
#define FORMAT_AUTO (-1)
#define MAX_PATH_BYTES 4096

static const struct yaml_name levels[] = { { "error", LOG_ERROR }, { "warn", LOG_WARN },   { "notice", LOG_NOTICE },
					   { "info", LOG_INFO },   { "debug", LOG_DEBUG }, { NULL, 0 } };
static const struct yaml_name formats[] = {
	{ "auto", FORMAT_AUTO }, { "text", LOG_TEXT }, { "json", LOG_JSON }, { "journal", LOG_JOURNAL }, { NULL, 0 }
};

static const struct yaml_field node_keys[] = {
	KEY("name", STRING, IN(node, name), .initial = "%H", .min = 1, .max = 255,
	    .doc = "This node's name in every message; %H is the host name."),
	KEY("data_address", STRING, IN(node, data_address), .initial = "127.0.0.1", .min = 1, .max = 45,
	    .doc = "IP address where the engines of other nodes reach the engines of this one. Their connections are "
		   "not "
		   "encrypted."),
	{ .name = NULL }
};

static const struct yaml_field cluster_keys[] = {
	KEY("coordinator", STRING, IN(cluster, coordinator), .initial = "", .max = 300,
	    .doc = "HOST:PORT (listen.tcp) of the gaccd that coordinates all jobs of the cluster; empty: this one "
		   "does."),
	KEY("token_file", STRING, IN(cluster, token_file), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "File with the token of a coordinator on this machine that has no certificates."),
	KEY("relay_min_uid", U32, IN(cluster, relay_min_uid), .initial = "1000", .min = 1, .max = UINT32_MAX - 1,
	    .doc = "Calls that a node with a certificate passes on for users with a lower uid are refused."),
	KEY("lease", MS, IN(cluster, lease_ms), .initial = "15s", .min = 1000, .max = 3600000,
	    .doc = "A node that is silent for so long counts as down; its jobs wait for it."),
	{ .name = NULL }
};

static const struct yaml_field listen_keys[] = {
	KEY("socket", STRING, IN(listen, socket), .initial = "%t/gaccd.sock", .min = 1, .max = 100,
	    .doc = "Path of the gRPC socket; %t is runtime_dir. Trainers get their memory at <socket>.attach."),
	KEY("mode", OCTAL, IN(listen, mode), .initial = "0660", .doc = "File mode of both sockets: who may connect."),
	KEY("group", STRING, IN(listen, group), .initial = "",
	    .doc = "Group of both sockets; empty: the daemon's own."),
	KEY("tcp", STRING, IN(listen, tcp), .initial = "",
	    .doc = "HOST:PORT for gRPC over TCP; empty: off. Needs tls or listen.token_file."),
	KEY("token_file", STRING, IN(listen, token_file), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "File with the token that TCP callers without a certificate must show."),
	KEY("connections_per_user", U32, IN(listen, connections_per_user), .initial = "256", .min = 1, .max = 65536,
	    .doc = "Connections that one user may have at a time on each unix socket."),
	{ .name = NULL }
};

static const struct yaml_field tls_keys[] = {
	KEY("cert", STRING, IN(tls, cert), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "PEM file with this daemon's certificate chain."),
	KEY("key", STRING, IN(tls, key), .initial = "", .max = MAX_PATH_BYTES, .doc = "PEM file with its private key."),
	KEY("ca", STRING, IN(tls, ca), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "PEM file with the authorities whose certificates callers must have."),
	KEY("revoked", STRING, IN(tls, revoked), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "File with serial numbers of certificates that are no longer taken, in hex, one a line; read again "
		   "on "
		   "SIGHUP."),
	{ .name = NULL }
};

static const struct yaml_field limits_keys[] = {
	KEY("host_memory", SIZE, IN(limits, host_memory), .initial = "0",
	    .doc = "Shared memory that all jobs together may have; 0: three quarters of the machine's or, if that is "
		   "less, its cgroup's."),
	KEY("jobs", U32, IN(limits, jobs), .initial = "32", .min = 1, .max = 4096,
	    .doc = "Jobs that may run at a time; those that wait in the queue do not count."),
	KEY("jobs_per_user", U32, IN(limits, jobs_per_user), .initial = "8", .min = 1, .max = 4096,
	    .doc = "Of these, jobs of one user."),
	KEY("host_memory_per_user", SIZE, IN(limits, host_memory_per_user), .initial = "0",
	    .doc = "Shared memory that all jobs of one user may have; 0: no limit of its own."),
	KEY("device_memory", SIZE, IN(limits, device_memory), .initial = "0",
	    .doc = "Memory of GPUs that all jobs together may have (device: cuda), of all GPUs of the node; 0: what "
		   "they "
		   "have."),
	KEY("device_memory_per_user", SIZE, IN(limits, device_memory_per_user), .initial = "0",
	    .doc = "Of this, that of all jobs of one user; 0: no limit of its own."),
	KEY("queued_per_user", U32, IN(limits, queued_per_user), .initial = "100", .max = 4096,
	    .doc = "Jobs of one user that may wait for their turn (launch: daemon)."),
	KEY("state_per_user", SIZE, IN(limits, state_per_user), .initial = "0",
	    .doc = "Logs and checkpoints that one user may have in state_dir; 0: half of its file system."),
	KEY("journal_reserve", SIZE, IN(limits, journal_reserve), .initial = "16MiB", .min = 1 << 20, .max = 1 << 30,
	    .doc = "Disk space that the journal keeps for itself, so that running jobs go on when the disk of "
		   "state_dir is full."),
	KEY("request_memory", SIZE, IN(limits, request_memory), .initial = "2GiB", .min = 64 << 20, .max = 1e15,
	    .doc = "Memory of gaccd for requests that are being received, of all users together; each has an equal "
		   "part of it."),
	{ .name = NULL }
};

static const struct yaml_field history_keys[] = {
	KEY("windows", U64, IN(history, windows), .initial = "1000", .min = 1, .max = 1e9,
	    .doc = "Newest closed windows that are kept of each job, besides its thinned series."),
	KEY("events", U64, IN(history, events), .initial = "10000", .min = 1, .max = 1e9,
	    .doc = "Events that are kept of each job, and of the node."),
	KEY("jobs", U64, IN(history, jobs), .initial = "200", .min = 1, .max = 1e6,
	    .doc = "Ended jobs that are remembered; the user who has most of them loses his oldest first, out of list, "
		   "journal and history."),
	{ .name = NULL }
};

static const struct yaml_field log_keys[] = {
	KEY("level", ENUM, IN(log, level), .initial = "info", .names = levels,
	    .doc = "The least important lines that are written: error, warn, notice, info, debug."),
	KEY("format", ENUM, IN(log, format_key), .initial = "auto", .names = formats,
	    .doc = "auto (journal when systemd reads our stderr, else text), text, json, journal."),
	KEY("rank_max", SIZE, IN(log, rank_max), .initial = "64MiB", .min = 64 << 10, .max = 1e15,
	    .doc = "Length at which the log of a rank that gaccd has launched becomes worker_RANK.log.1, in the place "
		   "of an older one."),
	{ .name = NULL }
};

static const struct yaml_field engine_keys[] = {
	KEY("threads", U32, IN(engine, threads), .initial = "0", .max = 1024,
	    .doc = "Threads of each engine; 0: one per CPU. Engines of several parts of a job divide them."),
	KEY("kernels", STRING, IN(engine, kernels), .initial = "auto", .min = 1, .max = 32,
	    .doc = "Which kernels the engines use: auto (the fastest that this CPU has) or a name."),
	KEY("timeout", MS, IN(engine, timeout_ms), .initial = "2m", .min = 1000, .max = 86400000,
	    .doc = "An engine that gives no sign of life for so long is killed and started anew; nothing is lost. "
		   "Longer than its longest pass. For engines of jobs of several parts, a quarter of it, but not less "
		   "than 20 s."),
	KEY("exchanges", U32, IN(engine, exchanges), .initial = "2", .min = 1, .max = 64,
	    .doc = "How many jobs of several parts may exchange their sums on one node at the same time; the others "
		   "wait "
		   "for their turn. The coordinator's value holds for all nodes."),
	{ .name = NULL }
};

static const struct yaml_field coll_keys[] = {
	KEY("stall", MS, IN(coll, stall_ms), .initial = "10s", .min = 1000, .max = 3600000,
	    .doc = "An engine that gets nothing for so long from the other parts of its job gives up and names them; "
		   "the coordinator then has them try again."),
	{ .name = NULL }
};

static const struct yaml_field launch_keys[] = {
	KEY("orphan_timeout", MS, IN(launch, orphan_timeout_ms), .initial = "10m", .min = 1000, .max = 86400000,
	    .doc = "Ranks that gaccd has launched are stopped when no gaccd has asked for them for so long."),
	{ .name = NULL }
};

static const struct yaml_field checkpoint_keys[] = {
	KEY("allowed_dirs", STRING, IN(checkpoint, allowed_dirs), .initial = "", .max = MAX_PATH_BYTES,
	    .doc = "Directories besides state_dir/checkpoints where jobs of other users than gaccd's may save and "
		   "restore, absolute, separated by colons."),
	{ .name = NULL }
};

#define SECTION(name_, doc_)                                                                                           \
	{                                                                                                              \
		.name = #name_, .type = YAML_SECTION, .offset = offsetof(struct conf, name_), .fields = name_##_keys,  \
		.doc = doc_                                                                                            \
	}
static const struct yaml_field keys[] = {
	SECTION(node, "The node."),
	SECTION(cluster, "The cluster."),
	SECTION(listen, "Who can call."),
	SECTION(tls, "TLS with certificates on both sides, for TCP."),
	SECTION(limits, "Limits."),
	SECTION(history, "What can be looked back at, in state_dir/history.db."),
	SECTION(log, "Log."),
	SECTION(engine, "Engines."),
	SECTION(coll, "Sums over several parts of a job."),
	SECTION(launch, "Ranks that gaccd starts."),
	SECTION(checkpoint, "Checkpoints."),
	{ .name = "state_dir",
	  .type = YAML_STRING,
	  .offset = offsetof(struct conf, state_dir),
	  .initial = "/var/lib/gaccd",
	  .min = 1,
	  .max = MAX_PATH_BYTES,
	  .doc = "Directory of what must survive a reboot: journal, history, checkpoints, logs." },
	{ .name = "runtime_dir",
	  .type = YAML_STRING,
	  .offset = offsetof(struct conf, runtime_dir),
	  .initial = "/run/gaccd",
	  .min = 1,
	  .max = 90,
	  .doc = "Directory of sockets and locks." },
	{ .name = NULL }
};

struct loaded {
	struct conf conf; /* first: a conf is its address */
	struct yaml_origins origins;
	struct yaml_error error;
};

/* ---- sources ---- */

/* The whole file, malloc'ed. */
static int read_file(const char *path, char **out, size_t *out_n)
{
	struct stat st;
	char *text = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err; /* a FIFO is refused below, not waited for */
	if (fd < 0)
		return errno;
	if (fstat(fd, &st))
		goto fail;
	errno = S_ISDIR(st.st_mode) ? EISDIR : !S_ISREG(st.st_mode) ? EINVAL : EFBIG;
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)YAML_MAX_FILE || !(text = malloc((size_t)st.st_size + 1)))
		goto fail;
	size_t n = 0;
	for (ssize_t r; n < (size_t)st.st_size; n += (size_t)r)
		if ((r = read(fd, text + n, (size_t)st.st_size - n)) <= 0) {
			if (r < 0)
				goto fail;
			break;
		}
	close(fd);
	*out = text;
	*out_n = n;
	return 0;
fail:
	err = errno;
	free(text);
	close(fd);
	return err;
}

static enum status from_file(struct loaded *l, const char *file)
{
	char *text = NULL;
	size_t n = 0;
	int err = read_file(file ? file : CONF_DEFAULT_FILE, &text, &n);
	if (err == ENOENT && !file)
		return ST_OK;
	if (err) {
		snprintf(l->error.text, sizeof(l->error.text), "%s: %s", file ? file : CONF_DEFAULT_FILE,
			 strerror(err));
		return ST_IO_ERROR;
	}
	enum status st = yaml_read(keys, &l->conf, file ? file : CONF_DEFAULT_FILE, text, n, &l->origins, &l->error);
	free(text);
	return st;
}

/* GACC_LISTEN_SOCKET for listen.socket. */
static const char *from_environment(char *const *env, const char *path, char name[128])
{
	size_t n = (size_t)snprintf(name, 128, "GACC_%s", path);
	for (char *c = name; *c; c++)
		*c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
	for (; *env; env++)
		if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

static enum status set_from_environment(struct loaded *l, const struct yaml_field *table, const char *prefix,
					char *const *env)
{
	enum status st = ST_OK;
	for (const struct yaml_field *f = table; f->name && st == ST_OK; f++) {
		char path[64], name[128];
		snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", f->name);
		if (f->type == YAML_SECTION) {
			st = set_from_environment(l, f->fields, path, env);
			continue;
		}
		const char *value = from_environment(env, path, name);
		if (value)
			st = yaml_set(keys, &l->conf, path, value, name, &l->origins, &l->error);
	}
	return st;
}

static enum status set_from_arguments(struct loaded *l, const char *const *set)
{
	enum status st = ST_OK;
	for (; set && *set && st == ST_OK; set++) {
		char key[64];
		const char *eq = strchr(*set, '=');
		if (!eq || (size_t)(eq - *set) >= sizeof(key)) {
			snprintf(l->error.text, sizeof(l->error.text), "--set: \"%.100s\" is not KEY=VALUE", *set);
			return ST_INVALID_ARGUMENT;
		}
		snprintf(key, sizeof(key), "%.*s", (int)(eq - *set), *set);
		st = yaml_set(keys, &l->conf, key, eq + 1, "--set", &l->origins, &l->error);
	}
	return st;
}

/* ---- what follows from the values ---- */

/* Replaces *s by a copy with each `%c` replaced. */
static enum status expand(char **s, char c, const char *by)
{
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);
	if (!f)
		return ST_NO_MEMORY;
	for (const char *at = *s; *at; at++)
		if (at[0] == '%' && at[1] == c) {
			fputs(by, f);
			at++;
		} else {
			fputc(*at, f);
		}
	if (fclose(f)) {
		free(out);
		return ST_NO_MEMORY;
	}
	free(*s);
	*s = out;
	return ST_OK;
}

static enum status fill_in(struct conf *c)
{
	char host[256] = "localhost";
	gethostname(host, sizeof(host) - 1);
	enum status st = expand(&c->node.name, 'H', host);
	if (st == ST_OK)
		st = expand(&c->listen.socket, 't', c->runtime_dir);
	if (st == ST_OK && asprintf(&c->listen.attach_socket, "%s.attach", c->listen.socket) < 0) {
		c->listen.attach_socket = NULL;
		st = ST_NO_MEMORY;
	}
	struct machine_memory m;
	if (st == ST_OK && c->limits.host_memory == 0 && (st = machine_memory_read("", &m)) == ST_OK)
		c->limits.host_memory = m.total / 4 * 3;
	c->log.format = c->log.format_key == FORMAT_AUTO ? (int)log_auto_format() : c->log.format_key;
	return st;
}

__attribute__((format(printf, 3, 4))) static enum status refuse(struct loaded *l, const struct yaml_field *f,
								const char *fmt, ...)
{
	char *to = l->error.text;
	size_t size = sizeof(l->error.text);
	size_t n = (size_t)snprintf(to, size, "%s: ", yaml_origin(&l->origins, f));
	va_list ap;
	va_start(ap, fmt);
	if (n < size)
		vsnprintf(to + n, size - n, fmt, ap);
	va_end(ap);
	return ST_INVALID_ARGUMENT;
}

static const struct yaml_field *key(const struct yaml_field *table, const char *name)
{
	while (strcmp(table->name, name) != 0)
		table++;
	return table;
}

/* A default that another key makes impossible follows that key. */
static void follow(struct loaded *l)
{
	struct conf *c = &l->conf;
	if (c->limits.jobs_per_user > c->limits.jobs &&
	    !strcmp(yaml_origin(&l->origins, key(limits_keys, "jobs_per_user")), "default"))
		c->limits.jobs_per_user = c->limits.jobs;
}

static enum status check(struct loaded *l)
{
	const struct conf *c = &l->conf;
	if (*c->listen.tcp && !strchr(c->listen.tcp, ':'))
		return refuse(l, key(listen_keys, "tcp"), "listen.tcp: \"%.100s\" must be HOST:PORT", c->listen.tcp);
	if (*c->listen.tcp && !*c->tls.cert && !*c->listen.token_file)
		return refuse(l, key(listen_keys, "tcp"),
			      "listen.tcp: TCP on %.100s needs tls.cert, tls.key and tls.ca, or listen.token_file",
			      c->listen.tcp);
	if (*c->cluster.coordinator && !strchr(c->cluster.coordinator, ':'))
		return refuse(l, key(cluster_keys, "coordinator"), "cluster.coordinator: \"%.100s\" must be HOST:PORT",
			      c->cluster.coordinator);
	if (*c->cluster.coordinator && !*c->tls.cert && !*c->cluster.token_file)
		return refuse(l, key(cluster_keys, "coordinator"),
			      "cluster.coordinator: a link to %.100s needs tls.cert, tls.key and tls.ca, or "
			      "cluster.token_file",
			      c->cluster.coordinator);
	if (*c->cluster.coordinator && !node_name_ok(c->node.name, strlen(c->node.name)))
		return refuse(l, key(node_keys, "name"),
			      "node.name: \"%.100s\" must be 1 to 64 letters, digits and .-_ in a cluster",
			      c->node.name);
	if (*c->listen.tcp && !*c->tls.cert && !is_loopback(c->listen.tcp))
		return refuse(
			l, key(listen_keys, "tcp"),
			"listen.tcp: TCP on %.100s needs tls.cert, tls.key and tls.ca; a token alone is allowed on "
			"127.0.0.1 and [::1] only",
			c->listen.tcp);
	if (*c->cluster.coordinator && !*c->tls.cert && !is_loopback(c->cluster.coordinator))
		return refuse(
			l, key(cluster_keys, "coordinator"),
			"cluster.coordinator: a link to %.100s needs tls.cert, tls.key and tls.ca; a token alone is "
			"allowed on 127.0.0.1 and [::1] only",
			c->cluster.coordinator);
	struct in_addr v4;
	struct in6_addr v6;
	if (inet_pton(AF_INET, c->node.data_address, &v4) != 1 && inet_pton(AF_INET6, c->node.data_address, &v6) != 1)
		return refuse(l, key(node_keys, "data_address"),
			      "node.data_address: \"%.100s\" must be an IP address, 10.0.0.7 or fd00::7",
			      c->node.data_address);
	if (*c->cluster.coordinator && !is_loopback(c->cluster.coordinator) && is_hidden_ip(c->node.data_address))
		return refuse(
			l, key(node_keys, "data_address"),
			"node.data_address: the engines of other nodes cannot reach this one's at %.100s; set it to "
			"this node's IP address on the data network, or name the coordinator by 127.0.0.1 or [::1] if "
			"it is on this machine, too",
			c->node.data_address);
	if (!*c->tls.cert != !*c->tls.key || !*c->tls.cert != !*c->tls.ca)
		return refuse(l,
			      key(tls_keys, *c->tls.cert  ? "cert"
					    : *c->tls.key ? "key"
							  : "ca"),
			      "tls: cert, key and ca belong together: %s is missing",
			      !*c->tls.cert  ? "cert"
			      : !*c->tls.key ? "key"
					     : "ca");
	if (c->limits.jobs_per_user > c->limits.jobs)
		return refuse(l, key(limits_keys, "jobs_per_user"),
			      "limits.jobs_per_user: %u must not exceed limits.jobs (%u)", c->limits.jobs_per_user,
			      c->limits.jobs);
	return ST_OK;
}

enum status conf_load(const struct conf_sources *from, struct conf **out, char *why, size_t n_why)
{
	struct loaded *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	enum status st = yaml_init(keys, &l->conf, &l->origins, &l->error);
	if (st == ST_OK)
		st = from_file(l, from->file);
	if (st == ST_OK && from->environment)
		st = set_from_environment(l, keys, "", from->environment);
	if (st == ST_OK)
		st = set_from_arguments(l, from->set);
	if (st == ST_OK)
		st = fill_in(&l->conf);
	if (st == ST_OK) {
		follow(l);
		st = check(l);
	}
	if (st) {
		snprintf(why, n_why, "%s", *l->error.text ? l->error.text : status_info(st)->text);
		conf_free(&l->conf);
		return st == ST_INVALID_ARGUMENT ? ST_INVALID_CONFIG : st;
	}
	*out = &l->conf;
	return ST_OK;
}

void conf_free(struct conf *c)
{
	if (!c)
		return;
	free(c->listen.attach_socket);
	yaml_fini(keys, c);
	free((struct loaded *)c);
}

void conf_print(const struct conf *c, FILE *to)
{
	yaml_print(keys, c, &((const struct loaded *)c)->origins, to);
}

bool conf_each(const struct conf *c, bool (*fn)(void *arg, const char *key, const char *value, const char *origin),
	       void *arg)
{
	return yaml_each(keys, c, &((const struct loaded *)c)->origins, fn, arg);
}

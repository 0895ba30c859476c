/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the gaccds of `gaccctl cluster`, with a configuration that says all on the command line. gaccctl's main
 * thread. */
#include "cluster.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define WORD_ROOM 192

/* ---- what connects several nodes ---- */

/* Nobody listens there now. It is the kernel's choice, so that it hardly chooses the same again before gaccd listens.
 */
static int free_port(uint16_t *out)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), err = 0;

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, n) || getsockname(fd, (struct sockaddr *)&at, &n))
		err = errno;
	if (fd >= 0)
		close(fd);
	*out = ntohs(at.sin_port);
	return err;
}

/* 256 random bits in hexadecimal, for our eyes alone. */
static int write_token(const char *path)
{
	unsigned char secret[32];
	char text[2 * sizeof(secret) + 1];
	int fd, err = 0;

	if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
		return errno;
	for (size_t i = 0; i < sizeof(secret); i++)
		snprintf(text + 2 * i, 3, "%02x", secret[i]);
	unlink(path); /* of a start that failed */
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	errno = EIO;
	if (write(fd, text, sizeof(text) - 1) != (ssize_t)sizeof(text) - 1)
		err = errno;
	if (close(fd) && !err)
		err = errno;
	return err;
}

static void token_path(const struct cluster *c, char out[CLUSTER_PATH])
{
	snprintf(out, CLUSTER_PATH, "%s/token", c->dir);
}

int cluster_connect_nodes(struct cluster *c)
{
	char path[CLUSTER_PATH];
	uint16_t port;
	int err = free_port(&port);

	if (err)
		return err;
	snprintf(c->address, sizeof(c->address), "127.0.0.1:%u", port);
	token_path(c, path);
	return write_token(path);
}

/* ---- a process ---- */

/* Our environment with TMPDIR=dir: the supervisor's socket belongs there, too. NULL without memory; the last string and
 * the list are the caller's. */
static char **environment_in(const char *dir)
{
	size_t n = 0, kept = 0;
	char **list;

	while (environ[n])
		n++;
	list = calloc(n + 2, sizeof(*list));
	for (size_t i = 0; list && i < n; i++)
		if (strncmp(environ[i], "TMPDIR=", 7) != 0)
			list[kept++] = environ[i];
	if (list && asprintf(&list[kept], "TMPDIR=%s", dir) < 0) {
		free(list);
		return NULL;
	}
	return list;
}

static int spawn(char **argv, char **envp, const char *log, pid_t *out)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int err;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	err = posix_spawnp(out, argv[0], &actions, &attr, argv, envp);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return err;
}

/* The words of a command line that is made here. */
struct words {
	char word[12][WORD_ROOM]; /* "KEY=VALUE", after "--set" each */
	size_t n;
};

static void set(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void set(struct words *w, const char *fmt, ...)
{
	va_list ap;

	assert(w->n < sizeof(w->word) / sizeof(w->word[0]));
	va_start(ap, fmt);
	vsnprintf(w->word[w->n++], WORD_ROOM, fmt, ap);
	va_end(ap);
}

/* Certificates, as the network between namespaces is none of loopback. */
static void set_tls(const struct cluster *c, uint32_t i, struct words *w)
{
	char cert[CLUSTER_PATH], key[CLUSTER_PATH], address[CLUSTER_ADDRESS];

	cluster_net_cert(c, i, "pem", cert);
	cluster_net_cert(c, i, "key", key);
	cluster_net_address(i, address);
	set(w, "tls.cert=%s", cert);
	set(w, "tls.key=%s", key);
	set(w, "tls.ca=%s/certs/ca.pem", c->dir);
	set(w, "node.data_address=%s", address);
}

static void set_token(const struct cluster *c, uint32_t i, struct words *w)
{
	char token[CLUSTER_PATH];

	token_path(c, token);
	set(w, i ? "cluster.token_file=%s" : "listen.token_file=%s", token);
}

/* Node 0 listens, the others dial it. They share this machine's processors. */
static void set_keys(const struct cluster *c, uint32_t i, struct words *w)
{
	const struct cluster_node *node = &c->node[i];
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	set(w, "listen.socket=%s/gaccd.sock", node->dir);
	set(w, "state_dir=%s/state", node->dir);
	set(w, "runtime_dir=%s/run", node->dir);
	set(w, "log.format=text");
	if (c->n == 1)
		return;
	set(w, "node.name=%s", node->name);
	set(w, "engine.threads=%ld", cpus > (long)c->n ? cpus / (long)c->n : 1);
	set(w, i ? "cluster.coordinator=%s" : "listen.tcp=%s", c->address);
	if (*c->net)
		set_tls(c, i, w);
	else
		set_token(c, i, w);
}

/* `ip netns exec NAME`, which becomes the program. How many words those are. */
static size_t enter(const struct cluster *c, uint32_t i, char name[CLUSTER_NETNS], const char *argv[])
{
	if (!*c->net)
		return 0;
	cluster_net_name(c, i, name);
	argv[0] = "ip";
	argv[1] = "netns";
	argv[2] = "exec";
	argv[3] = name;
	return 4;
}

int cluster_spawn(struct cluster *c, uint32_t i, const char *gaccd)
{
	struct cluster_node *node = &c->node[i];
	char config[CLUSTER_PATH], log[CLUSTER_PATH];
	char name[CLUSTER_NETNS];
	const char *argv[9 + 2 * sizeof(((struct words *)0)->word) / WORD_ROOM] = { NULL };
	size_t argc = enter(c, i, name, argv);
	struct words w = { .n = 0 };
	char **envp, **last;
	FILE *f;
	int err;

	snprintf(config, sizeof(config), "%s/gaccd.yaml",
		 node->dir); /* empty: the machine's own is for its own gaccd */
	snprintf(log, sizeof(log), "%s/log", node->dir);
	argv[argc++] = gaccd;
	argv[argc++] = "--supervise";
	argv[argc++] = "--config";
	argv[argc++] = config;
	set_keys(c, i, &w);
	for (size_t k = 0; k < w.n; k++) {
		argv[argc++] = "--set";
		argv[argc++] = w.word[k];
	}
	f = fopen(config, "we");
	if (!f || fclose(f))
		return errno;
	envp = environment_in(node->dir);
	if (!envp)
		return ENOMEM;
	err = spawn((char **)(uintptr_t)argv, envp, log, &node->pid);
	for (last = envp; last[1];)
		last++;
	free(*last);
	free(envp);
	if (!err)
		node->start = cluster_start_of(node->pid);
	return err;
}

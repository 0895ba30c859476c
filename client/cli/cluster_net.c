/* SPDX-License-Identifier: Apache-2.0 */
/* Gives each gaccd of `gaccctl cluster up --netns` a network of its own, as on machines of their own: a namespace with
 * one interface, on a bridge that is in a namespace, too. So nothing is changed in the namespace of the caller, and
 * what is made goes with the namespaces. By ip(8) of iproute2, and make-certs.sh for the certificates. gaccctl's main
 * thread.
 */
#include "cluster.h"

#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMESPACES "/run/netns/" /* where ip(8) keeps them */
#define PORT 17420
#define WORD_ROOM 128
#define MAX_WORDS (CLUSTER_NODES + 4)

/* ---- programs ---- */

/* The words of a command, ended by NULL. 0: it exited with 0; errno; ECHILD: it failed, and has said why on stderr. */
static int run(const char *const argv[])
{
	posix_spawn_file_actions_t actions;
	int status, err;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	err = posix_spawnp(&pid, argv[0], &actions, NULL, (char **)(uintptr_t)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (err)
		return err;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : ECHILD;
}

static int ip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ip(8) with these words, which have no spaces in them. */
static int ip(const char *fmt, ...)
{
	char text[WORD_ROOM * 2], *rest = text;
	const char *argv[20] = { "ip" };
	size_t n = 1;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	while (n < sizeof(argv) / sizeof(argv[0]) - 1 && (argv[n] = strsep(&rest, " ")))
		n++;
	return run(argv);
}

/* ---- names ---- */

void cluster_net_name(const struct cluster *c, uint32_t i, char out[CLUSTER_NETNS])
{
	snprintf(out, CLUSTER_NETNS, "gacc-%s-%u", c->net, i);
}

void cluster_net_address(uint32_t i, char out[CLUSTER_ADDRESS])
{
	snprintf(out, CLUSTER_ADDRESS, "10.71.0.%u", i + 1);
}

static void switch_name(const struct cluster *c, char out[CLUSTER_NETNS])
{
	snprintf(out, CLUSTER_NETNS, "gacc-%s-switch", c->net);
}

static bool exists(const char *name)
{
	char path[sizeof(NAMESPACES) + CLUSTER_NETNS];

	snprintf(path, sizeof(path), NAMESPACES "%s", name);
	return !access(path, F_OK);
}

/* One that no namespace has so far. 0 or errno. */
static int choose_id(struct cluster *c)
{
	char name[CLUSTER_NETNS];
	uint32_t id;

	do {
		if (getrandom(&id, sizeof(id), 0) != sizeof(id))
			return errno;
		snprintf(c->net, sizeof(c->net), "%06x", id & 0xffffff);
		switch_name(c, name);
	} while (exists(name));
	return 0;
}

/* ---- the network ---- */

static int make_switch(const char *at)
{
	int err = ip("netns add %s", at);

	if (!err)
		err = ip("-n %s link add switch type bridge", at);
	return err ? err : ip("-n %s link set switch up", at);
}

static int plug_in(const struct cluster *c, const char *at, uint32_t i)
{
	char node[CLUSTER_NETNS], address[CLUSTER_ADDRESS];
	int err;

	cluster_net_name(c, i, node);
	cluster_net_address(i, address);
	err = ip("netns add %s", node);
	if (!err)
		err = ip("-n %s link add port%u type veth peer name data netns %s", at, i, node);
	if (!err)
		err = ip("-n %s link set port%u master switch up", at, i);
	if (!err)
		err = ip("-n %s address add %s/24 dev data", node, address);
	if (!err)
		err = ip("-n %s link set data up", node);
	return err ? err : ip("-n %s link set lo up", node);
}

bool cluster_net_wanted(struct invocation *inv, struct cluster *c, uint32_t n, int *st)
{
	if (n < 2)
		*st = fail_usage(inv, "--netns needs --nodes 2 or more");
	else if (geteuid())
		*st = fail_with(inv, EXIT_FAILED, "CLUSTER",
				"without --netns the nodes share loopback, and anybody may start them",
				"--netns makes network namespaces, which only root may do");
	else if (run((const char *const[]){ "ip", "netns", "list", NULL }))
		*st = fail_with(inv, EXIT_FAILED, "CLUSTER", "install the package iproute2",
				"--netns needs the program ip, which cannot be run");
	else if (choose_id(c))
		*st = fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "no random number: %s", strerror(errno));
	else
		return true;
	return false;
}

int cluster_net_make(struct cluster *c)
{
	char at[CLUSTER_NETNS], first[CLUSTER_ADDRESS];
	int err;

	cluster_net_address(0, first);
	snprintf(c->address, sizeof(c->address), "%s:%d", first, PORT);
	switch_name(c, at);
	err = make_switch(at);
	for (uint32_t i = 0; i < c->n && !err; i++)
		err = plug_in(c, at, i);
	return err;
}

static void remove_one(const char *name)
{
	if (exists(name))
		ip("netns delete %s", name);
}

void cluster_net_remove(const struct cluster *c)
{
	char name[CLUSTER_NETNS];

	if (!*c->net)
		return;
	for (uint32_t i = 0; i < c->n; i++) {
		cluster_net_name(c, i, name);
		remove_one(name);
	}
	switch_name(c, name);
	remove_one(name);
}

/* ---- certificates ---- */

/* As it was built or installed: bin/gaccctl has share/gacc/make-certs.sh beside its bin. */
static bool find_script(char out[PATH_MAX])
{
	char self[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	return slash &&
	       snprintf(out, PATH_MAX, "%.*s/../share/gacc/make-certs.sh", (int)(slash - self), self) < PATH_MAX &&
	       !access(out, R_OK);
}

void cluster_net_cert(const struct cluster *c, uint32_t i, const char *end, char out[CLUSTER_PATH])
{
	snprintf(out, CLUSTER_PATH, "%s/certs/%s-%s.%s", c->dir, i ? "node" : "coordinator", c->node[i].name, end);
}

int cluster_net_certify(const struct cluster *c)
{
	char script[PATH_MAX], dir[CLUSTER_PATH], word[CLUSTER_NODES][WORD_ROOM], address[CLUSTER_ADDRESS];
	const char *argv[MAX_WORDS] = { "sh", script, dir };

	if (!find_script(script))
		return ENOENT;
	snprintf(dir, sizeof(dir), "%s/certs", c->dir);
	for (uint32_t i = 0; i < c->n; i++) {
		cluster_net_address(i, address);
		snprintf(word[i], WORD_ROOM, "%s/%s=%s", i ? "node" : "coordinator", c->node[i].name, address);
		argv[3 + i] = word[i];
	}
	return run(argv);
}

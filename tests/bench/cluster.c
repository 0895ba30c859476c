/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include <arpa/inet.h>
#include <assert.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define LINK_TRIES 500
#define ADDRESS_BYTES 24

/* What gaccd reads from its environment. */
static const char *const keys[] = { "GACC_NODE_NAME", "GACC_LISTEN_TCP", "GACC_LISTEN_TOKEN_FILE",
				    "GACC_CLUSTER_COORDINATOR", "GACC_CLUSTER_TOKEN_FILE" };

static void free_address(char out[ADDRESS_BYTES])
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, n) || getsockname(fd, (struct sockaddr *)&at, &n))
		bench_die("no port on loopback");
	close(fd);
	snprintf(out, ADDRESS_BYTES, "127.0.0.1:%u", ntohs(at.sin_port));
}

static void make_token(struct cluster *c)
{
	uint64_t words[4];
	snprintf(c->token, sizeof(c->token), "/tmp/gacc-token-XXXXXX");
	int fd = mkstemp(c->token);
	if (fd < 0 || getrandom(words, sizeof(words), 0) != sizeof(words))
		bench_die("cannot make a token");
	for (int i = 0; i < 4; i++)
		dprintf(fd, "%016llx", (unsigned long long)words[i]);
	close(fd);
}

/* Whether the coordinator has as many nodes that are up. */
static bool all_up(const struct cluster *c)
{
	char program[PATH_MAX], command[PATH_MAX + 256], line[256];
	int up = 0;
	bench_program("gaccctl", program, sizeof(program));
	snprintf(command, sizeof(command), "GACC_ENDPOINT='%s' '%s' nodes", c->node[0].endpoint, program);
	FILE *f = popen(command, "re");
	if (!f)
		bench_die("cannot run gaccctl");
	while (fgets(line, sizeof(line), f))
		up += strstr(line, " UP ") != NULL;
	pclose(f);
	return up == c->n;
}

void cluster_start(struct cluster *c, int n, unsigned threads)
{
	char address[ADDRESS_BYTES], name[] = "a";
	assert(n >= 1 && n <= CLUSTER_MAX);
	*c = (struct cluster){ .n = n };
	if (n == 1) {
		bench_daemon_start(&c->node[0], threads);
		return;
	}
	make_token(c);
	free_address(address);
	for (int i = 0; i < n; i++) {
		name[0] = (char)('a' + i);
		setenv("GACC_NODE_NAME", name, 1);
		setenv(i ? "GACC_CLUSTER_COORDINATOR" : "GACC_LISTEN_TCP", address, 1);
		setenv(i ? "GACC_CLUSTER_TOKEN_FILE" : "GACC_LISTEN_TOKEN_FILE", c->token, 1);
		bench_daemon_start(&c->node[i], threads);
		for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++)
			unsetenv(keys[k]);
	}
	for (int tries = 0; !all_up(c); tries++) {
		if (tries == LINK_TRIES)
			bench_die("the nodes do not become a cluster");
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
}

void cluster_stop(struct cluster *c)
{
	for (int i = c->n; i--;)
		bench_daemon_stop(&c->node[i]);
	if (*c->token)
		unlink(c->token);
}

struct bench_group cluster_group(const struct cluster *c)
{
	struct bench_group g = { .pid = { getpid() }, .n = 1 };
	for (int i = 0; i < c->n; i++) {
		g.pid[g.n++] = c->node[i].pid;
		g.n += bench_children(c->node[i].pid, g.pid + g.n, BENCH_MAX_PROCESSES - g.n);
	}
	return g;
}

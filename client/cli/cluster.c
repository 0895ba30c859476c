/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl cluster up, down, status: a private gaccd to try things with, in a directory of its own. gaccctl's main
 * thread. */
#include "cluster.h"

#include "follow.h"
#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 15000
#define END_MS 15000
#define LOOK_MS 20
#define LAST_LINES 10

static bool connect_to(struct invocation *inv, const struct cluster *c, int *st)
{
	gacc_status got = gacc_open(c->endpoint, &inv->client);

	if (got)
		*st = fail_with(inv, exit_status_of(got), status_name(got), NULL, "%s: %s", c->endpoint,
				gacc_strerror(got));
	else
		gacc_set_timeout(inv->client, 2000);
	return !got;
}

/* ---- up ---- */

/* Beside this program, as it was built or installed; else by PATH. */
static void find_gaccd(struct invocation *inv, char out[PATH_MAX])
{
	static const char *const places[] = { "gaccd", "../sbin/gaccd" };
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (opt(inv, "gaccd")) {
		snprintf(out, PATH_MAX, "%s", opt(inv, "gaccd"));
		return;
	}
	self[n > 0 ? n : 0] = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char *slash = strrchr(self, '/');

		if (slash && snprintf(out, PATH_MAX, "%.*s/%s", (int)(slash - self), self, places[i]) < PATH_MAX &&
		    !access(out, X_OK))
			return;
	}
	snprintf(out, PATH_MAX, "gaccd");
}

static int say_up(struct invocation *inv, const struct cluster *c, const char *how)
{
	if (wants_data(inv))
		return print_jsonf(inv, "{\"endpoint\":\"%s\",\"directory\":\"%s\",\"pid\":%d}", c->endpoint, c->dir,
				   (int)c->pid);
	if (inv->format == FORMAT_NAME) {
		fprintf(inv->out, "%s\n", c->endpoint);
		return EXIT_OK;
	}
	fprintf(inv->out, "export GACC_ENDPOINT=%s\n", c->endpoint);
	fprintf(inv->err, "gaccd (pid %d) %s in %s; end it with: gaccctl cluster down\n", (int)c->pid, how, c->dir);
	return EXIT_OK;
}

static int did_not_start(struct invocation *inv, const struct cluster *c, const char *why)
{
	struct follower last = { .fd = -1, .tail = LAST_LINES };
	int st = fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "gaccd %s; its last lines:", why);

	snprintf(last.path, sizeof(last.path), "%s/log", c->dir);
	follower_pump(&last, inv->err, true);
	follower_fini(&last);
	return st;
}

static int await_ready(struct invocation *inv, const struct cluster *c)
{
	gacc_node_info *node;

	for (int ms = 0; ms < READY_MS; ms += LOOK_MS) {
		if (!gacc_node_get(inv->client, &node)) {
			gacc_node_free(node);
			return say_up(inv, c, "runs");
		}
		if (waitpid(c->pid, NULL, WNOHANG) == c->pid) {
			int st = did_not_start(inv, c, "ended at once");

			cluster_remove(c);
			return st;
		}
		poll(NULL, 0, LOOK_MS);
	}
	return did_not_start(inv, c, "does not answer");
}

static int start(struct invocation *inv, struct cluster *c)
{
	char gaccd[PATH_MAX];
	int err, st;

	err = cluster_make_dir(c);
	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", "choose another with --dir", "%s: %s", c->dir,
				 err == EPERM ? "exists, and is not a private directory of yours" : strerror(err));
	find_gaccd(inv, gaccd);
	err = cluster_spawn(c, gaccd);
	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", "say where it is with --gaccd",
				 "%s cannot be started: %s", gaccd, strerror(err));
	err = cluster_save(c);
	if (err) {
		kill(c->pid, SIGTERM);
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s cannot be written: %s", c->dir, strerror(err));
	}
	return connect_to(inv, c, &st) ? await_ready(inv, c) : st;
}

static int up(struct invocation *inv, struct cluster *c)
{
	bool known = cluster_load(c);
	int process = known ? cluster_process(c) : -1;

	if (process >= 0) {
		close(process);
		return say_up(inv, c, "runs already");
	}
	if (known)
		cluster_remove(c); /* of one that died */
	return start(inv, c);
}

/* ---- down ---- */

/* Jobs first: their ranks may be processes of their own, that would look for a gaccd that does not come back. */
static void end_jobs(struct invocation *inv)
{
	gacc_jobs *jobs, *one;
	size_t n = 1;

	for (int ms = 0; n && ms < END_MS; ms += LOOK_MS) {
		if (gacc_job_list(inv->client, 0, &jobs))
			return;
		n = jobs->n;
		for (size_t i = 0; i < n && !ms; i++) {
			char id[24];

			snprintf(id, sizeof(id), "%" PRIu64, jobs->job[i].id);
			if (!gacc_job_cancel(inv->client, id, "gaccctl cluster down", 0, &one))
				gacc_jobs_free(one);
		}
		gacc_jobs_free(jobs);
		if (n)
			poll(NULL, 0, LOOK_MS);
	}
}

static int end_process(struct invocation *inv, const struct cluster *c, int process)
{
	struct pollfd p = { .fd = process, .events = POLLIN };

	syscall(SYS_pidfd_send_signal, process, SIGTERM, NULL, 0);
	if (poll(&p, 1, END_MS) == 1)
		return EXIT_OK;
	return fail_with(inv, EXIT_TIMED_OUT, "CLUSTER", NULL, "gaccd (pid %d) does not end; its log is %s/log",
			 (int)c->pid, c->dir);
}

static int no_cluster(struct invocation *inv, const struct cluster *c)
{
	return fail_with(inv, EXIT_NOT_FOUND, "CLUSTER_NOT_FOUND", "start one with: gaccctl cluster up",
			 "no cluster in %s", c->dir);
}

static int down(struct invocation *inv, struct cluster *c)
{
	int process, err, st = EXIT_OK;

	if (!cluster_load(c))
		return no_cluster(inv, c);
	process = cluster_process(c);
	if (process >= 0) {
		if (connect_to(inv, c, &st))
			end_jobs(inv);
		st = end_process(inv, c, process);
		close(process);
	}
	if (st)
		return st;
	err = cluster_remove(c);
	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s cannot be deleted: %s", c->dir, strerror(err));
	fprintf(inv->err, "gaccd (pid %d) has ended; %s is deleted\n", (int)c->pid, c->dir);
	return EXIT_OK;
}

/* ---- status ---- */

static int status(struct invocation *inv, struct cluster *c)
{
	int process, st = EXIT_OK;
	gacc_node_info *node;

	if (!cluster_load(c))
		return no_cluster(inv, c);
	process = cluster_process(c);
	if (process < 0)
		return fail_with(inv, EXIT_UNHEALTHY, "CLUSTER", "gaccctl cluster up starts another",
				 "the gaccd (pid %d) in %s has died", (int)c->pid, c->dir);
	close(process);
	if (!connect_to(inv, c, &st))
		return st;
	if (gacc_node_get(inv->client, &node))
		return fail_client(inv);
	if (wants_data(inv) || inv->format == FORMAT_NAME)
		st = say_up(inv, c, "");
	else
		tell(inv->out, "up: gaccd %s, pid %d, %u jobs, %s\n", node->version, (int)c->pid, node->jobs,
		     c->endpoint);
	gacc_node_free(node);
	return st;
}

int cmd_cluster(struct invocation *inv)
{
	static const struct {
		const char *word;
		int (*run)(struct invocation *inv, struct cluster *c);
	} words[] = { { "up", up }, { "down", down }, { "status", status } };
	const char *nodes = opt(inv, "nodes");
	struct cluster c;
	int st;

	if (nodes && strcmp(nodes, "1"))
		return fail_usage(inv, "--nodes %s: this version runs jobs on one node", nodes);
	if (!cluster_place(inv, &c, &st))
		return st;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(inv->operand[0], words[i].word))
			return words[i].run(inv, &c);
	return fail_usage(inv, "cluster %s: up, down or status is needed", inv->operand[0]);
}

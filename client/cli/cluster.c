/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl cluster up, down, status: a private gaccd, or several that are one cluster, to try things with, in a
 * directory of their own. gaccctl's main thread. */
#include "cluster.h"

#include "follow.h"
#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
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

/* To that node; the client before, if any, is closed. */
static bool connect_to(struct invocation *inv, const struct cluster_node *node, int *st)
{
	gacc_status got;

	gacc_close(inv->client);
	inv->client = NULL;
	got = gacc_open(node->endpoint, &inv->client);
	if (got)
		*st = fail_with(inv, exit_status_of(got), status_name(got), NULL, "%s: %s", node->endpoint,
				gacc_strerror(got));
	else
		gacc_set_timeout(inv->client, 2000);
	return !got;
}

static const char *name_of(const struct cluster_node *node)
{
	return *node->name ? node->name : "gaccd";
}

/* The pidfds of all that live, -1 for others; how many do. */
static uint32_t open_processes(const struct cluster *c, int process[CLUSTER_NODES])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		process[i] = cluster_process(&c->node[i]);
		n += process[i] >= 0;
	}
	return n;
}

static void close_processes(const struct cluster *c, const int process[CLUSTER_NODES])
{
	for (uint32_t i = 0; i < c->n; i++)
		if (process[i] >= 0)
			close(process[i]);
}

/* Those first that dial the one that coordinates. */
static bool end_processes(struct invocation *inv, const struct cluster *c, const int process[CLUSTER_NODES], int *st)
{
	for (uint32_t i = c->n; i--;) {
		struct pollfd p = { .fd = process[i], .events = POLLIN };

		if (process[i] < 0)
			continue;
		syscall(SYS_pidfd_send_signal, process[i], SIGTERM, NULL, 0);
		if (poll(&p, 1, END_MS) == 1)
			continue;
		*st = fail_with(inv, EXIT_TIMED_OUT, "CLUSTER", NULL, "%s (pid %d) does not end; its log is %s/log",
				name_of(&c->node[i]), (int)c->node[i].pid, c->node[i].dir);
		return false;
	}
	return true;
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

static json_t *json_of_node(const struct cluster *c, uint32_t i)
{
	const struct cluster_node *node = &c->node[i];
	json_t *one = json_pack("{s:s, s:s, s:s, s:i}", "name", node->name, "endpoint", node->endpoint, "directory",
				node->dir, "pid", (int)node->pid);
	char name[CLUSTER_NETNS];

	if (*c->net) {
		cluster_net_name(c, i, name);
		json_object_set_new(one, "netns", json_string(name));
	}
	return one;
}

/* The one alone, or the one that coordinates, is the object's; with several, "nodes" has them all. */
static json_t *json_of(const struct cluster *c)
{
	json_t *nodes = json_array(), *all;

	for (uint32_t i = 0; i < c->n; i++)
		json_array_append_new(nodes, json_of_node(c, i));
	all = json_pack("{s:s, s:s, s:i}", "endpoint", c->node[0].endpoint, "directory", c->dir, "pid",
			(int)c->node[0].pid);
	if (c->n > 1)
		json_object_set(all, "nodes", nodes);
	json_decref(nodes);
	return all;
}

static int print_cluster(struct invocation *inv, const struct cluster *c)
{
	json_t *all = json_of(c);
	char *text = json_dumps(all, 0);
	int st = text ? print_json(inv, text) : EXIT_FAILED;

	free(text);
	json_decref(all);
	return st;
}

static void say_node(struct invocation *inv, const struct cluster *c, uint32_t i)
{
	const struct cluster_node *node = &c->node[i];
	char name[CLUSTER_NETNS] = "";

	if (*c->net)
		cluster_net_name(c, i, name);
	fprintf(inv->err, "%s (pid %d): GACC_ENDPOINT=%s%s%s%s\n", node->name, (int)node->pid, node->endpoint,
		i ? "" : " (coordinates)", *name ? " in network namespace " : "", name);
}

static int say_up(struct invocation *inv, const struct cluster *c, const char *how)
{
	if (wants_data(inv))
		return print_cluster(inv, c);
	if (inv->format == FORMAT_NAME) {
		for (uint32_t i = 0; i < c->n; i++)
			fprintf(inv->out, "%s\n", c->node[i].endpoint);
		return EXIT_OK;
	}
	fprintf(inv->out, "export GACC_ENDPOINT=%s\n", c->node[0].endpoint);
	if (c->n == 1) {
		fprintf(inv->err, "gaccd (pid %d) %s in %s; end it with: gaccctl cluster down\n", (int)c->node[0].pid,
			how, c->dir);
		return EXIT_OK;
	}
	for (uint32_t i = 0; i < c->n; i++)
		say_node(inv, c, i);
	fprintf(inv->err, "%u gaccds %s in %s; end them with: gaccctl cluster down\n", c->n, how, c->dir);
	return EXIT_OK;
}

static int did_not_start(struct invocation *inv, const struct cluster_node *node, const char *why)
{
	struct follower last = { .fd = -1, .tail = LAST_LINES };
	int st = fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s %s; its last lines:", name_of(node), why);

	snprintf(last.path, sizeof(last.path), "%s/log", node->dir);
	follower_pump(&last, inv->err, true);
	follower_fini(&last);
	return st;
}

/* Of a start that has failed nothing is left. */
static void undo(struct invocation *inv, const struct cluster *c)
{
	int process[CLUSTER_NODES], ignored;

	open_processes(c, process);
	if (end_processes(inv, c, process, &ignored)) {
		cluster_net_remove(c);
		cluster_remove(c);
	}
	close_processes(c, process);
}

static int await_ready(struct invocation *inv, const struct cluster *c, const struct cluster_node *node)
{
	gacc_node_info *info;
	int st;

	if (!connect_to(inv, node, &st))
		return st;
	for (int ms = 0; ms < READY_MS; ms += LOOK_MS) {
		if (!gacc_node_get(inv->client, &info)) {
			gacc_node_free(info);
			return EXIT_OK;
		}
		if (waitpid(node->pid, NULL, WNOHANG) == node->pid) {
			st = did_not_start(inv, node, "ended at once");
			undo(inv, c);
			return st;
		}
		poll(NULL, 0, LOOK_MS);
	}
	return did_not_start(inv, node, "does not answer");
}

/* 0 or errno; with the second, what cannot be done is in out. */
static int prepare(struct cluster *c, const char **out)
{
	int err = cluster_make_dirs(c);

	*out = err == EPERM ? "exists, and is not a private directory of yours" : strerror(err);
	if (err || c->n == 1 || *c->net)
		return err;
	err = cluster_connect_nodes(c);
	*out = strerror(err);
	return err;
}

/* Before the first namespace, so that `cluster down` finds them whatever happens. */
static int prepare_net(struct invocation *inv, struct cluster *c)
{
	int err = cluster_save(c);

	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s cannot be written: %s", c->dir, strerror(err));
	err = cluster_net_certify(c);
	if (err) {
		undo(inv, c);
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "no certificates: make-certs.sh %s",
				 err == ENOENT ? "is not there" : "has failed");
	}
	err = cluster_net_make(c);
	if (err) {
		undo(inv, c);
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL,
				 "the network namespaces cannot be made; nothing of them is left");
	}
	return EXIT_OK;
}

static int start_node(struct invocation *inv, struct cluster *c, uint32_t i, const char *gaccd)
{
	int err = cluster_spawn(c, i, gaccd);

	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", "say where it is with --gaccd",
				 "%s cannot be started: %s", gaccd, strerror(err));
	err = cluster_save(c);
	if (!err)
		return await_ready(inv, c, &c->node[i]);
	kill(c->node[i].pid, SIGTERM);
	return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s cannot be written: %s", c->dir, strerror(err));
}

/* The first one is ready before the others dial it. */
static int start(struct invocation *inv, struct cluster *c, uint32_t n)
{
	char gaccd[PATH_MAX];
	const char *why;
	int st = EXIT_OK;

	cluster_count(c, n);
	if (prepare(c, &why))
		return fail_with(inv, EXIT_FAILED, "CLUSTER", "choose another with --dir", "%s: %s", c->dir, why);
	find_gaccd(inv, gaccd);
	if (*c->net)
		st = prepare_net(inv, c);
	for (uint32_t i = 0; i < n && st == EXIT_OK; i++)
		st = start_node(inv, c, i, gaccd);
	return st == EXIT_OK ? say_up(inv, c, n > 1 ? "run" : "runs") : st;
}

static int up(struct invocation *inv, struct cluster *c)
{
	const bool known = cluster_load(c);
	int process[CLUSTER_NODES], st;
	uint32_t living = 0;
	uint64_t n;

	if (!opt_uint(inv, "nodes", 1, CLUSTER_NODES, known ? c->n : 1, &n, &st))
		return st;
	if (known) {
		living = open_processes(c, process);
		close_processes(c, process);
	}
	if (living && (living < c->n || n != c->n))
		return fail_with(inv, EXIT_FAILED, "CLUSTER", "end it first: gaccctl cluster down",
				 "%u of %u gaccds run in %s", living, c->n, c->dir);
	if (living)
		return say_up(inv, c, n > 1 ? "run already" : "runs already");
	if (known) { /* those have died */
		cluster_net_remove(c);
		cluster_remove(c);
		*c->net = '\0';
	}
	if (opt_flag(inv, "netns") && !cluster_net_wanted(inv, c, (uint32_t)n, &st))
		return st;
	return start(inv, c, (uint32_t)n);
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

static int no_cluster(struct invocation *inv, const struct cluster *c)
{
	return fail_with(inv, EXIT_NOT_FOUND, "CLUSTER_NOT_FOUND", "start one with: gaccctl cluster up",
			 "no cluster in %s", c->dir);
}

static int down(struct invocation *inv, struct cluster *c)
{
	int process[CLUSTER_NODES], err, st = EXIT_OK;
	bool ended;

	if (!cluster_load(c))
		return no_cluster(inv, c);
	open_processes(c, process);
	for (uint32_t i = 0; i < c->n; i++)
		if (process[i] >= 0 && connect_to(inv, &c->node[i], &st))
			end_jobs(inv);
	ended = end_processes(inv, c, process, &st);
	close_processes(c, process);
	if (!ended)
		return st;
	cluster_net_remove(c);
	err = cluster_remove(c);
	if (err)
		return fail_with(inv, EXIT_FAILED, "CLUSTER", NULL, "%s cannot be deleted: %s", c->dir, strerror(err));
	if (c->n == 1)
		fprintf(inv->err, "gaccd (pid %d) has ended; %s is deleted\n", (int)c->node[0].pid, c->dir);
	else
		fprintf(inv->err, "%u gaccds have ended; %s is deleted\n", c->n, c->dir);
	return EXIT_OK;
}

/* ---- status ---- */

static bool wants_lines(const struct invocation *inv)
{
	return !wants_data(inv) && inv->format != FORMAT_NAME;
}

static int ask_node(struct invocation *inv, const struct cluster_node *node)
{
	gacc_node_info *info;
	int st;

	if (!connect_to(inv, node, &st))
		return st;
	if (gacc_node_get(inv->client, &info))
		return fail_client(inv);
	if (wants_lines(inv))
		tell(inv->out, "%s%sup: gaccd %s, pid %d, %u jobs, %s\n", node->name, *node->name ? " " : "",
		     info->version, (int)node->pid, info->jobs, node->endpoint);
	gacc_node_free(info);
	return EXIT_OK;
}

static int say_dead(struct invocation *inv, const struct cluster *c, const struct cluster_node *node)
{
	const bool alone = c->n == 1;

	return fail_with(inv, EXIT_UNHEALTHY, "CLUSTER", alone ? "gaccctl cluster up starts another" : NULL,
			 "%s (pid %d) in %s has died", alone ? "the gaccd" : node->name, (int)node->pid, node->dir);
}

/* The first failure is the exit status; as data it is all that is printed. */
static int status(struct invocation *inv, struct cluster *c)
{
	int process[CLUSTER_NODES], st = EXIT_OK;

	if (!cluster_load(c))
		return no_cluster(inv, c);
	open_processes(c, process);
	for (uint32_t i = 0; i < c->n && (st == EXIT_OK || wants_lines(inv)); i++) {
		int one = process[i] >= 0 ? ask_node(inv, &c->node[i]) : say_dead(inv, c, &c->node[i]);

		st = st ? st : one;
	}
	close_processes(c, process);
	return st == EXIT_OK && !wants_lines(inv) ? say_up(inv, c, "") : st;
}

int cmd_cluster(struct invocation *inv)
{
	static const struct {
		const char *word;
		int (*run)(struct invocation *inv, struct cluster *c);
	} words[] = { { "up", up }, { "down", down }, { "status", status } };
	struct cluster c;
	int st;

	if (!cluster_place(inv, &c, &st))
		return st;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(inv->operand[0], words[i].word))
			return words[i].run(inv, &c);
	return fail_usage(inv, "cluster %s: up, down or status is needed", inv->operand[0]);
}

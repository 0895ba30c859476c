/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of `gaccctl cluster`: finding and making it, the file cluster.json, and whether the processes in it
 * still are the gaccds that were started. gaccctl's main thread. */
#include "cluster.h"

#include "output.h"

#include <assert.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATE_FILE "cluster.json"
#define NFTW_DESCRIPTORS 16

/* It becomes part of an endpoint, and of a line for the shell. */
static bool is_plain(const char *path)
{
	return !path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@,=")];
}

bool cluster_place(struct invocation *inv, struct cluster *c, int *st)
{
	const char *dir = opt(inv, "dir"), *runtime = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
	int n;

	*c = (struct cluster){ 0 };
	if (dir)
		n = snprintf(c->dir, sizeof(c->dir), "%s", dir);
	else if (runtime && *runtime == '/')
		n = snprintf(c->dir, sizeof(c->dir), "%s/gacc-cluster", runtime);
	else
		n = snprintf(c->dir, sizeof(c->dir), "%s/gacc-cluster-%u", tmp && *tmp == '/' ? tmp : "/tmp",
			     (unsigned)getuid());
	if (n >= (int)sizeof(c->dir) || c->dir[0] != '/') {
		*st = fail_usage(inv, "--dir %s: an absolute path of less than %zu bytes is needed", c->dir,
				 sizeof(c->dir));
		return false;
	}
	if (!is_plain(c->dir)) {
		*st = fail_usage(inv, "--dir %s: only letters, digits and /._-+@,= may be in it", c->dir);
		return false;
	}
	return true;
}

/* One alone needs no name, and no directory besides the cluster's. */
void cluster_count(struct cluster *c, uint32_t n)
{
	assert(n > 0 && n <= CLUSTER_NODES);
	c->n = n;
	for (uint32_t i = 0; i < n; i++) {
		struct cluster_node *node = &c->node[i];

		*node = (struct cluster_node){ 0 };
		if (n > 1)
			snprintf(node->name, sizeof(node->name), "node%u", i);
		if (n > 1)
			snprintf(node->dir, sizeof(node->dir), "%s/node-%u", c->dir, i);
		else
			snprintf(node->dir, sizeof(node->dir), "%s", c->dir);
		snprintf(node->endpoint, sizeof(node->endpoint), "unix:%s/gaccd.sock", node->dir);
	}
}

static void path_in(const struct cluster *c, const char *name, char out[CLUSTER_PATH])
{
	snprintf(out, CLUSTER_PATH, "%s/%s", c->dir, name);
}

/* ---- cluster.json ---- */

static bool load_node(const json_t *state, struct cluster_node *node)
{
	json_int_t pid, start;

	if (json_unpack((json_t *)(uintptr_t)state, "{s:I, s:I}", "pid", &pid, "start", &start) || pid < 0 || start < 0)
		return false;
	node->pid = (pid_t)pid;
	node->start = (uint64_t)start;
	return true;
}

/* Six hexadecimal digits: it becomes part of names that are given to ip(8). */
static bool is_id(const char *text)
{
	return strlen(text) == 6 && strspn(text, "0123456789abcdef") == 6;
}

bool cluster_load(struct cluster *c)
{
	char path[CLUSTER_PATH];
	json_t *state, *nodes;
	const char *net;
	size_t n;
	bool ok;

	path_in(c, STATE_FILE, path);
	state = json_load_file(path, 0, NULL);
	nodes = json_object_get(state, "nodes");
	n = json_array_size(nodes);
	ok = n > 0 && n <= CLUSTER_NODES;
	if (ok)
		cluster_count(c, (uint32_t)n);
	net = json_string_value(json_object_get(state, "net"));
	snprintf(c->net, sizeof(c->net), "%s", net && is_id(net) ? net : "");
	for (size_t i = 0; i < n && ok; i++)
		ok = load_node(json_array_get(nodes, i), &c->node[i]);
	json_decref(state);
	return ok;
}

int cluster_save(const struct cluster *c)
{
	json_t *nodes = json_array(), *state;
	char path[CLUSTER_PATH], temporary[CLUSTER_PATH];
	int err = ENOMEM;

	for (uint32_t i = 0; i < c->n; i++)
		json_array_append_new(nodes, json_pack("{s:I, s:I, s:s}", "pid", (json_int_t)c->node[i].pid, "start",
						       (json_int_t)c->node[i].start, "endpoint", c->node[i].endpoint));
	state = json_array_size(nodes) == c->n ? json_pack("{s:O, s:s}", "nodes", nodes, "net", c->net) : NULL;
	path_in(c, STATE_FILE, path);
	path_in(c, STATE_FILE ".new", temporary);
	errno = ENOMEM;
	if (state)
		err = json_dump_file(state, temporary, 0) || rename(temporary, path) ? errno : 0;
	json_decref(state);
	json_decref(nodes);
	return err;
}

/* ---- processes ---- */

/* The 22nd field of stat(5). */
uint64_t cluster_start_of(pid_t pid)
{
	char path[32], text[1024], *p;
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	p = strrchr(text, ')'); /* the name before it may hold anything */
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

/* The descriptor first: from then on the number cannot become another's. One that has ended and was not waited for yet
 * is readable. */
int cluster_process(const struct cluster_node *node)
{
	struct pollfd p = { .fd = node->pid > 0 ? (int)syscall(SYS_pidfd_open, node->pid, 0) : -1, .events = POLLIN };

	if (p.fd >= 0 && (cluster_start_of(node->pid) != node->start || poll(&p, 1, 0))) {
		close(p.fd);
		return -1;
	}
	return p.fd;
}

/* ---- the directory ---- */

static int make_dir(const char *dir)
{
	struct stat st;

	if (!mkdir(dir, 0700))
		return 0;
	if (errno != EEXIST || lstat(dir, &st))
		return errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) ? 0 : EPERM;
}

int cluster_make_dirs(const struct cluster *c)
{
	int err = make_dir(c->dir);

	for (uint32_t i = 0; i < c->n && !err && c->n > 1; i++)
		err = make_dir(c->node[i].dir);
	return err;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

int cluster_remove(const struct cluster *c)
{
	return nftw(c->dir, remove_one, NFTW_DESCRIPTORS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) ? errno : 0;
}

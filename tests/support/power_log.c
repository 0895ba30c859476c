/* SPDX-License-Identifier: Apache-2.0 */
/* The log of what a process does to the files under one directory; it begins with what is there. */
#include "support/power_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Noreturn void power_die(const char *what)
{
	fprintf(stderr, "power: %s: %s\n", what, strerror(errno));
	_exit(1);
}

struct power_log *power_new(void)
{
	struct power_log *l =
		mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (l == MAP_FAILED)
		power_die("mmap");
	return l;
}

size_t power_ops(const struct power_log *l, const struct power_op **out)
{
	*out = l->op;
	return l->n_ops;
}

const unsigned char *power_data(const struct power_log *l, const struct power_op *op)
{
	return l->data + op->data;
}

void power_add(struct power_log *l, const struct power_op *op, const void *data)
{
	size_t n = data ? op->n : 0;
	if (l->n_ops == MAX_OPS || n > MAX_DATA - l->n_data)
		power_die("the log is full");
	l->op[l->n_ops] = *op;
	l->op[l->n_ops].data = l->n_data;
	if (n)
		memcpy(l->data + l->n_data, data, n);
	l->n_data += n;
	l->n_ops++;
}

void power_set_name(char to[POWER_NAME], const char *name)
{
	if (strlen(name) >= POWER_NAME)
		power_die(name);
	memset(to, 0, POWER_NAME);
	strcpy(to, name);
}

int power_node_of(const struct power_log *l, const struct stat *s)
{
	for (int i = l->n_nodes - 1; i >= 0; i--)
		if (l->node[i].ino == s->st_ino && l->node[i].dev == s->st_dev)
			return i;
	return -1;
}

static int new_node(struct power_log *l, const struct stat *s)
{
	if (l->n_nodes == MAX_NODES)
		power_die("too many files");
	l->node[l->n_nodes].dev = s->st_dev;
	l->node[l->n_nodes].ino = s->st_ino;
	return l->n_nodes++;
}

int power_add_create(struct power_log *l, int dir, const char *name, const struct stat *s)
{
	struct power_op op = { .kind = POWER_CREATE,
			       .is_dir = S_ISDIR(s->st_mode),
			       .node = new_node(l, s),
			       .dir = dir,
			       .mode = s->st_mode & 07777,
			       .uid = s->st_uid,
			       .gid = s->st_gid };
	power_set_name(op.name, name);
	power_add(l, &op, NULL);
	return op.node;
}

static void scan(struct power_log *l, int dir_fd, int dir);

static void scan_one(struct power_log *l, int dir_fd, int dir, const char *name)
{
	struct stat s;
	int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &s) || (!S_ISDIR(s.st_mode) && !S_ISREG(s.st_mode)))
		power_die(name);
	int node = power_add_create(l, dir, name, &s);
	if (S_ISDIR(s.st_mode)) {
		scan(l, fd, node);
		return;
	}
	struct power_op op = { .kind = POWER_WRITE, .node = node, .n = (uint64_t)s.st_size };
	unsigned char *data = s.st_size ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
	if (data == MAP_FAILED)
		power_die(name);
	if (data) {
		power_add(l, &op, data);
		munmap(data, (size_t)s.st_size);
	}
	close(fd);
	op = (struct power_op){ .kind = POWER_SYNC, .node = node };
	power_add(l, &op, NULL);
}

/* Takes the descriptor. */
static void scan(struct power_log *l, int dir_fd, int dir)
{
	DIR *d = fdopendir(dir_fd);
	if (!d)
		power_die("fdopendir");
	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			scan_one(l, dir_fd, dir, e->d_name);
	closedir(d);
	struct power_op op = { .kind = POWER_SYNC, .node = dir };
	power_add(l, &op, NULL);
}

void power_begin(struct power_log *l, const char *dir)
{
	struct stat s;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &s))
		power_die(dir);
	madvise(l, sizeof(*l), MADV_REMOVE); /* all zeros */
	new_node(l, &s);
	scan(l, fd, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The disk after a power cut: replays what was noted, syncs included, and draws of what was not synced what has reached
 * the disk. */
#include "support/power_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const power_image_name[] = { "nothing unsynced is left",
					 "names without bytes",
					 "bytes without names",
					 "each directory's first change is lost",
					 "all is left",
					 "drawn" };

struct content {
	unsigned char *data; /* zeros behind `size` */
	size_t size, room;
};

struct meta {
	uint32_t mode, uid, gid;
};

/* Indexes of operations that were not synced. */
struct pending {
	size_t *op, n, room;
};

struct node {
	bool is_dir;
	struct meta meta, later; /* on the disk; and as last changed */
	struct content content;	 /* on the disk */
	struct pending pending;	 /* of a file */
};

struct entry {
	int dir, node;
	const char *name;
};

struct names {
	struct entry *e;
	size_t n, room;
};

struct disk {
	const struct power_log *log;
	const struct power_op *op;
	struct node *node;
	int n_nodes;
	struct names names;	/* on the disk */
	struct pending changed; /* names, in all directories */
	enum power_image image;
	uint64_t rng;
};

static void *grown(void *old, size_t *room, size_t wanted, size_t unit)
{
	size_t n = *room ? *room : 16;
	while (n < wanted)
		n *= 2;
	void *p = realloc(old, n * unit);
	if (!p)
		power_die("realloc");
	*room = n;
	return p;
}

uint64_t power_draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static size_t draw(struct disk *d, size_t n)
{
	return (size_t)(power_draw(&d->rng) % n);
}

static void push(struct pending *p, size_t op)
{
	if (p->n == p->room)
		p->op = grown(p->op, &p->room, p->n + 1, sizeof(*p->op));
	p->op[p->n++] = op;
}

/* ---- bytes ---- */

static void resize(struct content *c, size_t size)
{
	if (size > c->room) {
		size_t had = c->room;
		c->data = grown(c->data, &c->room, size, 1);
		memset(c->data + had, 0, c->room - had);
	}
	if (size < c->size)
		memset(c->data + size, 0, c->size - size);
	c->size = size;
}

static void apply(const struct disk *d, struct content *c, const struct power_op *op)
{
	if (op->kind == POWER_SIZE) {
		resize(c, op->at);
		return;
	}
	if (op->at + op->n > c->size)
		resize(c, op->at + op->n);
	memcpy(c->data + op->at, power_data(d->log, op), op->n);
}

/* The sectors that an operation changes; of one that makes the file shorter all behind its new end. */
static void sectors_of(const struct power_op *op, size_t n_sectors, size_t *first, size_t *end)
{
	*first = op->at / POWER_SECTOR;
	*end = op->kind == POWER_SIZE ? n_sectors : (op->at + op->n + POWER_SECTOR - 1) / POWER_SECTOR;
}

static void apply_sector(const struct disk *d, unsigned char *data, const struct power_op *op, size_t sector)
{
	size_t from = sector * POWER_SECTOR, to = from + POWER_SECTOR;
	if (from < op->at)
		from = op->at;
	if (op->kind == POWER_SIZE) {
		memset(data + from, 0, to - from);
		return;
	}
	if (to > op->at + op->n)
		to = op->at + op->n;
	memcpy(data + from, power_data(d->log, op) + (from - op->at), to - from);
}

static size_t size_after(const struct disk *d, const struct node *f, size_t n)
{
	size_t size = f->content.size;
	for (size_t i = 0; i < n; i++) {
		const struct power_op *op = &d->op[f->pending.op[i]];
		size = op->kind == POWER_SIZE ? op->at : op->at + op->n > size ? op->at + op->n : size;
	}
	return size;
}

/* Each sector as one of the writes has left it, or as it was: how many of the operations on it have reached the disk.
 */
static void draw_sectors(struct disk *d, const struct node *f, struct content *out)
{
	size_t most = f->content.size, n = f->pending.n, first, end;
	for (size_t i = 1; i <= n; i++)
		most = size_after(d, f, i) > most ? size_after(d, f, i) : most;
	size_t n_sectors = most / POWER_SECTOR + 1, size = size_after(d, f, draw(d, 2) ? n : draw(d, n + 1));
	uint32_t *reach = calloc(n_sectors, sizeof(*reach));
	bool garbage = draw(d, 4) == 0;
	size_t odds = 1 + draw(d, 9); /* of ten: that a sector is as new as can be */
	resize(out, n_sectors * POWER_SECTOR);
	if (!reach)
		power_die("calloc");
	for (size_t i = 0; i < n; i++)
		for (sectors_of(&d->op[f->pending.op[i]], n_sectors, &first, &end); first < end; first++)
			reach[first]++;
	for (size_t s = 0; s < n_sectors; s++) {
		reach[s] = draw(d, 10) < odds ? reach[s] : (uint32_t)draw(d, reach[s] + 1u);
		if (garbage && !reach[s] && s * POWER_SECTOR >= f->content.size)
			memset(out->data + s * POWER_SECTOR, (int)draw(d, 256), POWER_SECTOR);
	}
	for (size_t i = 0; i < n; i++) {
		const struct power_op *op = &d->op[f->pending.op[i]];
		for (sectors_of(op, n_sectors, &first, &end); first < end; first++)
			if (reach[first]) {
				apply_sector(d, out->data, op, first);
				reach[first]--;
			}
	}
	resize(out, size);
	free(reach);
}

static void copy_content(struct content *to, const struct content *from)
{
	resize(to, from->size);
	if (from->size)
		memcpy(to->data, from->data, from->size);
}

/* What is on the disk of a file. */
static void draw_content(struct disk *d, const struct node *f, struct content *out)
{
	size_t n = f->pending.n;
	copy_content(out, &f->content);
	switch (d->image) {
	case POWER_NOTHING:
	case POWER_NAMES:
		return;
	case POWER_DATA:
	case POWER_LATER:
	case POWER_ALL:
		break;
	case POWER_RANDOM:
		if (n && draw(d, 4) > 1) {
			draw_sectors(d, f, out);
			return;
		}
		n = draw(d, 2) ? n : draw(d, n + 1); /* in their order */
	}
	for (size_t i = 0; i < n; i++)
		apply(d, out, &d->op[f->pending.op[i]]);
}

/* ---- names ---- */

static void set_entry(struct names *t, int dir, const char *name, int node)
{
	size_t i = 0;
	while (i < t->n && (t->e[i].dir != dir || strcmp(t->e[i].name, name) != 0))
		i++;
	if (node < 0) {
		if (i < t->n)
			t->e[i] = t->e[--t->n];
		return;
	}
	if (i == t->room)
		t->e = grown(t->e, &t->room, i + 1, sizeof(*t->e));
	t->e[i] = (struct entry){ dir, node, name };
	t->n += i == t->n;
}

static void change_names(struct names *t, const struct power_op *op)
{
	if (op->kind == POWER_CREATE)
		set_entry(t, op->dir, op->name, op->node);
	else
		set_entry(t, op->dir, op->name, -1);
	if (op->kind == POWER_RENAME)
		set_entry(t, op->dir2, op->name2, op->node);
}

/* Which changes of one directory have reached the disk. */
struct choice {
	enum { THESE_FIRST, ALL_BUT_THESE, EACH_BY_CHANCE } how;
	size_t n, odds;
	size_t total, seen;
};

static bool reaches(struct disk *d, struct choice *c)
{
	size_t at = c->seen++;
	return c->how == THESE_FIRST ? at < c->n : c->how == ALL_BUT_THESE ? at >= c->n : draw(d, 10) < c->odds;
}

static struct choice choose(struct disk *d, size_t total)
{
	struct choice c = { .total = total };
	switch (d->image) {
	case POWER_NOTHING:
	case POWER_DATA:
		break;
	case POWER_NAMES:
	case POWER_ALL:
		c.n = total;
		break;
	case POWER_LATER:
		c.how = ALL_BUT_THESE;
		c.n = 1;
		break;
	case POWER_RANDOM:
		c.how = draw(d, 3) == 0 ? THESE_FIRST : draw(d, 2) ? ALL_BUT_THESE : EACH_BY_CHANCE;
		c.n = draw(d, total + 1);
		c.odds = draw(d, 11);
	}
	return c;
}

static void draw_names(struct disk *d, struct names *out)
{
	struct choice *c = calloc((size_t)d->n_nodes, sizeof(*c));
	*out = (struct names){ .n = d->names.n };
	out->e = grown(NULL, &out->room, d->names.n + 1, sizeof(*out->e));
	if (!c)
		power_die("calloc");
	if (d->names.n)
		memcpy(out->e, d->names.e, d->names.n * sizeof(*out->e));
	for (size_t i = 0; i < d->changed.n; i++)
		c[d->op[d->changed.op[i]].dir].total++;
	for (int i = 0; i < d->n_nodes; i++)
		c[i] = choose(d, c[i].total);
	for (size_t i = 0; i < d->changed.n; i++) {
		const struct power_op *op = &d->op[d->changed.op[i]];
		if (reaches(d, &c[op->dir]))
			change_names(out, op);
	}
	free(c);
}

/* ---- replaying ---- */

static void sync_file(struct disk *d, struct node *f)
{
	for (size_t i = 0; i < f->pending.n; i++)
		apply(d, &f->content, &d->op[f->pending.op[i]]);
	f->pending.n = 0;
}

static void sync_dir(struct disk *d, int dir)
{
	size_t left = 0;
	for (size_t i = 0; i < d->changed.n; i++) {
		const struct power_op *op = &d->op[d->changed.op[i]];
		if (op->dir == dir || (op->kind == POWER_RENAME && op->dir2 == dir))
			change_names(&d->names, op);
		else
			d->changed.op[left++] = d->changed.op[i];
	}
	d->changed.n = left;
}

static void create(struct disk *d, const struct power_op *op)
{
	struct meta m = { op->mode, op->uid, op->gid };
	if (op->node >= d->n_nodes) {
		d->node = realloc(d->node, (size_t)(op->node + 1) * sizeof(*d->node));
		if (!d->node)
			power_die("realloc");
		d->n_nodes = op->node + 1;
	}
	d->node[op->node] = (struct node){ .is_dir = op->is_dir, .meta = m, .later = m };
}

static void replay(struct disk *d, size_t n)
{
	const struct power_op root = { .is_dir = true, .mode = 0711 };
	create(d, &root);
	for (size_t i = 0; i < n; i++) {
		const struct power_op *op = &d->op[i];
		struct node *f = op->kind == POWER_CREATE ? NULL : &d->node[op->node];
		switch (op->kind) {
		case POWER_CREATE:
			create(d, op);
			push(&d->changed, i);
			break;
		case POWER_WRITE:
		case POWER_SIZE:
			push(&f->pending, i);
			break;
		case POWER_META:
			f->later = (struct meta){ op->mode, op->uid, op->gid };
			break;
		case POWER_SYNC:
		case POWER_DATASYNC:
			if (f->is_dir)
				sync_dir(d, op->node);
			else
				sync_file(d, f);
			if (op->kind == POWER_SYNC)
				f->meta = f->later;
			break;
		case POWER_UNLINK:
		case POWER_RENAME:
			push(&d->changed, i);
			break;
		case POWER_NOTE:
			break;
		}
	}
}

/* ---- the directory ---- */

static struct meta draw_meta(struct disk *d, const struct node *f)
{
	bool later = d->image != POWER_NOTHING && d->image != POWER_DATA;
	if (d->image == POWER_RANDOM)
		later = draw(d, 2);
	else if (d->image == POWER_LATER)
		later = (f - d->node) % 2;
	return later ? f->later : f->meta;
}

/* Needs the rights of root for other owners. */
static void set_meta(struct disk *d, const struct node *f, const char *path)
{
	struct meta m = draw_meta(d, f);
	if ((m.uid != geteuid() && chown(path, m.uid, m.gid)) || chmod(path, m.mode))
		power_die(path);
}

static void make_file(struct disk *d, const struct node *f, const char *path)
{
	struct content c = { 0 };
	draw_content(d, f, &c);
	size_t zeros = c.size;
	while (zeros && !c.data[zeros - 1])
		zeros--;
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || (zeros && write(fd, c.data, zeros) != (ssize_t)zeros) || ftruncate(fd, (off_t)c.size))
		power_die(path);
	close(fd);
	free(c.data);
}

static void make_dir(struct disk *d, const struct names *t, int dir, const char *path)
{
	for (size_t i = 0; i < t->n; i++) {
		char name[4096];
		if (t->e[i].dir != dir)
			continue;
		const struct node *f = &d->node[t->e[i].node];
		if ((size_t)snprintf(name, sizeof(name), "%s/%s", path, t->e[i].name) >= sizeof(name))
			power_die(path);
		if (f->is_dir && mkdir(name, 0700))
			power_die(name);
		if (f->is_dir)
			make_dir(d, t, t->e[i].node, name);
		else
			make_file(d, f, name);
		set_meta(d, f, name);
	}
}

void power_cut(const struct power_log *log, size_t ops, enum power_image image, uint64_t seed, const char *to)
{
	struct disk d = { .log = log, .image = image, .rng = seed };
	struct names t;
	if (power_ops(log, &d.op) < ops)
		power_die("so many operations were not noted");
	replay(&d, ops);
	draw_names(&d, &t);
	make_dir(&d, &t, 0, to);
	for (int i = 0; i < d.n_nodes; i++) {
		free(d.node[i].content.data);
		free(d.node[i].pending.op);
	}
	free(d.node);
	free(d.names.e);
	free(d.changed.op);
	free(t.e);
}

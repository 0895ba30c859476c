/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, names and gives up the descriptors that the service manager keeps of jobs, for a part that starts or ends.
 * Loop thread; pages are given back in the pool. */
#include "runtime/stored.h"

#include "rpc/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ON_DEVICE ".d" /* in a name, and nothing else there begins so */

static bool is_on_device(const struct fdstore_fd *s)
{
	return strstr(s->name, ON_DEVICE) != NULL;
}

void stored_name(uint64_t job, uint32_t part, uint32_t n_parts, const struct plan_segment *w,
		 char out[FDSTORE_MAX_NAME])
{
	char of[16] =
		""; /* behind what a gaccd without parts reads: it keeps what it finds of a job that it cannot run */
	if (n_parts > 1)
		snprintf(of, sizeof(of), ".p%u", part);
	snprintf(out, FDSTORE_MAX_NAME, "j%llu.r%u.%u.%d%s%s", (unsigned long long)job, w->role, w->index,
		 STORED_GENERATION, of, w->on_device ? ON_DEVICE : "");
}

void stored_other_name(char name[FDSTORE_MAX_NAME])
{
	size_t n = strlen(name);
	snprintf(name + n, FDSTORE_MAX_NAME - n, ".b");
}

uint64_t stored_job(const struct fdstore_fd *s, uint32_t *out_part, unsigned *out_role)
{
	unsigned long long id = 0;
	unsigned part = 0, role;
	const char *of = strstr(s->name, ".p");
	if (s->fd < 0 || sscanf(s->name, "j%llu.r%u.", &id, &role) != 2 || (of && sscanf(of, ".p%u", &part) != 1))
		return 0;
	if (out_part)
		*out_part = part;
	if (out_role)
		*out_role = role;
	return id;
}

int stored_take(struct node *n, const char *name)
{
	for (size_t i = 0; i < n->n_stored; i++)
		if (n->stored[i].fd >= 0 && !strcmp(n->stored[i].name, name)) {
			int fd = n->stored[i].fd;
			n->stored[i].fd = -1;
			return fd;
		}
	return -1;
}

uint64_t stored_bytes(const struct node *n, uint64_t job, uint64_t *out_n)
{
	struct stat info;
	uint64_t sum = 0, found = 0;
	for (size_t i = 0; i < n->n_stored; i++)
		if (stored_job(&n->stored[i], NULL, NULL) == job && !fstat(n->stored[i].fd, &info)) {
			sum += is_on_device(&n->stored[i]) ? 0 : (uint64_t)info.st_size;
			found++;
		}
	if (out_n)
		*out_n = found;
	return sum;
}

static bool is_of(const struct fdstore_fd *s, uint64_t job, uint32_t part)
{
	uint32_t number;
	return stored_job(s, &number, NULL) == job && (part == STORED_ALL || number == part);
}

void stored_release(struct node *n, uint64_t job, uint32_t part, uint32_t uid)
{
	uint64_t found;
	int taken = 0;
	stored_bytes(n, job, &found);
	struct segment *segment = found ? calloc(found, sizeof(*segment)) : NULL;
	if (!segment)
		return;
	for (size_t i = 0; i < n->n_stored && (uint64_t)taken < found; i++)
		if (is_of(&n->stored[i], job, part)) {
			fdstore_remove(n->fdstore, n->stored[i].name);
			segment[taken] = SEGMENT_NONE;
			segment[taken++].fd = n->stored[i].fd;
			n->stored[i].fd = -1;
		}
	segments_release(n, uid, segment, taken);
}

/* ---- segments on their way out ---- */

struct releasing {
	struct rpc_work work;
	struct segment *segment;
	int n;
};

static void close_all(struct segment *segment, int n)
{
	for (int i = 0; i < n; i++)
		segment_close(&segment[i]);
	free(segment);
}

static void run_release(struct rpc_work *w)
{
	struct releasing *r = (struct releasing *)w;
	close_all(r->segment, r->n);
}

static void on_released(struct rpc_work *w)
{
	free(w);
}

void segments_release(struct node *n, uint32_t uid, struct segment *segment, int n_segments)
{
	struct releasing *r = n->stopping ? NULL : calloc(1, sizeof(*r));
	if (!r) {
		close_all(segment, n_segments);
		return;
	}
	r->segment = segment;
	r->n = n_segments;
	rpc_pool_put_kind(n->pool, RPC_POOL_RELEASE, &r->work, uid, run_release, on_released);
}

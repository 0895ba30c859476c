/* SPDX-License-Identifier: Apache-2.0 */
/* Whether state_dir has room for submissions, checkpoints and the journal's reserve. Loop thread; reads on the
 * journal's thread. */
#include "edge/disk_watch.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <time.h>

#define NS INT64_C(1000000000)
#define WATCH_NS NS
#define FILL_NS (INT64_C(1) * 100000000) /* while the reserve is being filled up */
#define MIB (UINT64_C(1) << 20)
#define WAIT_TRIES 20
#define WAIT_NS 100000000

struct disk_watch {
	struct persist_read read; /* first */
	struct daemon *d;
	bool reading;
	int64_t due_ns, full_since_ns;
	struct disk_state is;
	/* the journal's thread's while reading */
	bool known, may_fill;
	uint64_t free, total;
	uint32_t rows;
};

static bool read_disk(const char *state_dir, uint64_t *free_bytes, uint64_t *total)
{
	struct statvfs v;
	if (statvfs(state_dir, &v))
		return false;
	*free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
	*total = (uint64_t)v.f_blocks * v.f_frsize;
	return true;
}

/* Below this the disk is full; it has room again at twice as much. */
static uint64_t low_mark(const struct daemon *d)
{
	uint64_t quarter = d->node.conf->limits.journal_reserve / 4;
	return quarter > MIB ? quarter : MIB;
}

static void judge(struct disk_watch *w)
{
	uint64_t low = low_mark(w->d);
	bool was = w->is.full;
	char text[400];
	w->is.free = w->free;
	w->is.total = w->total;
	w->is.full = w->free < (was ? 2 * low : low);
	if (w->is.full == was)
		return;
	if (w->is.full) {
		w->full_since_ns = daemon_now(w->d).mono_ns;
		snprintf(text, sizeof(text),
			 "the disk of %.200s is full (%.1f MiB are free): new jobs and checkpoints there are refused, "
			 "jobs that run go on; make room",
			 w->d->node.conf->state_dir, (double)w->free / MIB);
	} else { /* the history had no room for the other event */
		snprintf(text, sizeof(text),
			 "the disk of %.200s has room again (%.1f MiB are free); it was full for %lld s",
			 w->d->node.conf->state_dir, (double)w->free / MIB,
			 (long long)((daemon_now(w->d).mono_ns - w->full_since_ns) / NS));
	}
	daemon_event(w->d, w->is.full, w->is.full ? "DiskFull" : "DiskHasRoom", text);
}

static void on_read(struct persist_read *r, struct journal *j)
{
	struct disk_watch *w = (struct disk_watch *)r;
	w->known = read_disk(w->d->node.conf->state_dir, &w->free, &w->total);
	bool room = w->known && w->free > low_mark(w->d) + 4 * MIB;
	w->rows = journal_reserve(j, w->may_fill && room ? (uint32_t)(w->is.wanted / MIB) : 0);
}

static void on_done(struct persist_read *r, bool muted)
{
	struct disk_watch *w = (struct disk_watch *)r;
	bool filled = w->rows * MIB > w->is.reserve;
	w->reading = false;
	w->is.reserve = w->rows * MIB;
	if (muted)
		return;
	if (w->known)
		judge(w);
	w->due_ns = daemon_now(w->d).mono_ns + (filled && w->is.reserve < w->is.wanted ? FILL_NS : WATCH_NS);
}

static void ask(struct disk_watch *w)
{
	w->reading = true;
	w->may_fill = !w->is.full;
	w->read.read = on_read;
	w->read.done = on_done;
	persist_read(w->d->persist, &w->read);
}

enum status disk_watch_new(struct daemon *d)
{
	struct disk_watch *w = calloc(1, sizeof(*w));
	if (!w)
		return ST_NO_MEMORY;
	w->d = d;
	w->is.wanted = d->node.conf->limits.journal_reserve / MIB * MIB;
	w->is.reserve = journal_reserve(d->journal, 0) * MIB;
	d->disk = w;
	if (read_disk(d->node.conf->state_dir, &w->free, &w->total))
		judge(w);
	return ST_OK;
}

void disk_watch_tick(struct daemon *d, struct now now)
{
	if (!d->disk->reading && now.mono_ns >= d->disk->due_ns)
		ask(d->disk);
}

void disk_watch_free(struct disk_watch *w)
{
	free(w);
}

struct disk_state disk_watch_state(const struct daemon *d)
{
	return d->disk->is;
}

enum status disk_watch_admit(const struct daemon *d, const char *what, uint64_t bytes, char *why, size_t n_why)
{
	const struct disk_state *is = &d->disk->is;
	if (!is->full && bytes <= is->free)
		return ST_OK;
	snprintf(why, n_why, "no room for %s: %.1f " DISK_WATCH_FULL " %.100s, %.1f MiB are needed; make room there",
		 what, (double)is->free / MIB, d->node.conf->state_dir,
		 (double)(bytes > 2 * low_mark(d) ? bytes : 2 * low_mark(d)) / MIB);
	return ST_RESOURCE_EXHAUSTED;
}

void disk_watch_wait(const char *state_dir)
{
	uint64_t left, total;
	for (int i = 0; i < WAIT_TRIES && read_disk(state_dir, &left, &total) && left < MIB; i++)
		nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
}

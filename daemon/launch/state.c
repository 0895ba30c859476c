/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's note of each process that it starts, in a file that its successor or gaccd reads to kill what a
 * launcher that was killed left running. The launcher's thread, or gaccd's at a start. */
#include "launch/state.h"

#include "base/log.h"
#include "host/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BOOT_BYTES 64
#define WAIT_NS 10000000
#define WAIT_TRIES 100

static void read_boot_id(char out[BOOT_BYTES])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (!f || !fgets(out, BOOT_BYTES, f))
		strcpy(out, "unknown\n");
	if (f)
		fclose(f);
}

static bool keep(struct launch_note **note, uint32_t *n, const struct launch_note *new)
{
	for (uint32_t i = 0; i < *n; i++)
		if ((*note)[i].rank == new->rank) {
			(*note)[i] = *new;
			return true;
		}
	struct launch_note *more = realloc(*note, (*n + 1) * sizeof(*more));
	if (!more)
		return false;
	more[(*n)++] = *new;
	*note = more;
	return true;
}

static enum status read_notes(FILE *f, const char *boot, struct launch_note **out, uint32_t *out_n)
{
	char line[128], want[BOOT_BYTES + 8];
	snprintf(want, sizeof(want), "boot %s", boot);
	if (!fgets(line, sizeof(line), f) || strcmp(line, want) != 0)
		return ST_OK;
	while (fgets(line, sizeof(line), f)) {
		struct launch_note n;
		unsigned long long start;
		long long pid, session = 0;
		int fields = sscanf(line, "%u %lld %llu %u %u %lld %u", &n.rank, &pid, &start, &n.restarts, &n.charged,
				    &session, &n.uid);
		/* 5: of a launcher before these fields */
		bool whole = strchr(line, '\n') && (fields == 7 || fields == 5);
		if (!whole || pid <= 1)
			break; /* the launcher died in the middle of it: that rank did not get its go */
		n.pid = pid;
		n.start_time = start;
		n.session = fields == 7 ? session : 0;
		n.uid = fields == 7 ? n.uid : 0;
		if (!keep(out, out_n, &n))
			return ST_NO_MEMORY;
	}
	return ST_OK;
}

static bool write_notes(int fd, const char *boot, const struct launch_note *note, uint32_t n)
{
	bool ok = dprintf(fd, "boot %s", boot) > 0;
	for (uint32_t i = 0; i < n && ok; i++)
		ok = !launch_state_note(fd, &note[i]);
	return ok;
}

/* The new file is complete before it takes the old one's place. */
static int replace(const char *path, const char *boot, const struct launch_note *note, uint32_t n)
{
	char new[4096];
	snprintf(new, sizeof(new), "%s.new", path);
	int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0 && write_notes(fd, boot, note, n) && !rename(new, path))
		return fd;
	log_error("%s: %s", new, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

enum status launch_state_open(const char *path, int *out_fd, struct launch_note **out_note, uint32_t *out_n)
{
	char boot[BOOT_BYTES];
	struct launch_note *note = NULL;
	uint32_t n = 0;
	read_boot_id(boot);
	FILE *f = fopen(path, "re");
	enum status st = f ? read_notes(f, boot, &note, &n) : ST_OK;
	if (f)
		fclose(f);
	int fd = st ? -1 : replace(path, boot, note, n);
	if (fd < 0) {
		free(note);
		return st ? st : ST_IO_ERROR;
	}
	*out_fd = fd;
	*out_note = note;
	*out_n = n;
	return ST_OK;
}

enum status launch_state_note(int fd, const struct launch_note *n)
{
	char line[128];
	int length =
		snprintf(line, sizeof(line), "%u %lld %llu %u %u %lld %u\n", n->rank, (long long)n->pid,
			 (unsigned long long)n->start_time, n->restarts, n->charged, (long long)n->session, n->uid);
	if (write(fd, line, (size_t)length) == length)
		return ST_OK;
	log_error("cannot note the process of rank %u: %s", n->rank, strerror(errno));
	return ST_IO_ERROR;
}

struct notes {
	const struct launch_note *note;
	uint32_t n;
};

/* state.h says how a process of a rank is recognised. */
static bool is_noted(const void *arg, int64_t pid)
{
	const struct notes *of = arg;
	const struct launch_note *note = NULL;
	struct process_info p;
	uint32_t uid;
	if (!process_look(pid, &p))
		return false;
	for (uint32_t i = 0; i < of->n && !note; i++)
		if (of->note[i].pid == p.group)
			note = &of->note[i];
	if (!note)
		return false;
	if (pid == note->pid)
		return p.start_time == note->start_time;
	return note->session && p.session == note->session && p.start_time >= note->start_time &&
	       process_uid(pid, &uid) && (!note->uid || uid == note->uid);
}

/* How many were killed. Zombies do not count: their parent may be slow to reap them. */
static uint32_t kill_noted(const struct notes *of)
{
	DIR *proc = opendir("/proc");
	uint32_t n = 0;
	for (const struct dirent *d; proc && (d = readdir(proc));)
		n += process_signal_if(strtoll(d->d_name, NULL, 10), SIGKILL, is_noted, of);
	if (proc)
		closedir(proc);
	return n;
}

/* Again until there is none: one that was found may have had a child before it died. */
void launch_state_kill(const struct launch_note *note, uint32_t n)
{
	struct notes of = { note, n };
	for (int tries = 0; n && tries < WAIT_TRIES && kill_noted(&of); tries++)
		nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
}

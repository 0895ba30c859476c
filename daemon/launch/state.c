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
	struct launch_note *more = realloc(*note, (*n + 1) * sizeof *more);
	if (!more)
		return false;
	more[(*n)++] = *new;
	*note = more;
	return true;
}

static enum status read_notes(FILE *f, const char *boot, struct launch_note **out, uint32_t *out_n)
{
	char line[128], want[BOOT_BYTES + 8];
	snprintf(want, sizeof want, "boot %s", boot);
	if (!fgets(line, sizeof line, f) || strcmp(line, want) != 0)
		return ST_OK;
	while (fgets(line, sizeof line, f)) {
		struct launch_note n;
		unsigned long long start;
		long long pid;
		if (sscanf(line, "%u %lld %llu %u %u", &n.rank, &pid, &start, &n.restarts, &n.charged) != 5 || pid <= 1)
			break; /* the launcher died in the middle of it: that rank did not get its go */
		n.pid = pid;
		n.start_time = start;
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
	snprintf(new, sizeof new, "%s.new", path);
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
	int length = snprintf(line, sizeof line, "%u %lld %llu %u %u\n", n->rank, (long long)n->pid,
			      (unsigned long long)n->start_time, n->restarts, n->charged);
	if (write(fd, line, (size_t)length) == length)
		return ST_OK;
	log_error("cannot note the process of rank %u: %s", n->rank, strerror(errno));
	return ST_IO_ERROR;
}

/* The note's group is still the one that was started: its leader is, or has died. A pid is not given out again while it is the number of a
 * group. */
static bool is_ours(const struct launch_note *n)
{
	uint64_t start = process_start_time(n->pid);
	return !start || start == n->start_time;
}

static bool is_noted(const struct launch_note *note, uint32_t n, int64_t group)
{
	for (uint32_t i = 0; i < n; i++)
		if (note[i].pid == group)
			return is_ours(&note[i]);
	return false;
}

/* Zombies do not count: who should reap them may be slow. */
static bool any_left(const struct launch_note *note, uint32_t n)
{
	DIR *proc = opendir("/proc");
	bool found = false;
	for (const struct dirent *d; proc && !found && (d = readdir(proc));) {
		struct process_info p;
		long long pid = strtoll(d->d_name, NULL, 10);
		found = pid > 0 && process_look(pid, &p) && is_noted(note, n, p.group);
	}
	if (proc)
		closedir(proc);
	return found;
}

void launch_state_kill(const struct launch_note *note, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (is_ours(&note[i]))
			kill((pid_t)-note[i].pid, SIGKILL);
	for (int tries = 0; n && tries < WAIT_TRIES && any_left(note, n); tries++)
		nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
}

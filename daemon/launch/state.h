/* SPDX-License-Identifier: Apache-2.0 */
/* The file in which a launcher notes each process it starts, <runtime_dir>/launch-<job>.<uuid>.state: so that whoever
 * comes after a launcher that was killed can end what is left of the ranks' process groups.
 *
 * Lines of text: "boot ID", then "RANK PID START RESTARTS CHARGED SESSION UID" for each start, the last of a rank
 * counts. START is the process's start time in clock ticks, SESSION the launcher's session and UID the ranks' user. It
 * need not survive a reboot.
 *
 * PID may have been given out again, also as the number of a process group whose leader has died since. A process is
 * killed only if it is in group PID and either is the leader itself, by its start time, or: is of SESSION, as all of
 * the rank's group are, was not started before the rank, and runs as UID (any user, if that is root). What remains
 * possible: both numbers were given out again, to processes of the same user that are one session and one group.
 * Nothing in /proc tells these from the rank's; only a cgroup per rank could.
 */
#ifndef GACC_LAUNCH_STATE_H
#define GACC_LAUNCH_STATE_H

#include "proto/status.h"

#include <stdint.h>

struct launch_note {
	uint32_t rank;
	int64_t pid;
	uint64_t start_time;
	uint32_t restarts, charged;
	int64_t session; /* 0: not known, of a launcher before this field */
	uint32_t uid;
};

/* Opens the file, with what earlier launchers of this boot have noted: *out_note has *out_n, free()d by the caller,
 * NULL without. ST_IO_ERROR (logged), ST_NO_MEMORY. */
enum status launch_state_open(const char *path, int *out_fd, struct launch_note **out_note, uint32_t *out_n);
/* ST_IO_ERROR (logged). */
enum status launch_state_note(int fd, const struct launch_note *);
/* Kills what is left of these starts' process groups, and waits, up to a second, until it is gone. */
void launch_state_kill(const struct launch_note *, uint32_t n);

#endif

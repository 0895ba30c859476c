/* The file in which a launcher notes each process it starts, <runtime_dir>/launch-<job>.state: so that whoever comes after a
 * launcher that was killed can end what is left of the ranks' process groups.
 *
 * Lines of text: "boot ID", then "RANK PID START RESTARTS CHARGED" for each start, the last of a rank counts. START is the
 * process's start time in clock ticks, by which a pid that was given out again is recognised. It need not survive a reboot.
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
};

/* Opens the file, with what earlier launchers of this boot have noted: *out_note has *out_n, free()d by the caller, NULL without.
 * ST_IO_ERROR (logged), ST_NO_MEMORY. */
enum status launch_state_open(const char *path, int *out_fd, struct launch_note **out_note, uint32_t *out_n);
/* ST_IO_ERROR (logged). */
enum status launch_state_note(int fd, const struct launch_note *);
/* Kills the process groups of these starts and waits, up to a second, until they are gone. */
void launch_state_kill(const struct launch_note *, uint32_t n);

#endif

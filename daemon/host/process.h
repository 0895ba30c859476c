/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes, as /proc shows them, and signals to them.
 *
 * A process number may be given out again as soon as its process has been reaped. A signal therefore goes either to a
 * child of the caller that is not reaped yet, or through a pidfd to a process that was looked at while the pidfd was
 * held.
 *
 * Any thread. Reading /proc blocks for microseconds.
 */
#ifndef GACC_HOST_PROCESS_H
#define GACC_HOST_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_info {
	int64_t parent;
	int64_t group;	     /* process group */
	int64_t session;     /* all processes of a group are of one session, for as long as the group exists */
	uint64_t start_time; /* clock ticks after the boot */
};

/* Fields 4, 5, 6 and 22 of proc(5)'s stat. false: no such process, or a zombie. */
bool process_look(int64_t pid, struct process_info *out);
/* Start time of a process; 0: no such process, or a zombie. */
uint64_t process_start_time(int64_t pid);
/* The process is over, with all of its threads, and has given back all that it had; a zombie may be. false: it is not,
 * or that is not known. */
bool process_is_over(int64_t pid, uint64_t start_time);
/* The real uid. false: no such process. */
bool process_uid(int64_t pid, uint32_t *out);
/* Was it started as `gaccd ROLE ARGUMENT ..`? */
bool process_is_gaccd(int64_t pid, const char *role, const char *argument);

/* The process of a pidfd has not ended. */
bool process_lives(int pidfd);

/* Is this the process that is meant? */
typedef bool process_test(const void *arg, int64_t pid);
/* false: there is no such process, it is not the one that is meant, or it may not be signalled. */
bool process_signal_if(int64_t pid, int signal, process_test *is_meant, const void *arg);
/* The same for a child of this process, which nobody but the calling thread reaps: until then the number is its own.
 * false: it was reaped. */
bool process_signal_child(int64_t pid, int signal);

#endif

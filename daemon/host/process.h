/* Processes of others, as /proc shows them. */
#ifndef GACC_HOST_PROCESS_H
#define GACC_HOST_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_info {
	int64_t parent;
	int64_t group;         /* process group */
	uint64_t start_time;   /* clock ticks after the boot */
};

/* Fields 4, 5 and 22 of proc(5)'s stat. false: no such process, or a zombie. */
bool process_look(int64_t pid, struct process_info *out);
/* Start time of a process; 0: no such process, or a zombie. */
uint64_t process_start_time(int64_t pid);

#endif

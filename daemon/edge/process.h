/* Processes of others, as /proc shows them. */
#ifndef GACC_EDGE_PROCESS_H
#define GACC_EDGE_PROCESS_H

#include <stdint.h>

/* Start time of a process in clock ticks (proc(5), stat field 22); 0: no such process, or a zombie. */
uint64_t process_start_time(int64_t pid);

#endif

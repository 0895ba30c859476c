/* SPDX-License-Identifier: Apache-2.0 */
/* The rank processes of `gaccctl run`: started, reaped, signalled. Each is the leader of a process group of its own,
 * its output goes to <log_dir>/worker_<rank>.log, and it dies with gaccctl. */
#ifndef GACCCTL_RANKS_H
#define GACCCTL_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct rank_process {
	pid_t pid; /* 0: not running */
	pid_t last_pid;
	int restarts;
	bool ended;
	int status; /* of its end: exit code, or 128 + signal */
	int signal; /* that ended it, or 0 */
};

struct ranks {
	struct rank_process *rank;
	uint32_t n;
	char **argv;	     /* of the program, borrowed */
	const char *log_dir; /* borrowed */
	bool no_torch;
	char **common; /* environment that all ranks share, NULL-terminated, owned */
};

struct rank_environment {
	uint64_t job_id;
	uint32_t ranks, micro_size;
	const char *endpoint, *log_dir;
	uint16_t master_port;
	bool no_torch; /* nothing by which a library would start torch.distributed: GACC_RANK and the like alone */
};

/* The environment of the ranks: ours, and what torchrun and gacc set. OMP_NUM_THREADS=1 and PYTHONUNBUFFERED=1 (output
 * of Python goes to the log at once) unless they are set. *out is a NULL-terminated list of owned strings;
 * rank_environment_free. NULL without memory. */
char **rank_environment(char *const *ours, const struct rank_environment *e);
/* The variables that differ from rank to rank, to out[]; returns how many: fewer with no_torch. */
#define RANK_VARIABLES 4
#define RANK_VARIABLE_MAX 48
size_t rank_variables(uint32_t rank, int restarts, bool no_torch, char out[RANK_VARIABLES][RANK_VARIABLE_MAX]);
void rank_environment_free(char **list);

/* 0 or errno. */
int ranks_start(struct ranks *r, uint32_t rank);
/* Takes the next rank that has ended: its number in *out_rank. False: none has. */
bool ranks_reap(struct ranks *r, uint32_t *out_rank);
/* To all process groups that are left. */
void ranks_signal(const struct ranks *r, int signal);
uint32_t ranks_running(const struct ranks *r);
/* Kills and reaps whatever runs. */
void ranks_fini(struct ranks *r);

/* What a rank is before it becomes its program: `gaccctl --exec-rank PARENT PROGRAM ARGUMENTS...`. Returns only on
 * failure. */
int exec_rank(int argc, char **argv);
/* A TCP port that is free on the loopback interface right now; 0: none. */
uint16_t free_port(void);

#endif

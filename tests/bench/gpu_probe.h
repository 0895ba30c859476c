/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of gpu_probe. */
#ifndef GACC_BENCH_GPU_PROBE_H
#define GACC_BENCH_GPU_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CHILD_SECONDS 60

/* One line of the result; without line ends in the text. */
void row(int number, const char *what, const char *format, ...) __attribute__((format(printf, 3, 4)));
double seconds_now(void);
/* The value below which `part` of the n values lie; sorts them. */
double quantile(double *v, int n, double part);
/* A child that does the work, exits with what it returns, and is killed by SIGALRM after CHILD_SECONDS. */
pid_t start(int (*work)(void *), void *arg);
/* Waits for it: its exit status, or 128 and the signal that ended it. */
int end_of(pid_t);
/* Both, and a row if the work did not return 0 or 1, having written its own. As end_of. */
int run_rows(int number, const char *what, int (*work)(void *), void *arg);

/* Packets between the processes of a part, with a descriptor or -1. False, or -1 and `to` zeroed: the other is gone. */
bool send_to(int socket, const void *what, size_t n, int fd);
bool receive_from(int socket, void *to, size_t n, int *out_fd);

/* Of each part. 0: every row is well. number: that of its rows. */
typedef int gpu_part(int number);
gpu_part name_of_gpu, survival, late, rates, ready, tiny;
/* late kills its process with this one. */
extern int late_signal;

#endif

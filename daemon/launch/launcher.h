/* SPDX-License-Identifier: Apache-2.0 */
/* `gaccd --launcher`: the process between gaccd and the ranks of one job (launch: daemon).
 *
 * It is the ranks' parent, so that they keep their pids and their log files when gaccd is restarted, and it knows how
 * each ended. It is in a session of its own, holds no memory of the job, listens at
 * <runtime_dir>/launch-<job>.<uuid>.sock (launch/channel.h) and follows orders from peers with gaccd's own uid or
 * root's. It ends when it is told to; on SIGTERM, when the ranks have ended; or when nobody has been connected for
 * orphan_ms. When it is killed, the kernel kills its ranks (PR_SET_PDEATHSIG).
 */
#ifndef GACC_LAUNCH_LAUNCHER_H
#define GACC_LAUNCH_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which launcher is meant. Its files are named after the job's id and the first LAUNCHER_DIGITS digits of its uuid, as
 * ids can be given out again by another journal. `uuid` "": of a gaccd that named them after the id alone. */
#define LAUNCHER_DIGITS 16
struct launcher_args {
	uint64_t job_id;
	const char *uuid; /* as uuid_text writes it */
	const char *runtime_dir;
	uint64_t orphan_ms;
	uint64_t descriptors; /* soft limit of the ranks */
};

/* Where a job's launcher listens. false: too long for a socket. */
bool launcher_socket_path(const struct launcher_args *, char *out, size_t n);
/* Where it notes the processes that it starts (launch/state.h). */
void launcher_state_path(const struct launcher_args *, char *out, size_t n);
/* Does one live, or has one died before its end? Then the next one ends what is left of its ranks. */
bool launcher_left_traces(const struct launcher_args *);
/* The digits of a uuid as uuid_text writes it; "" of "". */
void launcher_digits(const char *uuid, char out[LAUNCHER_DIGITS + 1]);
/* Is this the name of a launcher's file? Of which job; digits "": named after the id alone. */
bool launcher_is_file(const char *name, uint64_t *out_job, char out_digits[LAUNCHER_DIGITS + 1], bool *out_socket);

/* Runs until the end; the process's exit code. The listening socket is LAUNCH_LISTEN_FD; all higher descriptors are
 * closed. */
int launcher_run(const struct launcher_args *);

#endif

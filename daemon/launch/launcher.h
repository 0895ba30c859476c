/* `gaccd --launcher`: the process between gaccd and the ranks of one job (launch: daemon).
 *
 * It is the ranks' parent, so that they keep their pids and their log files when gaccd is restarted, and it knows how each ended. It is in
 * a session of its own, holds no memory of the job, listens at <runtime_dir>/launch-<job>.sock (launch/channel.h) and obeys
 * whoever connects with gaccd's own uid or root's. It ends when it is told to; on SIGTERM, when the ranks have ended; or when
 * nobody has been connected for orphan_ms. When it is killed, the kernel kills its ranks (PR_SET_PDEATHSIG).
 */
#ifndef GACC_LAUNCH_LAUNCHER_H
#define GACC_LAUNCH_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct launcher_args {
	uint64_t job_id;
	const char *runtime_dir;
	uint64_t orphan_ms;
	uint64_t descriptors; /* soft limit of the ranks */
};

/* Where a job's launcher listens. false: too long for a socket. */
bool launcher_socket_path(const char *runtime_dir, uint64_t job_id, char *out, size_t n);
/* Does one live, or has one died before its end? Then the next one ends what is left of its ranks. */
bool launcher_left_traces(const char *runtime_dir, uint64_t job_id);

/* Runs until the end; the process's exit code. The listening socket is LAUNCH_LISTEN_FD; all higher descriptors are closed. */
int launcher_run(const struct launcher_args *);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that outlives its process. With FAKE_CUDA_LATE=us a process that the fake kills forks first: the child, its
 * ghost, closes the descriptors it has inherited, waits until the process is gone and `us` more, and then finishes what
 * the streams had to do, on the same memory: the operation in the middle of which the process died, then all that was
 * queued. A stream ends at a host function, which died with its process. Of kernels that other streams were running at
 * that moment nothing more happens. Then the ghost ends.
 */
#ifndef GACC_FAKE_CUDA_GHOST_H
#define GACC_FAKE_CUDA_GHOST_H

#include <stdbool.h>

/* Ends this process by SIGKILL. Called by a thread that runs an operation, without the driver's lock. It returns in the
 * ghost, if there is to be one, and nowhere else. */
void ghost_die(void);
bool ghost_is_here(void); /* this process is one */
bool ghost_is_due(void);  /* another thread wants the process to die: whoever runs an operation calls ghost_die */
void ghost_call(void);	  /* makes it due */

#endif

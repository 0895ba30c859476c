/* SPDX-License-Identifier: Apache-2.0 */
/* FAKE_CUDA_KILL_SIGNAL: a signal that kills like SIGKILL, but lets the fake see it, so that the process can have a
 * ghost although its end comes from outside. */
#ifndef GACC_FAKE_CUDA_KILL_SIGNAL_H
#define GACC_FAKE_CUDA_KILL_SIGNAL_H

void kill_signal_install(void); /* once, in cuInit; without the variable, nothing */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a wrong address of a device into an error: SIGSEGV and SIGBUS of a thread that runs an operation. Those of all
 * other threads go where they went before. */
#ifndef GACC_FAKE_CUDA_TRAP_H
#define GACC_FAKE_CUDA_TRAP_H

#include <stdbool.h>

void trap_install(void); /* once, in cuInit */
/* Calls it. False: it used memory that it may not, and was left there. */
bool trap_run(void (*)(void *), void *arg);

#endif

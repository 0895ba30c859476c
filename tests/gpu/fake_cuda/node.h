/* SPDX-License-Identifier: Apache-2.0 */
/* Files that stand for /dev/nvidia0, /dev/nvidia1, ..: FAKE_CUDA_NODE is their path without the number; the test makes
 * them. A device works as long as any process has its file open. When a process that wants to use it finds that nobody
 * else has, the device was shut down: that is its next life, and memory that was exported before cannot be imported any
 * more. So a plain open(2) keeps the memory, as with the real driver without persistence mode.
 *
 * What it cannot show: a moment in which nobody has the file open is not noticed if somebody who does not use the fake
 * opens it before the next process that does. The file system must know leases (ext4, tmpfs).
 */
#ifndef GACC_FAKE_CUDA_NODE_H
#define GACC_FAKE_CUDA_NODE_H

#include <stdint.h>

/* Opens the files, for this process and its children; again is nothing. Ends the process if it cannot. */
void node_open_all(void);
uint64_t node_life(unsigned on_machine); /* the device's number of lives; 0 without FAKE_CUDA_NODE */

#endif

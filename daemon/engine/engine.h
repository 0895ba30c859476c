/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: one process per (job, device) that holds the job's memory and does all its arithmetic.
 *
 * Single-threaded in command: it reads the commands that are there, runs one pass with every push whose turn it is,
 * answers, and begins again; workers only split passes and updates. Commands and answers: channel.h. Its memory
 * outlives it: a successor that is given the same descriptors finishes what was begun, and answers commands sent again.
 *
 * Half of the accumulator pair that a pass writes: P[1-x], then x flips. Exception: while client_pending, P[1-x] holds
 * the reduced gradient that trainers read. The window's first pass, which reads no half, then stores into P[x] without
 * a flip; further passes wait for ENGINE_ACK_STEP, and so does a COMMIT that would write the next reduced gradient.
 *
 * A slot of a push with zero_after is zeroed after the flip and before the answer, all slot_bytes of it, whether the
 * push was counted or void. Before the flip it must stay: an engine that dies there needs it again. The record names
 * the slots between flip and answer; a successor zeroes them before its HELLO.
 *
 * FLUSH and CLOSE first run the passes whose turn has come: a push that came earlier and waits for nobody counts.
 */
#ifndef GACC_ENGINE_ENGINE_H
#define GACC_ENGINE_ENGINE_H

#define ENGINE_EXIT_OK 0
/* START was answered with an error: corrupt or foreign segments, a bad plan, no memory */
#define ENGINE_EXIT_REFUSED 3
/* the device that holds the memory has failed (arith.h): a successor may go on */
#define ENGINE_EXIT_LOST 4

/* The process: takes channel_fd and returns its exit code at ENGINE_STOP or when the other end is closed. */
int engine_main(int channel_fd);

#endif

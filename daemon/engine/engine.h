/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: one process per (job, device) that holds the job's memory and does all its arithmetic.
 *
 * Single-threaded in command: it reads the commands that are there, runs one pass with every push whose turn it is,
 * answers, and begins again; workers only split passes and updates. In a job of several parts one more thread takes the
 * sum over all of them, and the first parameters (comm.h). Commands and answers: channel.h. Its memory outlives it: a
 * successor that is given the same descriptors finishes what was begun, and answers commands sent again.
 *
 * Half of the accumulator pair that a pass writes: P[1-x], then x flips. Exception: while client_pending, P[1-x] holds
 * the reduced gradient that trainers read. The window's first pass, which reads no half, then stores into P[x] without
 * a flip; further passes wait for ENGINE_ACK_STEP, and so does a COMMIT that would write the next reduced gradient.
 *
 * A job of several parts takes the sum over all of them into P[1-x], which no pass needs once the window is frozen;
 * P[x] stays its own sum, so that it can be taken again. The update reads P[1-x]. With optimizer CLIENT the reduced
 * gradient goes into P[x], and the COMMIT flips x, so that trainers find it in P[1-x] in any job.
 *
 * A slot of a push with zero_after is zeroed after the flip and before the answer, all slot_bytes of it, whether the
 * push was counted or void. Before the flip it must stay: an engine that dies there needs it again. The record names
 * the slots between flip and answer; a successor zeroes them before its HELLO.
 *
 * FLUSH and CLOSE first run the passes whose turn has come: a push that came earlier and waits for nobody counts.
 */
#ifndef GACC_ENGINE_ENGINE_H
#define GACC_ENGINE_ENGINE_H

struct coll_net;
struct coll_failure;

#define ENGINE_EXIT_OK 0
/* START was answered with an error: corrupt or foreign segments, a bad plan, no memory */
#define ENGINE_EXIT_REFUSED 3
/* the device that holds the memory has failed (arith.h): a successor may go on */
#define ENGINE_EXIT_LOST 4
/* a call to the engines of other parts hangs: the same, and it is not this engine's fault */
#define ENGINE_EXIT_HANGS 5

/* How engines of a job of several parts reach each other: the program knows the implementation. */
struct engine_net {
	/* address: where the others reach this engine, as START says it. NULL: *why; it is called again then. */
	struct coll_net *(*open)(const char *address, struct coll_failure *why);
};

/* The process: takes channel_fd and returns its exit code at ENGINE_STOP or when the other end is closed. net NULL: it
 * is of a job of one part, or never joins. plugin: path of the shared object for devices (device_plugin.h); NULL: this
 * program has none. */
int engine_main(int channel_fd, const struct engine_net *net, const char *plugin);

#endif

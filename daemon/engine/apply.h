/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a COMMIT of a sharded job that changes parameters: one table. Pure; any thread.
 *
 * Such a COMMIT names a communicator. The part records it (APPLYING), updates its own share, and is done when it has
 * got the shares of all other parts. The update runs on the main thread and its workers, and the main thread does
 * nothing else meanwhile; if the communicator is connected already, the communication thread gives each piece that is
 * updated to the other parts at the same time (front.h). An update ends, whatever becomes of the communicator. From the
 * record on there is no way back: if the communicator breaks or an engine dies, the same COMMIT comes again and names
 * another one, in which all shares are given once more. A part that has opened the next window already gives its own
 * there, too: nothing changes parameters before all have applied.
 *
 * At most one COMMIT is at hand: it waits for its communicator to be connected, or shares are being gathered. The first
 * row that fits:
 *
 *   the COMMIT ...                                                       ruling         status
 *   is the one applied last, and names no communicator, or that in
 *     which its shares have come                                         APPLY_DONE     OK
 *   is the one applied last, or the one in the record (APPLYING):
 *     - and is at hand, in that communicator                             APPLY_JOINS    (later)
 *     - and names none, or one that this engine has not been told of or
 *       that is busy                                                     APPLY_REFUSED  NOT_READY
 *     - and names one that is over: broken, left, or never this life's   APPLY_REFUSED  UNAVAILABLE
 *     - else: applied last                                               APPLY_SERVES   (later)
 *     - else: in the record                                              APPLY_GOES_ON  (later)
 *   finds another one in the record:
 *     - and is of an earlier window                                      APPLY_REFUSED  WINDOW_CLOSED
 *     - and is of a later window                                         APPLY_REFUSED  NOT_CURRENT_WINDOW
 *     - else                                                             APPLY_REFUSED  STALE_ATTEMPT
 *   else                                                                 APPLY_IS_NEW   (it is checked like any other)
 *
 * APPLY_JOINS: the earlier one is answered CANCELLED, and this one takes its place. One that is recorded, and cannot go
 * on, is answered with the status of its row, and with the phase that the record is in.
 */
#ifndef GACC_ENGINE_APPLY_H
#define GACC_ENGINE_APPLY_H

#include "engine/channel.h"
#include "engine/go.h"

#include <stdbool.h>

enum apply_stage { APPLY_NONE, APPLY_CONNECTS, APPLY_GATHERS };
struct apply_at_hand {
	enum apply_stage stage; /* APPLY_NONE: there is none */
	struct engine_command command;
};

/* The last communicator in which this life has got and given all shares; comm 0: none. */
struct apply_gathered {
	uint64_t comm_term, comm, window;
};

enum apply_ruling { APPLY_REFUSED, APPLY_IS_NEW, APPLY_GOES_ON, APPLY_SERVES, APPLY_JOINS, APPLY_DONE };

struct apply_verdict {
	enum apply_ruling ruling;
	enum status status; /* of one that is refused; else ST_OK */
};

/* The COMMIT names this communicator. */
bool apply_names(const struct engine_command *, uint64_t term, uint64_t comm);
/* comm: how the communicator that it names stands. */
struct apply_verdict apply_judge(const struct control_record *, const struct apply_at_hand *,
				 const struct apply_gathered *, enum go_comm comm, const struct engine_command *);

#endif

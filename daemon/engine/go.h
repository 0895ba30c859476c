/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a GO: one table, also for one that is armed, and when an armed one votes; and one for the GO of a job
 * of several parts, which is never armed. Pure; any thread.
 *
 * GO freezes the window (close, armed), reduces it and votes. An armed GO is sent with the window's opening and waits
 * in the engine: the vote begins in the turn in which the last rank has given all that it owes, without gaccd's word.
 * It is the GO's answer, and its only one. An engine has one armed GO at most; it is not in the record, so a successor
 * is sent it again. For jobs of one part: others freeze together.
 *
 * The first row that fits decides what a GO does when it comes:
 *
 *   the GO ...                                                           ruling       status
 *   is of a window that is over                                          GO_REFUSED   WINDOW_CLOSED
 *   is of a window to come                                               GO_REFUSED   NOT_CURRENT_WINDOW
 *   is of an older term than the record                                  GO_REFUSED   STALE_TERM
 *   finds an open window, and is neither `close` nor `armed`             GO_REFUSED   NOT_READY
 *   is of an older term than the armed one, or than the last vote        GO_REFUSED   STALE_TERM
 *   is of the same term, and of an older attempt                         GO_REFUSED   STALE_ATTEMPT
 *   is armed and not `close`, and its window is open and not yet its to
 *     close (below)                                                      GO_WAITS     (later)
 *   else                                                                 GO_VOTES     OK
 *
 * What happens to a GO that waits; taken back, it is answered before the command that takes it back:
 *
 *   event                                                                what becomes of it
 *   the window is open, no rank owes anything, and something is counted  it votes, after the answers of the pass, or of
 *                                                                        the FLUSH; PROGRESS does not say it, too
 *   the same, and nothing is counted                                     it waits; PROGRESS says that the window is
 *                                                                        complete, and gaccd decides
 *   a GO that is not refused                                             answered CANCELLED
 *   DISARM of its window                                                 answered CANCELLED
 *   CLOSE of its window, RESTORE                                         answered CANCELLED
 *   STOP                                                                 answered ENGINE_DOWN
 *   the engine dies                                                      gone
 *
 * A GO of a job of several parts freezes the window, and is answered when the sum over all parts has been taken, in the
 * communicator that it names. Until then it is "at hand": it waits for the communicator to be connected, or its sum is
 * being taken. There is at most one. A later attempt replaces it (go_supersedes): it is answered CANCELLED, and if its
 * sum was being taken, its communicator is over. The first row that fits:
 *
 *   the GO ...                                                           ruling       status
 *   is of a window that is over                                          GO_REFUSED   WINDOW_CLOSED
 *   is of a window to come                                               GO_REFUSED   NOT_CURRENT_WINDOW
 *   is armed                                                             GO_REFUSED   INVALID_ARGUMENT
 *   is of an older term than the record, or than the one at hand         GO_REFUSED   STALE_TERM
 *   finds an open window, and is not `close`                             GO_REFUSED   NOT_READY
 *   finds its window being applied, as parts of a sharded job may        GO_REFUSED   NOT_READY
 *   is of the same term as the one at hand, and of an older attempt      GO_REFUSED   STALE_ATTEMPT
 *   is of the attempt at hand                                            GO_JOINS     (later)
 *   is of the attempt of the last vote                                   GO_VOTES     OK
 *   is of the same term as the last vote, and of an older attempt        GO_REFUSED   STALE_ATTEMPT
 *   finds trainers that still read a reduced gradient: the sum would
 *     overwrite it                                                       GO_REFUSED   NOT_READY
 *   names a communicator that this engine has not been told of, or finds
 *     a fill under way                                                   GO_REFUSED   NOT_READY
 *   names one that is over: broken, left, or never this life's           GO_REFUSED   UNAVAILABLE: a vote that failed
 *   else                                                                 GO_SUMS      (later)
 *
 * GO_JOINS: the earlier one is answered CANCELLED, and this one takes its place.
 *
 * DISARM says in which phase it leaves the window: OPEN, the window will not freeze by itself; PREPARED, the vote was
 * sent before; CLOSED, somebody else has frozen it.
 */
#ifndef GACC_ENGINE_GO_H
#define GACC_ENGINE_GO_H

#include "engine/channel.h"

#include <stdbool.h>

/* A GO that waits. All zero: there is none. */
struct go_armed {
	bool waits;
	struct engine_command go;
};

enum go_ruling { GO_REFUSED, GO_WAITS, GO_VOTES, GO_JOINS, GO_SUMS };

/* The GO at hand of a job of several parts. */
enum go_stage { GO_NONE, GO_CONNECTS, GO_ADDS };
struct go_sum {
	enum go_stage stage; /* GO_NONE: there is none */
	struct engine_command go;
};

/* How the communicator that a GO names stands with this engine. */
enum go_comm { GO_COMM_FREE, GO_COMM_FORMS, GO_COMM_FILLS, GO_COMM_UNTOLD, GO_COMM_OVER };

struct go_verdict {
	enum go_ruling ruling;
	enum status status; /* of a GO that is refused; else ST_OK */
};

/* owing: ranks that owe the open window something. */
struct go_verdict go_judge(const struct control_record *, const struct go_armed *, uint32_t owing,
			   const struct engine_command *go);
/* For a job of several parts. */
struct go_verdict go_judge_sum(const struct control_record *, const struct go_sum *, enum go_comm,
			       const struct engine_command *go);
/* It is of a later attempt than the one at hand, which ends. */
bool go_supersedes(const struct control_record *, const struct go_sum *, const struct engine_command *go);
/* A GO that waits for this window votes now. */
bool go_is_due(const struct control_record *, const struct go_armed *, uint32_t owing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a GO: one table, also for one that is armed, and when an armed one votes. Pure; any thread.
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

enum go_ruling { GO_REFUSED, GO_WAITS, GO_VOTES };

struct go_verdict {
	enum go_ruling ruling;
	enum status status; /* of a GO that is refused; else ST_OK */
};

/* owing: ranks that owe the open window something. */
struct go_verdict go_judge(const struct control_record *, const struct go_armed *, uint32_t owing,
			   const struct engine_command *go);
/* A GO that waits for this window votes now. */
bool go_is_due(const struct control_record *, const struct go_armed *, uint32_t owing);

#endif

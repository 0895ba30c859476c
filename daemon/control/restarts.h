/* SPDX-License-Identifier: Apache-2.0 */
/* When a job's engine is restarted, and when gaccd gives up.
 *
 * Pure state machine; one thread; time is an argument. States and transitions: docs/protocol.md, "Engine of a job".
 *
 * A failure is an engine that cannot be started, or that died before it had made progress (a micro-batch, a step, the
 * parameters) or had lived for RESTARTS_STEADY_NS after its HELLO. Consecutive failures are a crash loop ("row" in the
 * names). After RESTARTS_ROW of them a job that has nothing to lose ends; others report it, and end when the crash loop
 * is as old as their patience. An attach, a flush or a vote is no progress: an engine could die after one of them for
 * ever.
 */
#ifndef GACC_CONTROL_RESTARTS_H
#define GACC_CONTROL_RESTARTS_H

#include "control/messages.h"
#include "engine/channel.h"

#define RESTARTS_ROW 5
#define RESTARTS_STEADY_NS (INT64_C(300) * 1000000000)
#define RESTARTS_BACK_NS (INT64_C(2) * 1000000000) /* of life after HELLO: the trouble seems to be over */
#define RESTARTS_FIRST_NS (INT64_C(20) * 1000000)  /* until the first; doubles */
#define RESTARTS_MAX_NS (INT64_C(10000) * 1000000)

struct restarts { /* zero: no engine yet, nothing to lose */
	/* parameters, or sessions: the memory is worth waiting for. The owner's, and set by HELLO */
	bool patient;
	bool up, moved;		/* HELLO was said; and the job moved */
	bool had_come_up;	/* so had the last that failed */
	bool troubled;		/* told to be in trouble, and not back yet */
	uint64_t window, count; /* of the record, as the last HELLO found it */
	bool params_ready;
	uint32_t failures;     /* of the row */
	uint32_t own;	       /* of these, those for which nothing outside is the reason */
	int64_t since_ns;      /* the first of the row */
	int64_t up_ns, due_ns; /* due 0: no start is due */
	char cause[160];       /* of the last */
};

enum restarts_verdict {
	/* again, at due_ns; it was not up, and the cause is that of the failure before it in the row */
	RESTARTS_AS_BEFORE,
	RESTARTS_NEWS, /* again; that is worth telling */
	RESTARTS_GIVE_UP
};

/* With the control record as it has found it: what the engine before it has done shows in it, told or not. */
void restarts_on_hello(struct restarts *, const struct control_record *, struct now);
void restarts_on_answer(struct restarts *, const struct engine_answer *);
/* The engine is gone, or could not be started. `outside`: somebody has killed it, or a network hangs. patience_ns: the
 * longest age of a row. */
enum restarts_verdict restarts_on_failure(struct restarts *, const char *cause, bool outside, int64_t patience_ns,
					  struct now);
/* The time until now does not count: nobody waits for the job. */
void restarts_excuse(struct restarts *, struct now);
/* true, once: it is to be started now. */
bool restarts_due(struct restarts *, struct now);
/* true, once: the engine was in trouble, and is of use or has lived for RESTARTS_BACK_NS. The row is over only in the
 * first case. */
bool restarts_recovered(struct restarts *, struct now);
/* The row is so long that it should be told. */
bool restarts_in_trouble(const struct restarts *);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the order that the parts get in each phase, and decides when it is repeated and to which parts. For the
 * coordinator's other files, which change the phase. Pure; loop thread. */
#include "control/coord_impl.h"

#include <string.h>

static void fill_order(const struct coord *c, struct order *o)
{
	*o = (struct order){
		.job_id = c->job_id, .epoch = c->epoch, .term = c->term, .window = c->window, .number = c->order_number
	};
	o->run = c->phase > COORD_START && c->phase < COORD_ENDING; /* it may end before it has run */
	o->late = c->late;
	o->n_late = c->n_late < ORDER_MAX_LATE ? c->n_late : ORDER_MAX_LATE;
	o->paused = c->held;
	if (c->armed && !c->held && !c->norms_wanted && (c->phase == COORD_COLLECT || c->phase == COORD_COMMIT))
		o->armed = c->attempt;
	if (c->comm.k && c->phase <= COORD_COMMIT) {
		o->comm = c->comm.k;
		o->join_ms = (uint32_t)(c->comm.join_ns / 1000000);
		o->fill_part = c->comm.fill;
	}
	switch (c->phase) {
	case COORD_CLOSE:
		o->want = WANT_CLOSE;
		break;
	case COORD_GO:
	case COORD_PERSIST: /* a part whose engine was restarted votes again */
		/* without memory for its board there is no communicator yet; and the slots may not be there */
		o->want = (c->comm.board && !c->comm.k) || (c->phase == COORD_GO && !coord_slots_held(c)) ? WANT_CLOSE
													  : WANT_GO;
		o->attempt = c->attempt;
		o->norms = c->norms_asked;
		break;
	case COORD_COMMIT:
		o->want = WANT_COMMIT;
		o->commit = c->commit;
		break;
	case COORD_ENDED:
		o->want = WANT_END;
		o->end_status = c->end_status;
		memcpy(o->end_reason, c->end_reason, sizeof(o->end_reason));
		break;
	case COORD_START:
	case COORD_COLLECT:
	case COORD_ENDING:
		break;
	}
}

void coord_send_order(struct coord *c, uint32_t part)
{
	struct order o;
	fill_order(c, &o);
	c->ports.order(c->ports.ctx, part, &o);
}

void coord_renew_order(struct coord *c)
{
	c->order_number++;
}

void coord_broadcast(struct coord *c, struct now now)
{
	coord_renew_order(c);
	coord_resend(c, now);
}

void coord_resend(struct coord *c, struct now now)
{
	if (c->superseded || c->phase == COORD_ENDING)
		return;
	c->sent_ns = now.mono_ns;
	c->late_sent_ns = c->n_late ? now.mono_ns : 0;
	COORD_EACH_PART(c, i)
	if (c->phase != COORD_ENDED || !c->peer[i].last.ended)
		coord_send_order(c, i);
}

static bool has_order(const struct coord *c, const struct peer *p)
{
	if (c->phase == COORD_ENDED)
		return p->last.ended;
	return p->known && p->last.term == c->term && p->last.order >= c->order_number;
}

void coord_repeat(struct coord *c, struct now now)
{
	int64_t late_every = c->n_peers * COORD_LATE_EACH_NS;
	if (c->superseded || c->phase == COORD_ENDING)
		return;
	if (late_every < COORD_RESEND_NS)
		late_every = COORD_RESEND_NS;
	if ((c->n_late || c->late_sent_ns) && now.mono_ns - c->late_sent_ns >= late_every) {
		coord_resend(c, now);
		return;
	}
	if (now.mono_ns - c->sent_ns < COORD_RESEND_NS)
		return;
	c->sent_ns = now.mono_ns;
	COORD_EACH_PART(c, i)
	if (!has_order(c, &c->peer[i]))
		coord_send_order(c, i);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A part that begins with a checkpoint: what its placement says of that goes to its engine, and the engine's answer to
 * the state machine. For part_place.c and part_engine.c. Loop thread. */
#include "cluster/restore_message.h"
#include "runtime/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status part_begin_with(struct part *p, const struct part_restore *r)
{
	struct engine_restore from = r->from;
	size_t n = sizeof(from) + r->n_path;
	char *tail = malloc(n);
	p->restore_path = strndup(r->path, r->n_path);
	if (!tail || !p->restore_path) {
		free(tail);
		return ST_NO_MEMORY;
	}
	if (from.carry) { /* a rank of another part is out of range for the engine */
		from.last_rank = part_local(job_part(p->job), from.last_rank);
		from.lr_rank = part_local(job_part(p->job), from.lr_rank);
	}
	memcpy(tail, &from, sizeof(from));
	memcpy(tail + sizeof(from), r->path, r->n_path);
	job_begin_with(p->job, tail, (uint32_t)n);
	return ST_OK;
}

static void on_failure(struct part *p, const struct engine_answer *a)
{
	char why[384];
	snprintf(why, sizeof(why), "restore_from %.120s: %s; others: gaccctl checkpoint list JOB", p->restore_path,
		 a->text);
	p->ports.event(p, true, "RestoreFailed", -1, why);
	job_fail(p->job, (enum status)a->status, why, node_now());
}

void part_on_restored(struct part *p, const struct engine_answer *a)
{
	char text[300];
	struct control_state state;
	if (a->status) {
		on_failure(p, a);
		return;
	}
	if (part_read_control(p, &state)) {
		job_fail(p->job, ST_SEGMENT_CORRUPT, "the control segment cannot be read", node_now());
		return;
	}
	snprintf(text, sizeof(text), "step %llu, window %llu with %llu micro-batches, from %.160s",
		 (unsigned long long)state.r.applied_step, (unsigned long long)state.r.window,
		 (unsigned long long)state.r.count, p->restore_path);
	p->ports.event(p, false, "Restored", -1, text);
	job_on_restored(p->job, &state, node_now());
	control_state_fini(&state);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which images after a power cut need not be looked at, because others are the same. */
#include "support/power.h"

static bool is_sync(const struct power_op *op)
{
	return op->kind == POWER_SYNC || op->kind == POWER_DATASYNC;
}

/* Owner and mode are the ones that the file had anyway. */
static bool changes_nothing(const struct power_op *op, size_t at)
{
	const struct power_op *was = &op[at];
	for (size_t i = at; i-- > 0 && was == &op[at];)
		if ((op[i].kind == POWER_CREATE || op[i].kind == POWER_META) && op[i].node == was->node)
			was = &op[i];
	return was != &op[at] && was->mode == op[at].mode && was->uid == op[at].uid && was->gid == op[at].gid;
}

/* Whether what an operation has changed of names, owners or modes was synced before the end-th operation; true for all
 * others. */
static bool is_kept(const struct power_op *op, size_t at, size_t end)
{
	const struct power_op *of = &op[at];
	bool is_meta = of->kind == POWER_META;
	if (is_meta && changes_nothing(op, at))
		return true;
	if (!is_meta && of->kind != POWER_CREATE && of->kind != POWER_UNLINK && of->kind != POWER_RENAME)
		return true;
	for (size_t i = at + 1; i < end; i++)
		if (op[i].kind == POWER_SYNC && op[i].node == (is_meta ? of->node : of->dir))
			return true;
	return false;
}

bool power_repeats(const struct power_log *log, size_t ops, enum power_image image)
{
	const struct power_op *op;
	bool all_kept = true;
	power_ops(log, &op);
	const struct power_op *last = &op[ops - 1];
	bool bytes = last->kind == POWER_WRITE || last->kind == POWER_SIZE;
	for (size_t i = 0; i < ops && all_kept; i++)
		all_kept = is_kept(op, i, ops);
	switch (image) {
	case POWER_NOTHING:
		return !is_sync(last);
	case POWER_NAMES: /* as POWER_NOTHING where all names are kept */
		return all_kept || bytes || last->kind == POWER_NOTE;
	case POWER_DATA:
		return !is_sync(last) && !bytes;
	case POWER_LATER: /* as POWER_DATA where all names are kept */
		return all_kept || last->kind == POWER_NOTE;
	case POWER_ALL:
	case POWER_RANDOM:
		break;
	}
	return false;
}

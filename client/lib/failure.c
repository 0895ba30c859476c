/* SPDX-License-Identifier: Apache-2.0 */
/* Turns statuses and RPC errors into the last failure that a caller can read, one sentence with a hint. The owner of
 * the struct locks it; called from the job's thread and the callers of gacc_admin.h. */
#include "lib/failure.h"

#include "lib/channel.h"
#include "proto/utf8.h"

#include <grpc/status.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

gacc_status gacc_status_of(enum status st)
{
	int code = status_info(st)->grpc_code;

	switch (st) {
	case ST_OK:
		return GACC_OK;
	case ST_LAYOUT_MISMATCH:
		return GACC_ELAYOUT;
	case ST_JOB_NOT_FOUND:
		return GACC_ENOTFOUND;
	case ST_WINDOW_CLOSED:
	case ST_WINDOW_FORGOTTEN:
	case ST_SESSION_FENCED:
	case ST_SESSION_UNKNOWN:
	case ST_STALE_EPOCH:
	case ST_STALE_TERM:
		return GACC_ESTALE;
	case ST_NONFINITE:
		return GACC_ENONFINITE;
	case ST_JOB_ENDED:
	case ST_CANCELLED:
	case ST_RANK_FAILED:
	case ST_ENGINE_FAILED:
		return GACC_ECANCELLED;
	case ST_RESOURCE_EXHAUSTED:
	case ST_NO_SLOT:
	case ST_NO_MEMORY:
		return GACC_ENOMEM;
	case ST_STALLED:
	case ST_DEADLINE:
		return GACC_ETIMEOUT;
	case ST_PARAMS_CHANGED:
		return GACC_EAGAIN;
	case ST_UNAUTHENTICATED:
	case ST_PERMISSION_DENIED:
		return GACC_EPERM;
	case ST_UNAVAILABLE:
	case ST_DRAINING:
	case ST_ENGINE_DOWN:
		return GACC_EUNAVAIL;
	case ST_UNIMPLEMENTED:
		return GACC_ENOSYS;
	default:
		return code == GRPC_STATUS_INVALID_ARGUMENT || code == GRPC_STATUS_FAILED_PRECONDITION ||
				       code == GRPC_STATUS_ALREADY_EXISTS
			       ? GACC_EINVAL
			       : GACC_EINTERNAL;
	}
}

/* Names and paths of others are in there, and programs print it: what would act on a terminal is escaped, as gaccctl
 * and gaccd do. */
static void escape(char *text, size_t size)
{
	char shown[sizeof(((struct failure *)0)->text)], as[UTF8_ESCAPE_MAX];
	const char *end = text + strlen(text);
	size_t n = 0, one;

	for (const char *at = text; at < end; at += one) {
		one = utf8_escape(at, end, UTF8_TEXT, as);
		const char *from = *as ? as : at;
		size_t length = *as ? strlen(as) : one;
		if (n + length >= size)
			break;
		memcpy(shown + n, from, length);
		n += length;
	}
	memcpy(text, shown, n);
	text[n] = '\0';
}

static void compose(struct failure *f, const char *what)
{
	escape(f->reason, sizeof(f->reason));
	escape(f->message, sizeof(f->message));
	escape(f->hint, sizeof(f->hint));
	snprintf(f->text, sizeof(f->text), "%s%s%s%s%s", what, *what ? ": " : "", f->message, *f->hint ? "; " : "",
		 f->hint);
	escape(f->text, sizeof(f->text));
}

gacc_status failure_set(struct failure *f, enum status st, const char *hint, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->message, sizeof(f->message), fmt, ap);
	va_end(ap);
	f->code = gacc_status_of(st);
	f->st = st;
	snprintf(f->reason, sizeof(f->reason), "%s", status_info(st)->name);
	snprintf(f->hint, sizeof(f->hint), "%s", hint ? hint : "");
	compose(f, "");
	return f->code;
}

/* ": waiting for ranks 1, 3" when the message alone does not say it. */
static void append_missing(struct failure *f, const struct rpc_failure *rpc)
{
	size_t n = strlen(f->message);

	for (size_t i = 0; i < rpc->n_missing_ranks && n < sizeof(f->message); i++)
		n += (size_t)snprintf(f->message + n, sizeof(f->message) - n, "%s%u",
				      i				 ? ", "
				      : rpc->n_missing_ranks > 1 ? " (missing: ranks "
								 : " (missing: rank ",
				      rpc->missing_ranks[i]);
	if (rpc->n_missing_ranks && n < sizeof(f->message))
		snprintf(f->message + n, sizeof(f->message) - n, ")");
}

gacc_status failure_of_rpc(struct failure *f, const char *what, const struct rpc_failure *rpc)
{
	const char *known = status_info(rpc->status)->name;

	f->code = gacc_status_of(rpc->status);
	f->st = rpc->status;
	snprintf(f->reason, sizeof(f->reason), "%s", *rpc->reason ? rpc->reason : known);
	snprintf(f->message, sizeof(f->message), "%s", *rpc->message ? rpc->message : status_info(rpc->status)->text);
	append_missing(f, rpc);
	snprintf(f->hint, sizeof(f->hint), "%s", rpc->hint);
	compose(f, what);
	return f->code;
}

gacc_status failure_copy(struct failure *to, const struct failure *from)
{
	*to = *from;
	return to->code;
}

bool is_outage(const struct rpc_failure *failure)
{
	switch (failure->status) {
	case ST_UNAVAILABLE:
	case ST_DRAINING:
	case ST_ENGINE_DOWN:
		return true;
	case ST_CANCELLED:
		return !*failure->reason; /* nobody asked for it: a server that died between accept and answer */
	default:
		return false;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Asks for the exchange slots of jobs with several parts, and tells coordinators when their turn has come: when the
 * handler in which another job has given its slots back has returned, so that no port calls back. For the coordinators'
 * ports. Loop thread. */
#include "edge/exchanging.h"

#include "edge/hosted_nodes.h"

#include <stdlib.h>

enum status exchanging_open(struct daemon *d)
{
	return exchanges_new(&d->exchanges, d->node.conf->engine.exchanges);
}

void exchanging_close(struct daemon *d)
{
	exchanges_free(d->exchanges);
	d->exchanges = NULL;
}

enum status exchanging_add(struct hosted *h)
{
	if (h->n_parts == 1)
		return ST_OK;
	const char **node = calloc(h->n_parts, sizeof(*node));
	if (!node)
		return ST_NO_MEMORY;
	for (uint32_t i = 0; i < h->n_parts; i++)
		node[i] = hosted_node(h, i);
	enum status st = exchanges_add(h->d->exchanges, &h->exchanger, h->id, node, h->n_parts);
	free(node);
	return st;
}

static struct hosted *hosted_of(struct exchanger *x)
{
	return (struct hosted *)((char *)x - offsetof(struct hosted, exchanger));
}

/* A coordinator may give its slots back at once, so the next one is asked for each time. */
static void run_granted(struct posted *p)
{
	struct daemon *d = (struct daemon *)((char *)p - offsetof(struct daemon, exchange_post));
	d->exchange_posted = false;
	if (!d->exchanges)
		return; /* gaccd ends */
	for (struct exchanger *x; (x = exchanges_next(d->exchanges));)
		coord_on_exchange(hosted_of(x)->coord, daemon_now(d));
}

static void tell_granted(struct daemon *d)
{
	if (d->exchange_posted || !exchanges_granted(d->exchanges))
		return;
	d->exchange_posted = true;
	daemon_post(d, &d->exchange_post, run_granted);
}

void exchanging_remove(struct hosted *h)
{
	if (!h->exchanger.node)
		return;
	exchanges_remove(h->d->exchanges, &h->exchanger, daemon_now(h->d).mono_ns);
	tell_granted(h->d);
}

bool exchanging_ask(void *ctx, struct now now)
{
	struct hosted *h = ctx;
	const bool has = exchanges_ask(h->d->exchanges, &h->exchanger, now.mono_ns);
	tell_granted(h->d);
	return has;
}

void exchanging_give(void *ctx, struct now now)
{
	struct hosted *h = ctx;
	exchanges_give(h->d->exchanges, &h->exchanger, now.mono_ns);
	tell_granted(h->d);
}

void exchanging_waits(void *ctx, char *text, size_t n, struct now now)
{
	const struct hosted *h = ctx;
	exchanges_describe(h->d->exchanges, &h->exchanger, text, n, now.mono_ns);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs that this gaccd coordinates, as all of edge sees them: finding one, whose it is, how it stands, who holds
 * it. Loop thread. */
#include "edge/hosted.h"

#include "edge/links.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one without machines ---- */

void hosted_unmake(struct hosted *h)
{
	if (!h)
		return;
	specification_drop(h->text);
	free(h->user);
	free(h->end.reason);
	free(h->end.view);
	free(h->end.counted);
	free(h->place.why);
	free(h->scalars);
	events_fini(&h->events);
	calls_fini(&h->watchers);
	calls_fini(&h->norms_calls);
	free(h);
}

struct hosted *hosted_make(struct daemon *d, uint64_t id, uint32_t uid, const char *user, struct specification *text,
			   uint32_t n_events)
{
	struct hosted *h = text ? calloc(1, sizeof(*h)) : NULL;
	if (!h) {
		specification_drop(text);
		return NULL;
	}
	h->text = text;
	h->spec = &text->spec;
	h->d = d;
	h->id = id;
	h->uid = uid;
	h->user = strdup(user);
	if (events_init(&h->events, n_events) && h->user)
		return h;
	hosted_unmake(h);
	return NULL;
}

/* ---- finding ---- */

struct hosted *hosted_find(const struct daemon *d, uint64_t id)
{
	uint32_t lo = 0, hi = d->n_jobs;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (d->job[mid]->id == id)
			return d->job[mid];
		if (d->job[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* The newest of this name that has not ended, else the newest. `own`: of this user; else of the others. */
static struct hosted *find_name(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	struct hosted *newest = NULL;
	for (uint32_t i = d->n_jobs; i-- > 0;) {
		struct hosted *h = d->job[i];
		if ((h->uid == uid) != own || strcmp(h->spec->name, name))
			continue;
		if (!hosted_ended(h))
			return h;
		if (!newest)
			newest = h;
	}
	return newest;
}

bool hosted_name_is_id(const char *name, uint64_t *out_id)
{
	const char *digits = !strncmp(name, "job/", 4) ? name + 4 : name;
	char *end;
	errno = 0;
	unsigned long long id = strtoull(digits, &end, 10);
	*out_id = id;
	return !errno && *digits >= '0' && *digits <= '9' && !*end; /* strtoull takes signs and spaces, too */
}

struct hosted *hosted_find_named(const struct daemon *d, const char *name, uint32_t uid, bool own)
{
	uint64_t id;
	if (hosted_name_is_id(name, &id)) {
		struct hosted *h = hosted_find(d, id);
		return h && hosted_is_of(h, uid) ? h : NULL;
	}
	struct hosted *h = find_name(d, name, uid, true);
	return h || own || uid ? h : find_name(d, name, uid, false);
}

/* ---- whose it is, and how it stands ---- */

bool hosted_is_of(const struct hosted *h, uint32_t uid)
{
	return uid == 0 || uid == h->uid;
}

bool hosted_ended(const struct hosted *h)
{
	return !h->coord || coord_phase(h->coord) == COORD_ENDED;
}

bool hosted_is_over(const struct hosted *h)
{
	return hosted_ended(h) || coord_is_over(h->coord);
}

enum job_state hosted_state(const struct hosted *h, const char **out_reason, int64_t *out_since_unix_ns)
{
	if (h->coord)
		return coord_state(h->coord, out_reason, out_since_unix_ns);
	if (out_reason)
		*out_reason = h->end.reason ? h->end.reason : "";
	if (out_since_unix_ns)
		*out_since_unix_ns = h->ended_unix_ns;
	return h->end.state;
}

struct hosted *hosted_of_message(const struct daemon *d, const struct link_message *m)
{
	struct hosted *h = hosted_find(d, m->job);
	if (!h || !h->coord)
		return NULL;
	const bool has = m->part < h->n_parts;
	if (has && h->part[m->part].node == m->node)
		return h;
	links_refuse(m, has ? "the part is on another node" : "the job has no such part");
	return NULL;
}

void hosted_part_text(const struct hosted *h, uint32_t part, const char *what, char *out, size_t n)
{
	int at = h->n_parts > 1 ? snprintf(out, n, "part %u: ", part) : 0;
	snprintf(out + at, n - (size_t)at, "%s", what);
}

static struct part *if_ours(const struct hosted *h, struct part *p)
{
	return p && h->coord && !memcmp(p->uuid, h->uuid, sizeof(h->uuid)) ? p : NULL;
}

struct part *hosted_part_here(const struct hosted *h, uint32_t part)
{
	return if_ours(h, part_find(&h->d->node, h->id, part));
}

struct part *hosted_part_for_rank(const struct hosted *h, uint32_t rank)
{
	const struct node *n = &h->d->node;
	return if_ours(h, rank < h->spec->ranks ? part_of_rank(n, h->id, rank) : part_first(n, h->id));
}

uint64_t hosted_host_bytes(const struct hosted *h)
{
	uint64_t bytes = h->kept_bytes;
	for (uint32_t i = 0; i < h->n_parts; i++)
		bytes += h->part[i].seen ? h->part[i].seen->view.bytes : 0;
	return bytes;
}

enum status hosted_part_need(const struct hosted *h, uint32_t part, const struct arena *a, uint64_t *out)
{
	struct job_spec own = *h->spec;
	own.ranks = coord_part_ranks(h->coord, part)->n;
	return part_need(&h->d->node, &own, a, out);
}

enum status hosted_need(const struct hosted *h, const struct arena *a, uint64_t *out)
{
	enum status st = ST_OK;
	*out = 0;
	for (uint32_t i = 0; i < h->n_parts && !st; i++) {
		uint64_t need = 0;
		if (!h->part[i].node)
			st = hosted_part_need(h, i, a, &need);
		*out += need;
	}
	return st;
}

bool hosted_ranks_known(const struct hosted *h)
{
	uint32_t i = 0;
	while (i < h->n_parts && h->part[i].seen && h->part[i].seen->view.ranks_known)
		i++;
	return i == h->n_parts;
}

uint64_t hosted_window(const struct hosted *h)
{
	const struct commit *k = h->coord ? coord_last_commit(h->coord) : NULL;
	if (!h->coord)
		return h->end.window;
	return coord_phase(h->coord) >= COORD_ENDING && k ? k->window + 1 : coord_window(h->coord);
}

void hosted_note_step(struct hosted *h, const struct commit *k)
{
	rate_add(&h->rate, k->unix_nanos, k->wait_fraction);
}

void hosted_user_name(uint32_t uid, char *out, size_t n)
{
	struct passwd p, *found = NULL;
	char buf[4096];
	if (!getpwuid_r(uid, &p, buf, sizeof(buf), &found) && found)
		snprintf(out, n, "%s", p.pw_name);
	else
		snprintf(out, n, "%u", uid);
}

/* ---- who holds it ---- */

void hosted_hold(struct hosted *h)
{
	h->n_holders++;
}

void hosted_drop(struct hosted *h)
{
	h->n_holders--;
}

void hosted_on_written(void *arg, enum status st)
{
	daemon_check_store(st);
	hosted_drop(arg);
}

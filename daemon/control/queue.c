/* SPDX-License-Identifier: Apache-2.0 */
/* Admits jobs: which may have memory now, in which order the others wait, and the sentence that says why. For
 * edge/hosted_queue.c on the loop thread. Pure, no state; any thread. */
#include "control/queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void queue_bytes(uint64_t bytes, char out[24])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)bytes;
	size_t u = 0;
	for (; v >= 1024 && u + 1 < sizeof(units) / sizeof(*units); u++)
		v /= 1024;
	snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

#define QUEUE_OBSTACLE 200 /* bytes of one reason */

/* What the jobs that do not wait use: those of one user, or all. */
struct usage {
	uint64_t bytes, device_bytes, descriptors, stored;
	uint32_t jobs, leaving; /* leaving: of these */
};

static struct usage usage_of(const struct queue_job *j, size_t n, const uint32_t *uid)
{
	struct usage u = { 0 };
	for (size_t i = 0; i < n; i++)
		if (!j[i].waiting && (!uid || j[i].uid == *uid)) {
			u.bytes += j[i].bytes;
			u.device_bytes += j[i].device_bytes;
			u.descriptors += j[i].descriptors;
			u.stored += j[i].stored;
			u.jobs += !j[i].ended;
			u.leaving += j[i].leaving;
		}
	return u;
}

static uint64_t rest(uint64_t limit, uint64_t used)
{
	return limit > used ? limit - used : 0;
}

static uint64_t node_free(const struct queue_limits *l, const struct queue_job *j, size_t n)
{
	uint64_t left = rest(l->host_memory, usage_of(j, n, NULL).bytes);
	return left < l->available ? left : l->available;
}

/* The user's own limits let it run. */
static bool user_allows(const struct queue_limits *l, const struct queue_job *j, size_t n, const struct queue_job *c)
{
	struct usage mine = usage_of(j, n, &c->uid);
	return mine.jobs < l->jobs_per_user &&
	       (!l->host_memory_per_user || c->bytes <= rest(l->host_memory_per_user, mine.bytes));
}

static bool node_allows(const struct queue_limits *l, const struct queue_job *j, size_t n, const struct queue_job *c)
{
	struct usage all = usage_of(j, n, NULL);
	return all.jobs < l->jobs && c->bytes <= node_free(l, j, n) &&
	       c->descriptors <= rest(l->descriptors, all.descriptors) && c->stored <= rest(l->stored, all.stored) &&
	       c->stored <= rest(l->mapped, all.stored);
}

/* ---- the fair order ---- */

static bool overdue(const struct queue_job *j)
{
	return j->overtaken >= QUEUE_MAX_OVERTAKES;
}

void queue_judge(const struct queue_limits *l, struct queue_job *j, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!j[i].waiting)
			continue;
		j[i].user_bytes = usage_of(j, n, &j[i].uid).bytes;
		j[i].held = !user_allows(l, j, n, &j[i]);
	}
}

/* Does a come before b? Both wait. */
static bool before(const struct queue_job *a, const struct queue_job *b)
{
	if (a->held != b->held)
		return b->held;
	if (overdue(a) != overdue(b))
		return overdue(a);
	if (!overdue(a) && a->user_bytes != b->user_bytes)
		return a->user_bytes < b->user_bytes;
	return a->id < b->id;
}

static uint32_t place(const struct queue_job *j, size_t n, size_t index)
{
	uint32_t ahead = 0;
	for (size_t i = 0; i < n; i++)
		ahead += j[i].waiting && i != index && before(&j[i], &j[index]);
	return ahead + 1;
}

/* Counts an overtaking for every user's oldest waiting job that is older than the one that starts and is not held back
 * by its user's limits. */
static void note_overtaken(struct queue_job *j, size_t started)
{
	for (size_t i = 0; i < started; i++) {
		if (!j[i].waiting || j[i].held)
			continue;
		bool oldest = true;
		for (size_t k = 0; k < i; k++)
			oldest &= !j[k].waiting || j[k].held || j[k].uid != j[i].uid;
		j[i].overtaken += oldest;
	}
}

/* The job before which nothing starts, or QUEUE_NONE. */
static uint32_t barrier(const struct queue_job *j, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (j[i].waiting && !j[i].held && overdue(&j[i]))
			return (uint32_t)i;
	return QUEUE_NONE;
}

uint32_t queue_next(const struct queue_limits *l, struct queue_job *j, size_t n)
{
	size_t best = n;
	uint32_t first = barrier(j, n);
	if (first != QUEUE_NONE)
		return node_allows(l, j, n, &j[first]) ? first : QUEUE_NONE;
	for (size_t i = 0; i < n; i++)
		if (j[i].waiting && !j[i].held && (best == n || before(&j[i], &j[best])) && node_allows(l, j, n, &j[i]))
			best = i;
	if (best == n)
		return QUEUE_NONE;
	note_overtaken(j, best);
	return (uint32_t)best;
}

/* ---- sentences for users ---- */

/* "alice 2.0 GiB (2 jobs), bob 0.8 GiB (1 job)"; the first four users. */
static void say_users(const struct queue_job *j, size_t n, char *out, size_t n_out)
{
	size_t at = 0;
	uint32_t said = 0;
	out[0] = '\0';
	for (size_t i = 0; i < n && at < n_out; i++) {
		bool first = !j[i].waiting;
		for (size_t k = 0; k < i; k++)
			first &= j[k].waiting || j[k].uid != j[i].uid;
		if (!first)
			continue;
		if (said == 4) {
			snprintf(out + at, n_out - at, ", ...");
			break;
		}
		struct usage u = usage_of(j, n, &j[i].uid);
		char bytes[24];
		queue_bytes(u.bytes, bytes);
		at += (size_t)snprintf(out + at, n_out - at, "%s%.32s %s (%u job%s)", said++ ? ", " : "", j[i].user,
				       bytes, u.jobs, u.jobs == 1 ? "" : "s");
	}
}

/* "needs 3.0 GiB of GPUs' memory, 1.2 GiB of limits.device_memory (80.0 GiB) are free"; false: it fits. */
static bool say_device(const struct queue_limits *l, const struct queue_job *j, size_t n, const struct queue_job *c,
		       char *why, size_t n_why)
{
	const uint64_t all = usage_of(j, n, NULL).device_bytes, mine = usage_of(j, n, &c->uid).device_bytes;
	const bool of_all = l->device_memory && c->device_bytes > rest(l->device_memory, all);
	const uint64_t limit = of_all ? l->device_memory : l->device_memory_per_user;
	char need[24], left[24], whole[24];
	if (!of_all && (!limit || c->device_bytes <= rest(limit, mine)))
		return false;
	queue_bytes(c->device_bytes, need);
	queue_bytes(rest(limit, of_all ? all : mine), left);
	queue_bytes(limit, whole);
	snprintf(why, n_why, "needs %s of GPUs' memory, %s of limits.device_memory%s (%s) are free%s%.32s", need, left,
		 of_all ? "" : "_per_user", whole, of_all ? "" : " for ", of_all ? "" : c->user);
	return true;
}

static bool say_descriptors(const struct queue_limits *l, const struct usage *others, const struct queue_job *c,
			    char *why, size_t n_why)
{
	if (c->descriptors > rest(l->descriptors, others->descriptors))
		snprintf(why, n_why,
			 "needs %" PRIu64 " descriptors, other jobs hold %" PRIu64 " of the %" PRIu64
			 " that gaccd has for jobs (LimitNOFILE= of its unit, ulimit -Hn)",
			 c->descriptors, others->descriptors, l->descriptors);
	else if (c->stored > rest(l->stored, others->stored))
		snprintf(why, n_why,
			 "needs %" PRIu64 " places in the descriptor store, other jobs hold %" PRIu64 " of %" PRIu64
			 " (FileDescriptorStoreMax= of gaccd's unit)",
			 c->stored, others->stored, l->stored);
	else if (c->stored > rest(l->mapped, others->stored))
		snprintf(why, n_why,
			 "needs %" PRIu64 " mappings, other jobs hold %" PRIu64 " of the %" PRIu64
			 " that gaccd has for jobs (sysctl vm.max_map_count)",
			 c->stored, others->stored, l->mapped);
	else
		return false;
	return true;
}

/* " (2 of them over, but with ranks that have not ended)", or nothing. */
static void say_leaving(const struct usage *u, char *out, size_t n)
{
	out[0] = '\0';
	if (u->leaving)
		snprintf(out, n, " (%u of them over, but with ranks that have not ended)", u->leaving);
}

/* Why it does not start now, whatever waits before it; false: it fits. */
static bool say_obstacle(const struct queue_limits *l, const struct queue_job *j, size_t n, const struct queue_job *c,
			 char *why, size_t n_why)
{
	struct usage mine = usage_of(j, n, &c->uid), all = usage_of(j, n, NULL);
	char need[24], left[24], limit[24], over[64];
	queue_bytes(c->bytes, need);
	if (mine.jobs >= l->jobs_per_user) {
		say_leaving(&mine, over, sizeof(over));
		snprintf(why, n_why, "%.32s has %u jobs running%s, limits.jobs_per_user is %u", c->user, mine.jobs,
			 over, l->jobs_per_user);
	} else if (!user_allows(l, j, n, c)) {
		queue_bytes(rest(l->host_memory_per_user, mine.bytes), left);
		queue_bytes(l->host_memory_per_user, limit);
		snprintf(why, n_why, "needs %s, %s of limits.host_memory_per_user (%s) are free for %.32s", need, left,
			 limit, c->user);
	} else if (all.jobs >= l->jobs) {
		say_leaving(&all, over, sizeof(over));
		snprintf(why, n_why, "%u jobs are running%s, limits.jobs is %u", all.jobs, over, l->jobs);
	} else if (c->bytes > node_free(l, j, n)) {
		queue_bytes(node_free(l, j, n), left);
		queue_bytes(l->host_memory, limit);
		snprintf(why, n_why,
			 rest(l->host_memory, all.bytes) <= l->available
				 ? "needs %s, %s of limits.host_memory (%s) are free"
				 : "needs %s, %s are free (limits.host_memory is %s, but the machine has no more)",
			 need, left, limit);
	} else {
		return say_descriptors(l, &all, c, why, n_why);
	}
	return true;
}

/* The job alone exceeds a limit of memory. */
static bool never_fits_memory(const struct queue_limits *l, const struct queue_job *c, char *why, size_t n_why)
{
	char need[24], limit[24];
	bool mine = l->host_memory_per_user && c->bytes > l->host_memory_per_user;
	if (!mine && c->bytes <= l->host_memory)
		return false;
	queue_bytes(c->bytes, need);
	queue_bytes(mine ? l->host_memory_per_user : l->host_memory, limit);
	snprintf(why, n_why, "needs %s and " QUEUE_NEVER ": %s is %s", need,
		 mine ? "limits.host_memory_per_user" : "limits.host_memory", limit);
	return true;
}

static bool never_fits_descriptors(const struct queue_limits *l, const struct queue_job *c, char *why, size_t n_why)
{
	if (c->descriptors > l->descriptors)
		snprintf(why, n_why,
			 "needs %" PRIu64 " descriptors and " QUEUE_NEVER ": gaccd has %" PRIu64
			 " for jobs (RLIMIT_NOFILE less %d); "
			 "raise LimitNOFILE= of its unit (ulimit -Hn), or ask for fewer ranks",
			 c->descriptors, l->descriptors, QUEUE_OWN_DESCRIPTORS);
	else if (c->stored > l->stored)
		snprintf(why, n_why,
			 "needs %" PRIu64 " places in the descriptor store and " QUEUE_NEVER ": it has %" PRIu64
			 " (FileDescriptorStoreMax= of gaccd's unit, or half its supervisor's RLIMIT_NOFILE); ask for "
			 "slots_per_rank: 1 or fewer ranks",
			 c->stored, l->stored);
	else if (c->stored > l->mapped)
		snprintf(why, n_why,
			 "needs %" PRIu64 " mappings and " QUEUE_NEVER ": a process has %" PRIu64
			 " for jobs (vm.max_map_count "
			 "less %d); raise it with sysctl, or ask for slots_per_rank: 1 or fewer ranks",
			 c->stored, l->mapped, QUEUE_OWN_MAPPINGS);
	else
		return false;
	return true;
}

static bool never_fits(const struct queue_limits *l, const struct queue_job *c, char *why, size_t n_why)
{
	return never_fits_memory(l, c, why, n_why) || never_fits_descriptors(l, c, why, n_why);
}

static void say_refusal(const char *obstacle, const struct queue_job *j, size_t n, struct queue_verdict *out)
{
	char users[160];
	say_users(j, n, users, sizeof(users));
	out->status = ST_RESOURCE_EXHAUSTED;
	snprintf(out->why, sizeof(out->why), "%s; in use: %s", obstacle, *users ? users : "nothing");
}

void queue_fits(const struct queue_limits *limits, const struct queue_job *j, size_t n, const struct queue_job *c,
		struct queue_verdict *out)
{
	struct queue_limits l = *limits;
	char obstacle[QUEUE_OBSTACLE];
	l.jobs = l.jobs_per_user = UINT32_MAX;
	l.descriptors = l.stored = l.mapped = UINT64_MAX;
	*out = (struct queue_verdict){ .status = ST_OK };
	if (never_fits(&l, c, out->why, sizeof(out->why)))
		out->status = ST_RESOURCE_EXHAUSTED;
	else if (say_obstacle(&l, j, n, c, obstacle, sizeof(obstacle)))
		say_refusal(obstacle, j, n, out);
	else if (c->device_bytes && say_device(&l, j, n, c, out->why, sizeof(out->why)))
		out->status = ST_RESOURCE_EXHAUSTED;
}

void queue_submit(const struct queue_limits *l, struct queue_job *j, size_t n, const struct queue_job *c, bool may_wait,
		  struct queue_verdict *out)
{
	char obstacle[QUEUE_OBSTACLE];
	uint32_t queued = 0;
	*out = (struct queue_verdict){ .status = ST_RESOURCE_EXHAUSTED };
	if (never_fits(l, c, out->why, sizeof(out->why)))
		return;
	for (size_t i = 0; i < n; i++)
		queued += j[i].waiting && j[i].uid == c->uid;
	if (may_wait && queued >= l->queued_per_user) {
		snprintf(out->why, sizeof(out->why), "%.32s has %u jobs waiting, limits.queued_per_user is %u", c->user,
			 queued, l->queued_per_user);
		return;
	}
	if (!may_wait && say_obstacle(l, j, n, c, obstacle, sizeof(obstacle))) {
		say_refusal(obstacle, j, n, out);
		return;
	}
	uint32_t first = may_wait ? QUEUE_NONE : barrier(j, n);
	if (first != QUEUE_NONE) {
		snprintf(out->why, sizeof(out->why),
			 "job %" PRIu64 " of %.32s has been overtaken %u times and is next: nothing starts "
			 "before it",
			 j[first].id, j[first].user, j[first].overtaken);
		return;
	}
	if (!may_wait)
		note_overtaken(j, n);
	out->status = ST_OK;
	out->wait = may_wait;
}

uint32_t queue_explain(const struct queue_limits *l, const struct queue_job *j, size_t n, size_t index, char *why,
		       size_t n_why)
{
	uint32_t at = place(j, n, index);
	char obstacle[QUEUE_OBSTACLE];
	if (!say_obstacle(l, j, n, &j[index], obstacle, sizeof(obstacle)))
		snprintf(obstacle, sizeof(obstacle), "its turn has not come");
	snprintf(why, n_why, "%s; %u job%s before it", obstacle, at - 1, at == 2 ? "" : "s");
	return at;
}

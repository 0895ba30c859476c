/* SPDX-License-Identifier: Apache-2.0 */
/* What sums over several engines cost: exchange and gather over Gloo, between processes on this machine.
 *
 *   bench_coll [-r rounds, 5..101] [-n elements of f32] [-p bytes of a piece] [-c congestion control] [-N namespaces]
 *
 * A round is, one after the other: exchange and gather of the arena by coll_gloo, with sums in part order; Gloo's own
 * all-reduce in a ring, whose sums are in the order of the ring (goal C6a); and the same bytes through plain TCP
 * connections between the same processes, nothing summed and nothing checked (the limit). Time is that of the slowest
 * process. CPU time is that of all processes. The arena's memcpy by all at once is shown, too.
 *
 * With -N the processes are in the network namespaces that netns.py makes, whose links have a rate: goal C6b, a share
 * of what plain connections reach there. What the kernel does in the place of a network card counts as its CPU time
 * only where it happens to run in the process.
 */
#include "bench.h"
#include "gloo_ring.h"
#include "members.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PARTS MEMBERS_MAX
#define BLOCK 4096 /* elements summed at a time */

static size_t rounds = 15, elements = 54000000, piece = 1 << 20;
static const char *congestion;

enum what { COLLECTIVE, RING, STREAMS, COPY, N_WHAT };

struct process {
	struct members *members;
	const char *dir; /* where Gloo's ring meets */
	uint32_t part, n_parts;
	int fd[MAX_PARTS]; /* plain connections */
	float *in, *out;
	uint64_t bounds[MAX_PARTS + 1];
	struct coll *c;
	struct gloo_ring *ring;
	enum what what; /* is measured */
};

/* ---- ours ---- */

static void need(struct process *p, enum status st, const char *what)
{
	struct coll_state state;
	if (st == ST_OK)
		return;
	coll_poll(p->c, &state);
	bench_die("part %u: %s: %s", p->part, what, state.failure.text);
}

static enum status sum(void *arg, const struct coll_piece *at, const void *const *source, uint32_t n)
{
	struct process *p = arg;
	float *restrict out = p->out + at->from / sizeof(float);
	size_t all = at->n / sizeof(float);
	for (size_t from = 0; from < all; from += BLOCK) {
		size_t to = from + BLOCK < all ? from + BLOCK : all;
		const float *first = source[0], *second = source[1];
		for (size_t i = from; i < to; i++)
			out[i] = first[i] + second[i];
		for (uint32_t s = 2; s < n; s++) {
			const float *next = source[s];
			for (size_t i = from; i < to; i++)
				out[i] += next[i];
		}
	}
	return ST_OK;
}

static void collective(struct process *p)
{
	struct coll_exchange x = { p->in, p->bounds, piece, sizeof(float), sum, p, NULL };
	struct coll_gather g = { .buffer = p->out, .bounds = p->bounds, .piece = piece };
	need(p, coll_exchange(p->c, &x), "exchange");
	need(p, coll_gather(p->c, &g), "gather");
}

/* ---- Gloo's ---- */

static void ring(struct process *p)
{
	if (gloo_ring_sum(p->ring, p->in, p->out, p->bounds[p->n_parts] / sizeof(float)))
		bench_die("part %u: Gloo's ring has failed", p->part);
}

/* ---- the limit ---- */

/* What the exchange and the gather send to one other part. */
static size_t bytes_to(const struct process *p, uint32_t s)
{
	return p->bounds[s + 1] - p->bounds[s] + p->bounds[p->part + 1] - p->bounds[p->part];
}

/* Where byte `at` of what goes between two parts lies in an arena: in the share that is exchanged, then in the one that
 * is gathered. All shares are equal. */
static uint64_t position(const struct process *p, uint32_t first, uint32_t then, size_t at)
{
	uint64_t share = p->bounds[1];
	return at < share ? p->bounds[first] + at : p->bounds[then] + at - share;
}

static void *send_all(void *arg)
{
	struct process *p = arg;
	size_t sent[MAX_PARTS] = { 0 };
	for (bool more = true; more;) {
		more = false;
		for (uint32_t s = 0; s < p->n_parts; s++) {
			size_t n = bytes_to(p, s) - sent[s];
			if (s == p->part || !n)
				continue;
			n = n < piece ? n : piece;
			const char *from = (const char *)p->in + position(p, s, p->part, sent[s]);
			for (size_t done = 0; done < n;) {
				ssize_t k = write(p->fd[s], from + done, n - done);
				if (k <= 0)
					bench_die("a plain connection has broken");
				done += (size_t)k;
			}
			sent[s] += n;
			more = true;
		}
	}
	return NULL;
}

static void streams(struct process *p)
{
	struct pollfd fds[MAX_PARTS];
	size_t left[MAX_PARTS], all = 0;
	pthread_t thread;
	for (uint32_t s = 0; s < p->n_parts; s++) {
		fds[s] = (struct pollfd){ .fd = s == p->part ? -1 : p->fd[s], .events = POLLIN };
		left[s] = s == p->part ? 0 : bytes_to(p, s);
		all += left[s];
	}
	pthread_create(&thread, NULL, send_all, p);
	while (all) {
		poll(fds, p->n_parts, -1);
		for (uint32_t s = 0; s < p->n_parts; s++) {
			if (!fds[s].revents)
				continue;
			size_t want = left[s] < piece ? left[s] : piece;
			size_t at = position(p, p->part, s, bytes_to(p, s) - left[s]);
			ssize_t k = read(fds[s].fd, (char *)p->out + at, want);
			if (k <= 0)
				bench_die("a plain connection has broken");
			left[s] -= (size_t)k;
			all -= (size_t)k;
			fds[s].fd = left[s] ? fds[s].fd : -1;
		}
	}
	pthread_join(thread, NULL);
}

/* ---- processes ---- */

static void copy(struct process *p)
{
	memcpy(p->out, p->in, p->bounds[p->n_parts]);
}

static void work(void *arg)
{
	static void (*const doing[N_WHAT])(struct process *) = { collective, ring, streams, copy };
	struct process *p = arg;
	doing[p->what](p);
}

static void measure(struct process *p, enum what what, size_t round)
{
	p->what = what;
	members_measure(p->members, p->part, what, round, work, p);
}

static void run(struct process *p)
{
	char address[MEMBERS_ADDRESS];
	members_enter(p->part);
	uint64_t share = elements / p->n_parts * sizeof(float);
	for (uint32_t s = 0; s < p->n_parts; s++)
		p->bounds[s + 1] = p->bounds[s] + share;
	size_t n = p->bounds[p->n_parts];
	p->in = aligned_alloc(4096, (n + 4095) / 4096 * 4096 + MAX_PARTS * piece);
	p->out = aligned_alloc(4096, (n + 4095) / 4096 * 4096 + MAX_PARTS * piece);
	if (!p->in || !p->out)
		bench_die("no memory");
	for (size_t i = 0; i < n / sizeof(float); i++)
		p->in[i] = (float)(i % 97) + (float)p->part;
	memset(p->out, 0, n);
	p->c = members_join(p->members, p->part, congestion);
	members_address(p->part, address);
	p->ring = gloo_ring_new(p->dir, address, (int)p->part, (int)p->n_parts);
	if (!p->ring)
		bench_die("part %u: no ring", p->part);
	for (size_t round = 0; round <= rounds; round++) /* the first one warms up */
		for (int what = 0; what < N_WHAT; what++)
			measure(p, what, round ? round - 1 : 0);
	collective(p);
	float of_parts = (float)(p->n_parts * (p->n_parts - 1) / 2);
	for (size_t i = 0; i < n / sizeof(float); i++)
		if (p->out[i] != (float)(i % 97) * (float)p->n_parts + of_parts)
			bench_die("part %u: element %zu is wrong", p->part, i);
	gloo_ring_free(p->ring);
	coll_leave(p->c);
}

static void set_options(int fd)
{
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (congestion)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
}

/* A TCP connection of two ends, which are those of processes i and j. */
static void connect_pair(uint32_t i, uint32_t j, int *a, int *b)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t n = sizeof(at);
	char address[MEMBERS_ADDRESS];
	members_address(j, address);
	inet_pton(AF_INET, address, &at.sin_addr);
	members_enter(j);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&at, n) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &n))
		bench_die("cannot listen on %s", address);
	members_enter(i);
	*a = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(*a, (struct sockaddr *)&at, n))
		bench_die("cannot connect to %s", address);
	*b = accept(listener, NULL, NULL);
	close(listener);
	set_options(*a);
	set_options(*b);
}

static void start(struct members *members, const char *dir, struct bench_group *group)
{
	int fd[MAX_PARTS][MAX_PARTS];
	const uint32_t n_parts = members->n;
	for (uint32_t i = 0; i < n_parts; i++)
		for (uint32_t j = i + 1; j < n_parts; j++)
			connect_pair(i, j, &fd[i][j], &fd[j][i]);
	for (uint32_t s = 0; s < n_parts; s++) {
		struct process p = { .members = members, .dir = dir, .part = s, .n_parts = n_parts };
		group->pid[group->n] = fork();
		if (!group->pid[group->n++]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			memcpy(p.fd, fd[s], sizeof(p.fd));
			run(&p);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < n_parts; i++)
		for (uint32_t j = 0; j < n_parts; j++)
			if (i != j)
				close(fd[i][j]);
}

/* ---- the table ---- */

static void remove_dir(const char *path)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -r %s", path);
	if (system(command))
		bench_die("cannot remove %s", path);
}

static void compare(uint32_t n_parts)
{
	const struct {
		enum what what;
		double goal;
		bool is_floor;
		const char *name;
	} limits[] = { { RING, members_namespaces ? 0 : 1.05, false, "Gloo's all-reduce, ring" },
		       { STREAMS, members_namespaces ? 0.9 : 0, members_namespaces, "plain TCP, same bytes" },
		       { COPY, 0, false, "memcpy by all at once" } };
	struct bench_row row = { .id = members_namespaces ? "C6b" : "C6a", .unit = "ms", .factor = 1e3 };
	struct bench_group group = { .n = 0 };
	struct members *members = members_new(n_parts);
	char dir[] = "/tmp/gacc-ring.XXXXXX";
	if (!mkdtemp(dir))
		bench_die("no directory for Gloo's ring");
	const double begin = bench_seconds(), machine = bench_machine_cpu();
	start(members, dir, &group);
	const double foreign = members_wait(&group, begin, machine);
	row.rounds = rounds;
	snprintf(row.what, sizeof(row.what), "%u parts, %zu MB: exchange + gather", n_parts, elements * 4 / 1000000);
	for (size_t i = 0; i < rounds; i++) {
		row.ours[i] = members_slowest(members, COLLECTIVE, i);
		row.ours_cpu[i] = members_cpu(members, COLLECTIVE, i);
		row.foreign[i] = foreign;
	}
	for (size_t k = 0; k < sizeof(limits) / sizeof(*limits); k++) {
		for (size_t i = 0; i < rounds; i++) {
			row.limit[i] = members_slowest(members, limits[k].what, i);
			row.limit_cpu[i] = members_cpu(members, limits[k].what, i);
		}
		row.goal = limits[k].goal;
		row.goal_is_floor = limits[k].is_floor;
		snprintf(row.limit_name, sizeof(row.limit_name), "%s", limits[k].name);
		bench_row_print(&row);
	}
	remove_dir(dir);
	members_free(members);
}

int main(int argc, char **argv)
{
	for (int opt; (opt = getopt(argc, argv, "r:n:p:c:N:")) != -1;)
		if (opt == 'r')
			rounds = (size_t)atol(optarg);
		else if (opt == 'n')
			elements = (size_t)atol(optarg) / 840 * 840; /* equal shares of any number of parts */
		else if (opt == 'p')
			piece = (size_t)atol(optarg);
		else if (opt == 'c')
			congestion = optarg;
		else if (opt == 'N')
			members_namespaces = optarg;
		else
			return 2;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || !elements || !piece || piece % sizeof(float))
		bench_die("rounds are 5..%d; elements and pieces are not empty", BENCH_MAX_ROUNDS);
	bench_table_head();
	compare(2);
	compare(4);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes members of a communicator over Gloo, one in each process, and measures what they do together. For bench_coll.c
 * and bench_shards.c; main thread of each process. */
#include "members.h"

#include "coll/coll_gloo.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MINUTE_NS INT64_C(60000000000)

const char *members_namespaces;

struct members *members_new(uint32_t n)
{
	struct members *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	if (m == MAP_FAILED || pthread_barrier_init(&m->barrier, &attr, n))
		bench_die("no shared memory");
	pthread_barrierattr_destroy(&attr);
	m->n = n;
	return m;
}

void members_free(struct members *m)
{
	munmap(m, sizeof(*m));
}

/* ---- where a process is ---- */

void members_address(uint32_t part, char out[MEMBERS_ADDRESS])
{
	snprintf(out, MEMBERS_ADDRESS, members_namespaces ? "10.77.0.%u" : "127.0.0.1", part + 1);
}

void members_enter(uint32_t part)
{
	char path[128];
	if (!members_namespaces)
		return;
	snprintf(path, sizeof(path), "/run/netns/%s%u", members_namespaces, part);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		bench_die("cannot enter the network namespace %s%u: tests/bench/netns.py makes them",
			  members_namespaces, part);
	close(fd);
}

struct coll *members_join(struct members *m, uint32_t part, const char *congestion)
{
	char address[MEMBERS_ADDRESS];
	members_address(part, address);
	const struct coll_gloo_config config = { .address = address, .congestion = congestion };
	const struct coll_config member = { .id = { .job = 1, .k = 1 },
					    .part = part,
					    .n_parts = m->n,
					    .life = part + 1,
					    .stall_ns = MINUTE_NS,
					    .join_ns = MINUTE_NS };
	struct coll_address all[MEMBERS_MAX];
	struct coll *c;
	struct coll_net *net = coll_gloo_new(&config, NULL);
	if (!net || coll_open(net, &member, &c, NULL))
		bench_die("part %u: no member over Gloo", part);
	const unsigned char *blob = coll_blob(c, &m->n_blob[part]);
	for (size_t i = 0; i < m->n_blob[part]; i++)
		m->blob[part][i] = blob[i];
	pthread_barrier_wait(&m->barrier);
	for (uint32_t s = 0; s < m->n; s++)
		all[s] = (struct coll_address){ s + 1, m->blob[s], m->n_blob[s] };
	if (coll_join(c, all))
		bench_die("part %u cannot join", part);
	return c;
}

/* ---- how long it takes ---- */

static double seconds_of(const struct rusage *r)
{
	return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) +
	       (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec) / 1e6;
}

static double own_cpu(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return seconds_of(&r);
}

void members_measure(struct members *m, uint32_t part, unsigned what, size_t round, members_fn *fn, void *arg)
{
	pthread_barrier_wait(&m->barrier);
	const double begin = bench_seconds(), cpu = own_cpu();
	fn(arg);
	m->wall[part][what][round] = bench_seconds() - begin;
	m->cpu[part][what][round] = own_cpu() - cpu;
	pthread_barrier_wait(&m->barrier);
}

double members_wait(const struct bench_group *group, double begin, double machine)
{
	double used = 0;
	for (int s = 0; s < group->n; s++) {
		int status;
		struct rusage r;
		if (wait4(group->pid[s], &status, 0, &r) < 0 || status)
			bench_die("part %d has failed", s);
		used += seconds_of(&r);
	}
	return (bench_machine_cpu() - machine - used) / (bench_seconds() - begin);
}

double members_slowest(const struct members *m, unsigned what, size_t round)
{
	double most = 0;
	for (uint32_t s = 0; s < m->n; s++)
		most = m->wall[s][what][round] > most ? m->wall[s][what][round] : most;
	return most;
}

double members_cpu(const struct members *m, unsigned what, size_t round)
{
	double all = 0;
	for (uint32_t s = 0; s < m->n; s++)
		all += m->cpu[s][what][round];
	return all;
}

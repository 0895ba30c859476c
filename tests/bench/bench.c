/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_TRIES 500 /* of 10 ms */

void bench_die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static double clock_seconds(clockid_t id)
{
	struct timespec t;
	if (clock_gettime(id, &t))
		return 0;
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_seconds(void)
{
	return clock_seconds(CLOCK_MONOTONIC);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bench_quantile(double *v, size_t n, double part)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[(size_t)(part * (double)(n - 1) + 0.5)];
}

double bench_median(const double *v, size_t n)
{
	double copy[BENCH_MAX_ROUNDS];
	memcpy(copy, v, n * sizeof(*v));
	return bench_quantile(copy, n, 0.5);
}

/* ---- processes ---- */

double bench_cpu(pid_t pid)
{
	clockid_t id;
	return clock_getcpuclockid(pid, &id) ? 0 : clock_seconds(id);
}

/* Fields of proc(5) stat from the third on; false: no such process. */
static bool read_stat(pid_t pid, char *state, int *parent, uint64_t *minor, uint64_t *major)
{
	char path[40], text[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	const char *at = strrchr(text, ')'); /* the name may hold anything */
	unsigned long long few = 0, many = 0;
	if (!at || sscanf(at + 1, " %c %d %*d %*d %*d %*d %*u %llu %*u %llu", state, parent, &few, &many) != 4)
		return false;
	*minor = few;
	*major = many;
	return true;
}

uint64_t bench_faults(pid_t pid)
{
	char state;
	int parent;
	uint64_t minor, major;
	return read_stat(pid, &state, &parent, &minor, &major) ? minor + major : 0;
}

int bench_children(pid_t parent, pid_t *out, int max)
{
	int n = 0;
	DIR *dir = opendir("/proc");
	for (struct dirent *e; dir && (e = readdir(dir)) && n < max;) {
		char state;
		int its_parent;
		uint64_t minor, major;
		pid_t pid = atoi(e->d_name);
		if (pid > 0 && read_stat(pid, &state, &its_parent, &minor, &major) && its_parent == parent &&
		    state != 'Z')
			out[n++] = pid;
	}
	if (dir)
		closedir(dir);
	return n;
}

double bench_group_cpu(const struct bench_group *group)
{
	double sum = 0;
	for (int i = 0; i < group->n; i++)
		sum += bench_cpu(group->pid[i]);
	return sum;
}

double bench_machine_cpu(void)
{
	unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
	FILE *f = fopen("/proc/stat", "re");
	int n = f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
			   &irq, &softirq, &steal)
		  : 0;
	if (f)
		fclose(f);
	if (n != 8)
		bench_die("cannot read /proc/stat");
	return (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- a daemon ---- */

void bench_program(const char *name, char *out, size_t n)
{
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (len < 0)
		bench_die("cannot find this program: %s", strerror(errno));
	self[len] = '\0';
	*strrchr(self, '/') = '\0';
	if (snprintf(out, n, "%s/%s", self, name) >= (int)n)
		bench_die("the path of %s is too long", name);
}

static bool listens(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

static void run_daemon(const char *dir, unsigned threads)
{
	char program[PATH_MAX], state[96], runtime[96], n[48];
	char set[] = "--set", level[] = "log.level=error", name[] = "gaccd";
	bench_program("gaccd", program, sizeof(program));
	snprintf(state, sizeof(state), "state_dir=%s/state", dir);
	snprintf(runtime, sizeof(runtime), "runtime_dir=%s", dir);
	snprintf(n, sizeof(n), "engine.threads=%u", threads);
	char *argv[] = { name, set, state, set, runtime, set, n, set, level, NULL };
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execv(program, argv);
	fprintf(stderr, "cannot run %s: %s\n", program, strerror(errno));
	_exit(127);
}

void bench_daemon_start(struct bench_daemon *d, unsigned threads)
{
	snprintf(d->dir, sizeof(d->dir), "/tmp/gacc-bench-XXXXXX");
	if (!mkdtemp(d->dir))
		bench_die("cannot make a directory in /tmp: %s", strerror(errno));
	snprintf(d->endpoint, sizeof(d->endpoint), "unix:%s/gaccd.sock", d->dir);
	d->pid = fork();
	if (d->pid < 0)
		bench_die("cannot fork: %s", strerror(errno));
	if (d->pid == 0)
		run_daemon(d->dir, threads);
	for (int i = 0; i < START_TRIES; i++) {
		if (listens(d->endpoint + strlen("unix:")))
			return;
		if (waitpid(d->pid, NULL, WNOHANG) == d->pid)
			bench_die("gaccd has ended at its start");
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	bench_die("gaccd does not listen on %s", d->endpoint);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void bench_remove(const char *dir)
{
	if (nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT))
		fprintf(stderr, "%s: left behind: %s: %s\n", program_invocation_short_name, dir, strerror(errno));
}

void bench_daemon_stop(struct bench_daemon *d)
{
	kill(d->pid, SIGTERM);
	waitpid(d->pid, NULL, 0);
	bench_remove(d->dir);
}

struct bench_group bench_daemon_group(const struct bench_daemon *d)
{
	struct bench_group g = { .pid = { getpid(), d->pid }, .n = 2 };
	g.n += bench_children(d->pid, g.pid + 2, BENCH_MAX_PROCESSES - 2);
	return g;
}

/* ---- the table ---- */

struct bench_watch bench_watch_start(const struct bench_group *group)
{
	return (struct bench_watch){ bench_seconds(), bench_machine_cpu(), bench_group_cpu(group) };
}

double bench_watch_foreign(const struct bench_watch *since, const struct bench_group *group)
{
	double wall = bench_seconds() - since->wall;
	double all = bench_machine_cpu() - since->machine, own = bench_group_cpu(group) - since->group;
	return all > own ? (all - own) / wall : 0;
}

void bench_table_head(void)
{
	printf("%-4s %-42s %10s %10s %-5s %-24s %6s %15s %6s %7s %-8s %s\n", "id", "what", "ours", "limit", "",
	       "limit is", "ratio", "middle half", "by cpu", "foreign", "goal", "met");
}

void bench_row_print(const struct bench_row *r)
{
	double ratio[BENCH_MAX_ROUNDS], cpu[BENCH_MAX_ROUNDS];
	char goal[24] = "-", by_cpu[16] = "-";
	for (size_t i = 0; i < r->rounds; i++) {
		ratio[i] = r->goal_is_floor ? r->limit[i] / r->ours[i] : r->ours[i] / r->limit[i];
		cpu[i] = r->goal_is_floor ? r->limit_cpu[i] / r->ours_cpu[i] : r->ours_cpu[i] / r->limit_cpu[i];
	}
	double m = bench_quantile(ratio, r->rounds, 0.5);
	if (r->ours_cpu[0] > 0 && r->limit_cpu[0] > 0)
		snprintf(by_cpu, sizeof(by_cpu), "%.2f", bench_quantile(cpu, r->rounds, 0.5));
	if (r->goal > 0)
		snprintf(goal, sizeof(goal), "%s %.2f", r->goal_is_floor ? ">=" : "<=", r->goal);
	bool met = r->goal_is_floor ? m >= r->goal : m <= r->goal;
	printf("%-4s %-42s %10.2f %10.2f %-5s %-24s %6.2f %7.2f..%6.2f %6s %7.2f %-8s %s\n", r->id, r->what,
	       bench_median(r->ours, r->rounds) * r->factor, bench_median(r->limit, r->rounds) * r->factor, r->unit,
	       r->limit_name, m, bench_quantile(ratio, r->rounds, 0.25), bench_quantile(ratio, r->rounds, 0.75), by_cpu,
	       bench_median(r->foreign, r->rounds), goal, r->goal > 0 ? met ? "yes" : "no" : "-");
	fflush(stdout);
}

void bench_value_print(const char *id, const char *what, double value, const char *unit, double goal)
{
	char limit[24];
	snprintf(limit, sizeof(limit), "<= %.2f", goal);
	printf("%-4s %-42s %10.2f %10s %-5s %-24s %6s %15s %6s %7s %-8s %s\n", id, what, value, "", unit, "", "", "",
	       "", "", limit, value <= goal ? "yes" : "no");
	fflush(stdout);
}

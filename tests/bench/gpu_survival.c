/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe survival: a process makes memory of the device, writes it, exports it as a descriptor and is killed with
 * SIGKILL. Another process then imports the descriptor and compares every word. Once while this process, which has
 * nothing else of the driver, holds /dev/nvidiaN open, as gaccd is to do; once as another user; once without. */
#include "cuda_probe.h"
#include "gpu_probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE ((size_t)64 << 20)
#define BLOCK ((size_t)1 << 20) /* each has another word */
#define WORD(block) (0x9e3779b9u * (unsigned)((block) + 1))
#define SETTLE_US 500000
#define NOBODY 65534

struct made {
	char bus[32], why[200];
	int ok;
};

/* ---- the maker's and the importer's side ---- */

static struct cu_allocation allocation(cu_device device)
{
	return (struct cu_allocation){ .type = CU_PINNED,
				       .handle_types = CU_POSIX_FD,
				       .location = { CU_LOCATION_DEVICE, device } };
}

static cu_result map_memory(const struct cuda *c, cu_device device, cu_memory memory, cu_deviceptr *at,
			    const char **what)
{
	struct cu_access access = { { CU_LOCATION_DEVICE, device }, CU_READ_WRITE };
	cu_result r;

	*what = "cuMemAddressReserve";
	r = c->reserve(at, SIZE, 0, 0, 0);
	if (!r)
		*what = "cuMemMap", r = c->map(*at, SIZE, 0, memory, 0);
	if (!r)
		*what = "cuMemSetAccess", r = c->set_access(*at, SIZE, &access, 1);
	return r;
}

static int export_written(const struct cuda *c, cu_device device, const char **what, cu_result *r)
{
	struct cu_allocation prop = allocation(device);
	cu_memory memory;
	cu_deviceptr at;
	int fd = -1;

	*what = "cuMemCreate";
	*r = c->create(&memory, SIZE, &prop, 0);
	if (!*r)
		*r = map_memory(c, device, memory, &at, what);
	for (size_t b = 0; !*r && b < SIZE / BLOCK; b++)
		*what = "cuMemsetD32", *r = c->set32(at + b * BLOCK, WORD(b), BLOCK / 4);
	if (!*r)
		*what = "cuCtxSynchronize", *r = c->sync();
	if (!*r)
		*what = "cuMemExportToShareableHandle", *r = c->export_fd(&fd, memory, CU_POSIX_FD, 0);
	return *r ? -1 : fd;
}

static int receive_made(int from, struct made *m)
{
	int fd = -1;

	if (!receive_from(from, m, sizeof(*m), &fd))
		snprintf(m->why, sizeof(m->why), "its maker ended before it had exported anything");
	return fd;
}

static int make(void *arg)
{
	struct made m = { .ok = 0 };
	struct cuda c;
	cu_device device;
	const char *what;
	cu_result r;
	int fd = -1;

	if (cuda_open(&c, &device, m.why, sizeof(m.why))) {
		fd = export_written(&c, device, &what, &r);
		m.ok = fd >= 0;
		if (!m.ok)
			cuda_failure(&c, what, r, m.why, sizeof(m.why));
		else if (c.bus(m.bus, sizeof(m.bus), device))
			m.bus[0] = 0;
	}
	if (!send_to(*(int *)arg, &m, sizeof(m), fd))
		return 1;
	for (;;)
		pause(); /* to be killed with everything open */
}

struct import {
	int number, fd, uid;
	const char *what;
};

/* How many words are not as they were written. */
static size_t differing(const struct cuda *c, cu_deviceptr at, unsigned *words, cu_result *r)
{
	size_t wrong = 0;

	for (size_t b = 0; b < SIZE / BLOCK; b++) {
		*r = c->to_host(words, at + b * BLOCK, BLOCK);
		if (*r)
			return 0;
		for (size_t i = 0; i < BLOCK / 4; i++)
			wrong += words[i] != WORD(b);
	}
	return wrong;
}

static int import(void *arg)
{
	const struct import *job = arg;
	static unsigned words[BLOCK / 4];
	struct cuda c;
	cu_device device;
	cu_memory memory;
	cu_deviceptr at;
	char why[400];
	const char *what = "cuMemImportFromShareableHandle";
	size_t wrong = 0;
	cu_result r;

	if (job->uid && (setgid((gid_t)job->uid) || setuid((uid_t)job->uid))) {
		row(job->number, job->what, "FAILED: setuid: %s", strerror(errno));
		return 1;
	}
	if (!cuda_open(&c, &device, why, sizeof(why))) {
		row(job->number, job->what, "FAILED: the importer's %s", why);
		return 1;
	}
	r = c.import_fd(&memory, (void *)(intptr_t)job->fd, CU_POSIX_FD);
	if (!r)
		r = map_memory(&c, device, memory, &at, &what);
	if (!r)
		what = "cuMemcpyDtoH", wrong = differing(&c, at, words, &r);
	if (r)
		row(job->number, job->what, "LOST: %s", cuda_failure(&c, what, r, why, sizeof(why)));
	else if (wrong)
		row(job->number, job->what, "LOST: %zu of %zu words differ", wrong, SIZE / 4);
	else
		row(job->number, job->what, "survives: %zu MiB, every word", SIZE >> 20);
	return r || wrong;
}

/* ---- the device's node ---- */

/* The N of /dev/nvidiaN for the bus address that CUDA prints; -1 if the driver does not tell. */
static int minor_of(const char *bus)
{
	char path[128], line[128];
	int minor = -1;

	/* CUDA: 0000:65:00.0 in upper case; the folder's name has lower case */
	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", bus);
	for (char *p = path + strlen("/proc/driver/nvidia/gpus/"); *p; p++)
		if (*p >= 'A' && *p <= 'F')
			*p = (char)(*p - 'A' + 'a');
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Device Minor: %d", &minor) == 1)
			break;
	if (f)
		fclose(f);
	return minor;
}

static bool has_open(const char *pid, const char *node)
{
	char path[300], target[PATH_MAX];
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	DIR *d = opendir(path);
	for (struct dirent *e; d && !found && (e = readdir(d));) {
		ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);
		found = n > 0 && (target[n] = 0, !strcmp(target, node));
	}
	if (d)
		closedir(d);
	return found;
}

/* Processes that have the node open, as far as this user may see them. */
static int holders(const char *node)
{
	DIR *d = opendir("/proc");
	int n = 0;

	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
			n += has_open(e->d_name, node);
	if (d)
		closedir(d);
	return n;
}

/* ---- the cases ---- */

static int kill_and_import(struct import *job, bool hold)
{
	int pair[2], held = -1, st = 1;
	char node[32] = "";
	struct made m;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return 1;
	pid_t maker = start(make, &pair[1]);
	close(pair[1]);
	job->fd = receive_made(pair[0], &m);
	int minor = m.ok ? minor_of(m.bus) : -1;
	if (minor >= 0)
		snprintf(node, sizeof(node), "/dev/nvidia%d", minor);
	if (hold && *node)
		held = open(node, O_RDWR | O_CLOEXEC);
	int error = errno;
	kill(maker, SIGKILL);
	end_of(maker);
	usleep(SETTLE_US);
	int others = !hold && *node ? holders(node) : 0;
	if (!m.ok) {
		row(job->number, job->what, "FAILED: %s", m.why);
	} else if (hold && held < 0) {
		row(job->number, job->what, "not run: %s", *node ? strerror(error) : "the driver does not tell N");
		st = 0;
	} else if (others) {
		row(job->number, job->what, "not run: %d other processes have %s open (nvidia-persistenced?)", others,
		    node);
		st = 0;
	} else {
		st = run_rows(job->number, job->what, import, job);
	}
	if (job->fd >= 0)
		close(job->fd);
	if (held >= 0)
		close(held);
	close(pair[0]);
	return st != 0;
}

int survival(int number)
{
	struct import held = { number, .what = "import after SIGKILL of the maker, /dev/nvidiaN held" };
	struct import other = { number, .what = "the same, importer is another user", .uid = NOBODY };
	struct import alone = { number, .what = "import after SIGKILL of the maker, nobody holds /dev/nvidiaN" };
	int failed = kill_and_import(&held, true);

	if (geteuid())
		row(number, other.what, "not run: only root can become another user");
	else
		failed |= kill_and_import(&other, true);
	kill_and_import(&alone, false); /* either answer is a result */
	return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The files of devices. That nobody else has one open is what a write lease finds out; the file's contents are the
 * number of the life. */
#include "node.h"

#include "holders.h"
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int nodes[MAX_DEVICES];
static uint64_t lives[MAX_DEVICES];
static bool are_open;

/* Is this the only open file description? A user who does not own the file may not ask, and takes it for in use. */
static bool is_alone(int fd)
{
	if (!fcntl(fd, F_SETLEASE, F_WRLCK)) {
		fcntl(fd, F_SETLEASE, F_UNLCK);
		return true;
	}
	if (errno != EAGAIN && errno != EACCES)
		options_wrong("FAKE_CUDA_NODE");
	return false;
}

static void open_one(unsigned device, const char *prefix)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s%u", prefix, device);
	nodes[device] = open(path, O_RDWR | O_CLOEXEC);
	if (nodes[device] < 0)
		options_wrong("FAKE_CUDA_NODE");
	if (pread(nodes[device], &lives[device], sizeof(*lives), 0) != sizeof(*lives))
		lives[device] = 0;
	if (!is_alone(nodes[device]))
		return;
	lives[device]++;
	if (pwrite(nodes[device], &lives[device], sizeof(*lives), 0) != sizeof(*lives))
		options_wrong("FAKE_CUDA_NODE");
}

void node_open_all(void)
{
	const char *prefix = getenv("FAKE_CUDA_NODE");
	if (!prefix || are_open)
		return;
	int lock = holders_lock();
	for (unsigned i = 0; i < options()->n_devices; i++)
		open_one(i, prefix);
	are_open = true;
	holders_unlock(lock);
}

uint64_t node_life(unsigned on_machine)
{
	return lives[on_machine];
}

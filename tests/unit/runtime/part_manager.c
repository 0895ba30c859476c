/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager of the tests of a part, inside the test: it keeps descriptors under their names. One thread. */
#include "part_rig.h"

#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fdstore_fd kept[RIG_KEPT];
int n_kept, n_ever_kept;

static uv_poll_t poll;
static int manager = -1; /* none is open */

static void forget(const char *name)
{
	int left = 0;
	for (int i = 0; i < n_kept; i++)
		if (strcmp(kept[i].name, name))
			kept[left++] = kept[i];
		else
			close(kept[i].fd);
	n_kept = left;
}

static void take_message(const char *text, int fd)
{
	const char *name = strstr(text, "FDNAME=");
	char copy[FDSTORE_MAX_NAME] = "";
	if (name)
		snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(name + 7, "\n"), name + 7);
	if (!strncmp(text, "FDSTORE=1", 9) && fd >= 0) {
		ck_assert_int_lt(n_kept, RIG_KEPT);
		kept[n_kept].fd = fd;
		n_ever_kept++;
		strcpy(kept[n_kept++].name, copy);
		return;
	}
	if (!strncmp(text, "FDSTOREREMOVE=1", 15))
		forget(copy);
	if (fd >= 0)
		close(fd); /* a barrier */
}

static void on_message(uv_poll_t *h, int status, int events)
{
	for (;;) {
		char text[512], control[CMSG_SPACE(sizeof(int))];
		struct iovec iov = { text, sizeof(text) - 1 };
		struct msghdr m = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
		};
		ssize_t n = recvmsg(manager, &m, MSG_CMSG_CLOEXEC);
		if (n < 0)
			return;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		int fd = -1;
		if (c)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		text[n] = '\0';
		take_message(text, fd);
	}
}

void rig_manager_open(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char dir[SCRATCH_PATH];
	ck_assert(scratch_make(dir));
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/notify", dir);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&at, sizeof(at)), 0);
	setenv("NOTIFY_SOCKET", at.sun_path, 1);
}

void rig_manager_listen(void)
{
	if (manager < 0)
		return;
	uv_poll_init(&node.loop, &poll, manager);
	uv_poll_start(&poll, UV_READABLE, on_message);
	uv_unref((uv_handle_t *)&poll);
}

void rig_manager_stops(bool yes)
{
	if (yes)
		uv_poll_stop(&poll);
	else
		uv_poll_start(&poll, UV_READABLE, on_message);
	uv_unref((uv_handle_t *)&poll);
}

void rig_manager_close(void)
{
	while (n_kept)
		forget(kept[0].name);
	if (manager < 0)
		return;
	uv_close((uv_handle_t *)&poll, NULL);
	uv_run(&node.loop, UV_RUN_NOWAIT);
	close(manager);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a launcher's files (socket and state), and which job a file name belongs to. For the launcher that makes
 * them and for gaccd, which looks for them after a restart. Pure; any thread. */
#include "launch/launcher.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

void launcher_digits(const char *uuid, char out[LAUNCHER_DIGITS + 1])
{
	size_t n = 0;
	for (const char *c = uuid; *c && n < LAUNCHER_DIGITS; c++)
		if (isxdigit((unsigned char)*c))
			out[n++] = *c;
	out[n] = '\0';
}

static int path_of(const struct launcher_args *a, const char *suffix, char *out, size_t n)
{
	char digits[LAUNCHER_DIGITS + 1];
	launcher_digits(a->uuid, digits);
	return snprintf(out, n, "%s/launch-%llu%s%s%s", a->runtime_dir, (unsigned long long)a->job_id,
			*digits ? "." : "", digits, suffix);
}

bool launcher_socket_path(const struct launcher_args *a, char *out, size_t n)
{
	struct sockaddr_un at;
	int length = path_of(a, ".sock", out, n);
	return length > 0 && (size_t)length < n && (size_t)length < sizeof(at.sun_path);
}

void launcher_state_path(const struct launcher_args *a, char *out, size_t n)
{
	path_of(a, ".state", out, n);
}

bool launcher_left_traces(const struct launcher_args *a)
{
	char path[4096];
	if (launcher_socket_path(a, path, sizeof(path)) && !access(path, F_OK))
		return true;
	launcher_state_path(a, path, sizeof(path));
	return !access(path, F_OK);
}

bool launcher_is_file(const char *name, uint64_t *out_job, char out_digits[LAUNCHER_DIGITS + 1], bool *out_socket)
{
	unsigned long long job;
	int n = 0;
	if (sscanf(name, "launch-%llu.%n", &job, &n) != 1 || !n)
		return false;
	const char *rest = name + n;
	size_t digits = strspn(rest, "0123456789abcdef");
	bool named = digits == LAUNCHER_DIGITS && rest[digits] == '.';
	memcpy(out_digits, rest, named ? LAUNCHER_DIGITS : 0);
	out_digits[named ? LAUNCHER_DIGITS : 0] = '\0';
	rest += named ? LAUNCHER_DIGITS + 1 : 0;
	*out_job = job;
	*out_socket = !strcmp(rest, "sock");
	return *out_socket || !strcmp(rest, "state");
}

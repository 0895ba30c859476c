/* SPDX-License-Identifier: Apache-2.0 */
/* Notes what this build is, and compares it with the note of the gaccd that has run last and with the journal. For the
 * start of the daemon, and for main.c, in a process of its own. */
#include "edge/upgrade_check.h"

#include "base/log.h"
#include "control/upgrade.h"
#include "edge/node_facts.h"
#include "launch/channel.h"
#include "math/kernels.h"
#include "proto/segment_layout.h"
#include "store/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTE_MAX 1024

static struct upgrade_build own_build(void)
{
	struct upgrade_build b = { .segments = SEGMENT_VERSION,
				   .journal = journal_schema(),
				   .launchers = LAUNCH_CHANNEL_VERSION,
				   .kernels = KERNELS_REVISION,
				   .protocol_min = PEER_PROTOCOL_MIN,
				   .protocol_max = PEER_PROTOCOL };
	snprintf(b.version, sizeof(b.version), "%s", GACC_VERSION);
	snprintf(b.coll, sizeof(b.coll), "%s", NODE_COLL);
	return b;
}

static void path_of(const struct conf *c, const char *name, char out[4096])
{
	snprintf(out, 4096, "%s/%s", c->state_dir, name);
}

/* Not a link, and nothing that would block: the folder is gaccd's user's, and this may be root. */
static int open_note(const char *path)
{
	struct stat is;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || (!fstat(fd, &is) && S_ISREG(is.st_mode)))
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

static bool has_note(const char *path, const char *text, size_t n)
{
	char there[NOTE_MAX];
	int fd = open_note(path);
	bool same = fd >= 0 && read(fd, there, sizeof(there)) == (ssize_t)n && !memcmp(there, text, n);
	if (fd >= 0)
		close(fd);
	return same;
}

static bool write_note(const char *path, const char *text, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return false;
	bool ok = write(fd, text, n) == (ssize_t)n;
	return !close(fd) && ok;
}

void upgrade_check_note(const struct conf *c)
{
	const struct upgrade_build b = own_build();
	char path[4096], made[4096], text[NOTE_MAX];
	const size_t n = upgrade_write(&b, text, sizeof(text));
	path_of(c, "build", path);
	path_of(c, "build.new", made);
	if (has_note(path, text, n) || (write_note(made, text, n) && !rename(made, path)))
		return;
	log_warn("cannot write %s: %s; `gaccd --check-upgrade` will not know this build", path, strerror(errno));
	unlink(made);
	unlink(path); /* that of the build before would be believed */
}

static bool read_note(const char *path, char text[NOTE_MAX])
{
	int fd = open_note(path);
	ssize_t n = fd < 0 ? -1 : read(fd, text, NOTE_MAX - 1);
	if (n < 0)
		printf("not known: %s: %s%s\n", path, strerror(errno),
		       errno == ENOENT ? "; no gaccd that says what it is has run with this state_dir: see the "
					 "release notes of both"
				       : "; run this as gaccd's user or as root");
	else
		text[n] = '\0';
	if (fd >= 0)
		close(fd);
	return n >= 0;
}

static void print_line(void *arg, enum upgrade_verdict v, const char *line)
{
	static const char *const word[] = { "ok   ", "wait ", "LOSES" };
	printf("%s  %s\n", word[v], line);
}

/* Not what the note says of it: a newer gaccd may have changed the journal and then not have started. */
static bool read_schema(const struct conf *c, uint32_t *out)
{
	char path[4096], why[200];
	path_of(c, "journal.sqlite", path);
	if (!journal_schema_of(path, out, why, sizeof(why)))
		return true;
	printf("not known: %s: %s\n", path, why);
	return false;
}

static bool read_runs(const struct conf *c, struct upgrade_build *out)
{
	char path[4096], text[NOTE_MAX], why[80];
	path_of(c, "build", path);
	if (!read_note(path, text))
		return false;
	if (upgrade_read(text, out, why, sizeof(why)))
		return true;
	printf("not known: %s: %s; a restart of the gaccd that runs writes it anew\n", path, why);
	return false;
}

int upgrade_check(const struct conf *c)
{
	static const int code[] = { 0, UPGRADE_EXIT_WAITS, UPGRADE_EXIT_LOSES };
	const struct upgrade_build next = own_build();
	struct upgrade_build runs;
	uint32_t schema;
	const bool noted = read_runs(c, &runs);
	if (!read_schema(c, &schema))
		return 1;
	if (!noted)
		return upgrade_judge_unknown(&next, schema, print_line, NULL) ? UPGRADE_EXIT_LOSES : 1;
	printf("from gaccd %s to %s\n", runs.version, next.version);
	return code[upgrade_judge(&runs, &next, schema, print_line, NULL)];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the journal and compares it with what else knows its newest record: memory that the service manager keeps, and
 * the jobs' control segments. On the loop thread, at the start; also all of `gaccd --accept-journal-loss`, which has no
 * loop.
 */
#include "edge/journal_keep.h"

#include "base/clock.h"
#include "base/log.h"
#include "edge/hosted.h"
#include "edge/part_record.h"
#include "engine/control_page.h"
#include "launch/launcher.h"
#include "proto/path.h"
#include "runtime/stored.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int take_kept(struct daemon *d)
{
	int fd = -1;
	for (size_t i = 0; i < d->node.n_stored; i++)
		if (d->node.stored[i].fd >= 0 && !strcmp(d->node.stored[i].name, JOURNAL_KEEP_NAME)) {
			if (fd >= 0)
				close(fd);
			fd = d->node.stored[i].fd;
			d->node.stored[i].fd = -1;
		}
	return fd;
}

static void on_kept(void *arg, enum status st)
{
	if (st)
		log_warn("the service manager does not keep where the journal stands: only its .anchor file will tell");
}

static void keep(struct daemon *d)
{
	struct fdstore_fd *item = calloc(1, sizeof(*item));
	if (!item) {
		on_kept(d, ST_NO_MEMORY);
		return;
	}
	snprintf(item->name, sizeof(item->name), "%s", JOURNAL_KEEP_NAME);
	item->fd = journal_kept(d->journal);
	fdstore_keep(d->node.fdstore, item, 1, on_kept, d, &d->journal_keeping);
}

enum status journal_keep_open(struct daemon *d, const char *path)
{
	if (!fdstore_active(d->node.fdstore))
		return journal_open(path, &d->journal);
	int kept = take_kept(d);
	bool is_new = kept < 0;
	enum status st = journal_open_kept(path, kept, &d->journal);
	d->journal_lost = st == ST_MALFORMED;
	if (!st && is_new)
		keep(d);
	return st;
}

static enum status refuse(struct daemon *d)
{
	d->journal_lost = true;
	log_error("this journal (%s/journal.sqlite) is not the newest: gaccd does not start with it, and the jobs' "
		  "memory is kept. Bring the "
		  "newest files back; or go on without what is lost: gaccd --accept-journal-loss with the same "
		  "configuration",
		  d->node.conf->state_dir);
	return ST_MALFORMED;
}

/* launching_adopt looks only for the job's own files; this logs the launcher of another job of the same id. */
static void check_launcher(const struct daemon *d, uint64_t id, const char *digits)
{
	const struct hosted *h = hosted_find(d, id);
	char uuid[UUID_TEXT], mine[LAUNCHER_DIGITS + 1];
	if (!h || !*digits)
		return;
	uuid_text(h->uuid, uuid);
	launcher_digits(uuid, mine);
	if (!strcmp(digits, mine))
		return;
	log_job(id, LOG_WARN, "NotAdopted",
		"%s/launch-%llu.%s.sock is the launcher of another job of this id: it is left alone, and ends its "
		"ranks when nobody has spoken to it for launch.orphan_timeout; at once: pkill -f 'gaccd --[l]auncher "
		"%llu .* %.8s-%.4s-%.4s-'",
		d->node.conf->runtime_dir, (unsigned long long)id, digits, (unsigned long long)id, digits, digits + 8,
		digits + 12);
}

/* Launchers outlive gaccd, and their ranks with them: where the journal is new, no job gets the id of one that may
 * still live. */
static void pass_launchers(struct daemon *d)
{
	DIR *dir = opendir(d->node.conf->runtime_dir);
	uint64_t id, highest = d->last_job;
	char digits[LAUNCHER_DIGITS + 1];
	bool is_socket;
	for (const struct dirent *e; dir && (e = readdir(dir));) {
		if (!launcher_is_file(e->d_name, &id, digits, &is_socket))
			continue;
		if (id > highest)
			highest = id;
		if (is_socket)
			check_launcher(d, id, digits);
	}
	if (dir)
		closedir(dir);
	if (highest == d->last_job || highest > INT64_MAX)
		return;
	log_warn("%s has traces of a launcher of job %llu, and the journal has never had a job above %llu: ids go on "
		 "behind it",
		 d->node.conf->runtime_dir, (unsigned long long)highest, (unsigned long long)d->last_job);
	d->last_job = highest;
}

/* Ids are never used twice, so memory of a job that this journal has never had belongs to another journal. */
static enum status check_ids(struct daemon *d, bool accepted)
{
	uint64_t highest = 0;
	for (size_t i = 0; i < d->node.n_stored; i++)
		if (stored_job(&d->node.stored[i], NULL, NULL) > highest)
			highest = stored_job(&d->node.stored[i], NULL, NULL);
	if (highest <= d->last_job)
		return ST_OK;
	if (accepted) {
		d->last_job = highest;
		return ST_OK;
	}
	log_error("the service manager keeps memory of job %llu, and the journal has never had a job above %llu",
		  (unsigned long long)highest, (unsigned long long)d->last_job);
	return ST_MALFORMED;
}

/* The uuid of the job that has this memory; NULL: the journal has no such job, and no part of one. */
static const uint8_t *owner_of(const struct daemon *d, const struct fdstore_fd *s)
{
	uint64_t id = stored_job(s, NULL, NULL);
	const struct hosted *h = id ? hosted_find(d, id) : NULL;
	return h ? h->uuid : id ? part_record_uuid(d, id) : NULL;
}

/* Not the job's: the manager need not keep it, unless another descriptor of this name is the job's. */
static void drop_stored(struct daemon *d, struct fdstore_fd *s)
{
	bool twin = false;
	for (size_t i = 0; i < d->node.n_stored; i++)
		twin |= &d->node.stored[i] != s && d->node.stored[i].fd >= 0 &&
			!strcmp(d->node.stored[i].name, s->name);
	if (!twin)
		fdstore_remove(d->node.fdstore, s->name);
	close(s->fd);
	s->fd = -1;
}

/* By its name, which gaccd has chosen: a trainer can write to its slots, and to their headers. */
static bool is_control(const struct fdstore_fd *s)
{
	unsigned role = 0;
	return stored_job(s, NULL, &role) && role == SEG_CONTROL;
}

/* false: this is not the journal of the job that has this memory. */
static bool check_owner(struct daemon *d, struct fdstore_fd *s, const uint8_t *owner, bool accepted)
{
	const uint64_t id = stored_job(s, NULL, NULL);
	char uuid[UUID_TEXT], mine[UUID_TEXT];
	struct segment_owner o;
	enum segment_owned owned = segment_read_owner(s->fd, owner, &o);
	if (owned == SEGMENT_OWN || owned == SEGMENT_UNNAMED)
		return true;
	uuid_text(o.uuid, uuid);
	uuid_text(owner, mine);
	bool known = owned == SEGMENT_OTHERS;
	if (known && is_control(s) && !accepted) {
		log_error("the service manager keeps memory of job %llu with uuid %s (%s), and job %llu of this "
			  "journal has uuid %s",
			  (unsigned long long)id, uuid, s->name, (unsigned long long)id, mine);
		return false;
	}
	log_job(id, LOG_WARN, "NotAdopted", "stored memory %s is %s%s: it is dropped, and the job does not get it",
		s->name, known ? "of another job of this id, with uuid " : "damaged where it says whose it is",
		known ? uuid : "");
	drop_stored(d, s);
	return true;
}

enum status journal_keep_owners(struct daemon *d)
{
	bool accepted = journal_was_accepted(d->journal), ours = true;
	for (size_t i = 0; i < d->node.n_stored; i++) {
		const uint8_t *owner = owner_of(d, &d->node.stored[i]);
		if (owner && !check_owner(d, &d->node.stored[i], owner, accepted))
			ours = false;
	}
	return ours ? ST_OK : refuse(d);
}

/* An engine applies only commits that the journal has. */
static enum status check_part(const struct hosted *h, struct part *p, bool accepted)
{
	struct control_state state;
	char why[200];
	uint64_t window = 0;
	if (p->tensors.due) {
		part_stored_window(p, &window);
	} else if (p->mem.n && !part_read_control(p, &state)) {
		/* else the engine will say what is wrong with it */
		window = state.r.window;
		control_state_fini(&state);
	}
	if (window <= h->end.window)
		return ST_OK;
	snprintf(why, sizeof(why),
		 "the job's memory is at window %llu, and the journal at window %llu: commits are missing in it",
		 (unsigned long long)window, (unsigned long long)h->end.window);
	if (accepted)
		job_fail(p->job, ST_SEGMENT_CORRUPT, why, daemon_now(h->d));
	else
		log_error("job %llu: %s", (unsigned long long)h->id, why);
	return accepted ? ST_OK : ST_MALFORMED;
}

static enum status check_window(const struct hosted *h, bool accepted)
{
	enum status st = ST_OK;
	struct part *p = h->coord && h->params_durable ? part_first(&h->d->node, h->id) : NULL;
	for (; p; p = part_next(p))
		st = check_part(h, p, accepted) ? ST_MALFORMED : st;
	return st;
}

enum status journal_keep_check(struct daemon *d)
{
	bool accepted = journal_was_accepted(d->journal);
	enum status st = check_ids(d, accepted);
	if (!st)
		pass_launchers(d);
	for (uint32_t i = 0; i < d->n_jobs; i++)
		if (check_window(d->job[i], accepted))
			st = ST_MALFORMED;
	return st == ST_MALFORMED ? refuse(d) : st;
}

static void print_line(void *arg, const char *line)
{
	printf("%s\n", line);
}

int daemon_accept_journal_loss(const struct conf *conf)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/journal.sqlite", conf->state_dir);
	enum status st = journal_accept(path, JOB_FAILED, clock_ns(CLOCK_REALTIME), print_line, NULL);
	if (st == ST_UNAVAILABLE)
		fprintf(stderr, "gaccd: a gaccd runs with %s: there is nothing to accept\n", path);
	else if (st)
		fprintf(stderr, "gaccd: %s: %s\n", path, status_info(st)->text);
	else
		printf("the next start of gaccd takes %s as it is now\n", path);
	return st == ST_OK ? 0 : st == ST_UNAVAILABLE ? 1 : DAEMON_EXIT_JOURNAL;
}

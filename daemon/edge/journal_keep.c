/* The journal, and what else knows how far it had come: memory that the service manager keeps, and the jobs' control segments. On the
 * loop's thread, at the start; and the life of `gaccd --accept-journal-loss`, which has no loop.
 */
#include "edge/journal_keep.h"

#include "base/log.h"
#include "edge/live_job.h"
#include "engine/control_page.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int take_kept(struct daemon *d)
{
	int fd = -1;
	for (size_t i = 0; i < d->n_stored; i++)
		if (d->stored[i].fd >= 0 && !strcmp(d->stored[i].name, JOURNAL_KEEP_NAME)) {
			if (fd >= 0)
				close(fd);
			fd = d->stored[i].fd;
			d->stored[i].fd = -1;
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
	struct fdstore_fd *item = calloc(1, sizeof *item);
	if (!item) {
		on_kept(d, ST_NO_MEMORY);
		return;
	}
	snprintf(item->name, sizeof item->name, "%s", JOURNAL_KEEP_NAME);
	item->fd = journal_kept(d->journal);
	fdstore_keep(d->fdstore, item, 1, on_kept, d, &d->journal_keeping);
}

enum status journal_keep_open(struct daemon *d, const char *path)
{
	if (!fdstore_active(d->fdstore))
		return journal_open(path, &d->journal);
	int kept = take_kept(d);
	bool is_new = kept < 0;
	enum status st = journal_open_kept(path, kept, &d->journal);
	d->journal_lost = st == ST_MALFORMED;
	if (!st && is_new)
		keep(d);
	return st;
}

/* Job of a stored segment; 0: it is none. */
static uint64_t job_of(const struct fdstore_fd *s)
{
	unsigned long long id = 0;
	return s->fd >= 0 && sscanf(s->name, "j%llu.", &id) == 1 ? id : 0;
}

/* Launchers outlive gaccd, and their ranks with them: where the journal is new, no job gets the id of one that may still live. */
static void pass_launchers(struct daemon *d)
{
	DIR *dir = opendir(d->conf->runtime_dir);
	unsigned long long id, highest = d->last_job;
	for (const struct dirent *e; dir && (e = readdir(dir));)
		if (sscanf(e->d_name, "launch-%llu.", &id) == 1 && id > highest)
			highest = id;
	if (dir)
		closedir(dir);
	if (highest == d->last_job || highest > INT64_MAX)
		return;
	log_warn("%s has traces of a launcher of job %llu, and the journal has never had a job above %llu: ids go on behind it",
		 d->conf->runtime_dir, highest, (unsigned long long)d->last_job);
	d->last_job = highest;
}

/* Ids are never given out twice: memory of a job that never was is of a journal that is not there. */
static enum status check_ids(struct daemon *d, bool accepted)
{
	uint64_t highest = 0;
	for (size_t i = 0; i < d->n_stored; i++)
		if (job_of(&d->stored[i]) > highest)
			highest = job_of(&d->stored[i]);
	if (highest <= d->last_job)
		return ST_OK;
	if (accepted) {
		d->last_job = highest;
		return ST_OK;
	}
	log_error("the service manager keeps memory of job %llu, and the journal has never had a job above %llu", (unsigned long long)highest,
		  (unsigned long long)d->last_job);
	return ST_MALFORMED;
}

/* An engine applies what the journal has, and nothing else. */
static enum status check_window(struct live_job *l, bool accepted)
{
	struct control_state state;
	char why[200];
	if (!l->job || !l->params_durable || !l->n_segments || live_read_control(l, &state))
		return ST_OK; /* there is none, or the engine will say what is wrong with it */
	uint64_t window = state.r.window;
	control_state_fini(&state);
	if (window <= l->end_window)
		return ST_OK;
	snprintf(why, sizeof why, "the job's memory is at window %llu, and the journal at window %llu: commits are missing in it",
		 (unsigned long long)window, (unsigned long long)l->end_window);
	if (accepted)
		coord_end(l->coord, ST_SEGMENT_CORRUPT, why, daemon_now(l->d));
	else
		log_error("job %llu: %s", (unsigned long long)l->id, why);
	return accepted ? ST_OK : ST_MALFORMED;
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
	d->journal_lost = st == ST_MALFORMED;
	if (d->journal_lost)
		log_error("this journal (%s/journal.sqlite) is not the newest: gaccd does not start with it, and the jobs' memory is kept. Bring the "
			  "newest files back; or go on without what is lost: gaccd --accept-journal-loss with the same configuration",
			  d->conf->state_dir);
	return st;
}

static void print_line(void *arg, const char *line)
{
	printf("%s\n", line);
}

int daemon_accept_journal_loss(const struct conf *conf)
{
	char path[4096];
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(path, sizeof path, "%s/journal.sqlite", conf->state_dir);
	enum status st = journal_accept(path, JOB_FAILED, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, print_line, NULL);
	if (st == ST_UNAVAILABLE)
		fprintf(stderr, "gaccd: a gaccd runs with %s: there is nothing to accept\n", path);
	else if (st)
		fprintf(stderr, "gaccd: %s: %s\n", path, status_info(st)->text);
	else
		printf("the next start of gaccd takes %s as it is now\n", path);
	return st == ST_OK ? 0 : st == ST_UNAVAILABLE ? 1 : DAEMON_EXIT_JOURNAL;
}

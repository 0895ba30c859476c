/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints in the file system: DIR/step-STEP-ID-JOB (JOB: how the job's uuid begins) with safetensors files and a
 * manifest.
 *
 * A writer fills DIR/.UUID-ID.partial, then checkpoint_seal writes the manifest there and renames the directory; every
 * file is on the disk before its name is, and every name before checkpoint_seal returns. So a checkpoint is there whole
 * or not at all, whoever dies when. Paths are absolute and are followed without symbolic links, so that nobody who may
 * write in a directory on the way can lead us elsewhere. Calls block; any thread. The function that fails says why in
 * one sentence that names the file, and logs it when it concerns writing.
 */
#ifndef GACC_STORE_CHECKPOINT_H
#define GACC_STORE_CHECKPOINT_H

#include "store/manifest.h"

#include <sys/types.h>

#define CHECKPOINT_MAX_PATH 4096
#define CHECKPOINT_FILE_MODE 0640
#define CHECKPOINT_DIR_MODE 0750 /* of a checkpoint */
/* Of what is made on the way to it, so that its owner can reach it; without the right to list it where the directory
 * around it has none. */
#define CHECKPOINT_WAY_MODE 0755

/* The path with the links of its existing part followed, without "//" or "."; what is missing behind it must have no
 * "..". ST_INVALID_ARGUMENT: not absolute, too long. ST_IO_ERROR. */
enum status checkpoint_resolve(const char *path, char out[CHECKPOINT_MAX_PATH], char *why, size_t n_why);
/* True when path is `root` or lies beneath it; both resolved. */
bool checkpoint_beneath(const char *path, const char *root);

/* Opens a directory; `create` makes what is missing, with CHECKPOINT_WAY_MODE. ST_IO_ERROR; ST_INVALID_ARGUMENT: there
 * is a link. */
enum status checkpoint_open_dir(const char *path, bool create, int *out_fd, char *why, size_t n_why);

/* A directory, whatever name it has by now: the owner of the one around it may rename it. */
struct checkpoint_dir {
	uint64_t dev, ino;
};
/* Makes and opens the directory of a new checkpoint, and what is missing on the way. ST_IO_ERROR: the name is taken, or
 * somebody has put a directory that holds something in its place; those are left alone. */
enum status checkpoint_make_dir(const char *path, struct checkpoint_dir *out, int *out_fd, char *why, size_t n_why);

/* A file being written from its start to its end. */
struct checkpoint_writer;
/* New file in an open directory, which is borrowed. */
enum status checkpoint_create(int dir_fd, enum checkpoint_part, struct checkpoint_writer **out, char *why,
			      size_t n_why);
/* The same for a file with another name, which is borrowed until the writer is gone. */
enum status checkpoint_create_named(int dir_fd, const char *name, struct checkpoint_writer **out, char *why,
				    size_t n_why);
/* Reserves the space, so that a full disk shows before the work. Does nothing where the file system cannot. */
enum status checkpoint_reserve(struct checkpoint_writer *, uint64_t bytes, char *why, size_t n_why);
enum status checkpoint_write(struct checkpoint_writer *, const void *, size_t n, char *why, size_t n_why);
/* On the disk when it returns ST_OK. Frees the writer in any case. */
enum status checkpoint_finish(struct checkpoint_writer *, struct checkpoint_file *out, char *why, size_t n_why);
void checkpoint_abandon(struct checkpoint_writer *); /* NULL is fine */

#define CHECKPOINT_PARTIAL ".partial"
/* Directory of a checkpoint under way, and of a complete one: names that no other job has. */
void checkpoint_partial_path(char out[CHECKPOINT_MAX_PATH], const char *dir, const uint8_t uuid[16], uint64_t id);
void checkpoint_final_path(char out[CHECKPOINT_MAX_PATH], const char *dir, const uint8_t uuid[16],
			   uint64_t applied_step, uint64_t id);

/* The directory of another part of the job, beside the one of the whole checkpoint, which is part 0's. */
void checkpoint_part_path(char out[CHECKPOINT_MAX_PATH], const char *partial, uint32_t part);
/* Of a job of several parts, before the seal, for each of them: moves the files of its own, which its engine
 * has written into its directory `made`, to `partial`, the directory `whole`, under their names by part, and deletes
 * its own directory. ST_IO_ERROR: one of the directories is another one by now, or a file could not be moved. */
enum status checkpoint_gather(const char *partial, const struct checkpoint_dir *whole,
			      const struct checkpoint_dir *made, uint32_t part, const struct manifest *, char *why,
			      size_t n_why);

/* Writes the manifest into `partial`, gives all to uid:gid when this process may, renames it to `final`, which must not
 * exist. Durable when it returns ST_OK, the owners too: all files have the same one. On errors `partial` is there,
 * without the other name. ST_IO_ERROR, and nothing is written or given: `partial` is not the directory `made`, or does
 * not hold the manifest's files. */
enum status checkpoint_seal(const char *partial, const struct checkpoint_dir *made, const char *final,
			    const struct manifest *, uint32_t uid, uint32_t gid, uint8_t out_sha256[SHA256_BYTES],
			    char *why, size_t n_why);
/* Reads and judges the manifest, and that the files it names are there, regular, of its owner and of its sizes; their
 * sums are for whoever reads them. *out_uid: the owner. ST_INVALID_ARGUMENT (no such file), ST_IO_ERROR, or as
 * manifest_decode. */
enum status checkpoint_load(const char *path, struct manifest **out, uint32_t *out_uid, char *why, size_t n_why);
/* Opens a regular file of a checkpoint for reading; it must still be of this owner. ST_INVALID_ARGUMENT, ST_MALFORMED,
 * ST_IO_ERROR. */
enum status checkpoint_open_file(int dir_fd, const char *name, uint32_t owner, int *out_fd, char *why, size_t n_why);

/* False: there is none, or it was being deleted. */
bool checkpoint_exists(const char *path);

/* Deletes a checkpoint, its manifest first; one that is not there is fine. What others have put into it stays. Durable
 * when it returns ST_OK. */
enum status checkpoint_remove(const char *path, char *why, size_t n_why);
/* Deletes what writers of this job, or a deletion that was cut short, have left in `dir`, and finds the highest id of
 * the checkpoints there. A directory that is not there, or that its user deletes meanwhile, is fine. */
enum status checkpoint_sweep(const char *dir, const uint8_t uuid[16], uint64_t *out_last_id, char *why, size_t n_why);

#endif

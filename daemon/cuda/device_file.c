/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a GPU's file in /dev by what the driver lists in /proc, and opens it. For plugin.c; the engine's main thread,
 * with no state. */
#include "cuda/device_file.h"

#include "proto/cuda_driver.h"

#include "base/regular.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 512
#define LINE_BYTES 256
#define NUMBER_END 1024 /* minor numbers are bytes */

/* What is behind "NAME:" and white space on such a line, without the line's end; NULL: it is another line. */
static const char *value_of(char *line, const char *name)
{
	const size_t n = strlen(name);
	if (strncmp(line, name, n) != 0 || line[n] != ':')
		return NULL;
	line[strcspn(line, "\n")] = 0;
	return line + n + 1 + strspn(line + n + 1, " \t");
}

/* The number of this GPU's file, if `path` is of it; else -1. */
static int number_in(const char *path, const char *uuid)
{
	const char *why;
	char line[LINE_BYTES];
	bool is_it = false;
	int number = -1;
	FILE *f = regular_open(path, &why);
	while (f && fgets(line, sizeof(line), f)) {
		const char *value = value_of(line, "GPU UUID");
		if (value)
			is_it = strcmp(value, uuid) == 0;
		else if ((value = value_of(line, "Device Minor")) && sscanf(value, "%d", &number) != 1)
			number = -1;
	}
	if (f)
		fclose(f);
	return is_it && number >= 0 && number < NUMBER_END ? number : -1;
}

static int find(DIR *gpus, const char *path, const char *uuid)
{
	char information[PATH_BYTES + sizeof(((struct dirent *)0)->d_name) + sizeof("//information")];
	int number = -1;
	for (struct dirent *e; number < 0 && (e = readdir(gpus));) {
		snprintf(information, sizeof(information), "%s/%s/information", path, e->d_name);
		number = *e->d_name == '.' ? -1 : number_in(information, uuid);
	}
	return number;
}

enum status device_file_open(const char *proc, const char *dev, const struct cu_uuid *uuid, int *out, char *why,
			     size_t n_why)
{
	char path[PATH_BYTES], text[CUDA_UUID_TEXT];
	*out = -1;
	cuda_uuid_text(uuid, text);
	snprintf(path, sizeof(path), "%s/gpus", proc);
	DIR *gpus = opendir(path);
	if (!gpus) {
		snprintf(why, n_why, "%s: %s", path, strerror(errno));
		return ST_IO_ERROR;
	}
	const int number = find(gpus, path, text);
	closedir(gpus);
	if (number < 0) {
		snprintf(why, n_why,
			 "%s is not in %s: gacc uses whole GPUs, and none that is divided into instances (MIG)", text,
			 path);
		return ST_INVALID_CONFIG;
	}
	snprintf(path, sizeof(path), "%s/nvidia%d", dev, number);
	*out = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (*out >= 0)
		return ST_OK;
	snprintf(why, n_why, "%s: %s", path, strerror(errno));
	return ST_IO_ERROR;
}

/* Paths that users write with the job's id and name in them: output.log_dir, checkpoint.dir. gaccd and clients expand them alike. */
#ifndef GACC_PROTO_PATH_H
#define GACC_PROTO_PATH_H

#include <stdint.h>

/* `pattern` with %j as the id, %x as the name and %% as %; malloc'ed. NULL: no memory. In the name each / and a first dot become _, so
 * that it is an entry of the directory before it and no other place. */
char *path_expand(const char *pattern, uint64_t id, const char *name);

#endif

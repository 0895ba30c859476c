/* SPDX-License-Identifier: Apache-2.0 */
/* Job files: YAML (or JSON) into gacc.v1.JobSpec, by one table of keys in spec_keys.c.
 *
 *     api_version: gacc/v1
 *     kind: Job
 *     metadata: { name: mlp, labels: { team: vision } }
 *     spec: { ranks: 4, micro_size: 8, optimizer: { type: adamw, lr: 1e-3 }, ... }
 *
 * Keys under `spec` are the fields of JobSpec, enum values their names in lower case without the prefix. What the file
 * leaves out of the optimizer gets PyTorch's default. What values go together is the daemon's to judge. A gacc_spec
 * (gacc_admin.h) is such a file in memory, to be changed key by key. No globals; a spec belongs to one thread at a
 * time.
 */
#ifndef GACC_CLIENT_SPEC_H
#define GACC_CLIENT_SPEC_H

#include "proto/status.h"

#include <stddef.h>

struct gacc_spec;
struct yaml_field;
struct Gacc__V1__JobSpec;

/* Reads n bytes of a file called `name`. *out is freed with spec_free. ST_INVALID_SPEC: `why` is one line for the user,
 * NAME:LINE:COLUMN: what is wrong and what would be right. */
enum status spec_parse(const char *text, size_t n, const char *name, struct Gacc__V1__JobSpec **out, char *why,
		       size_t n_why);
void spec_free(struct Gacc__V1__JobSpec *);

/* The table. */
const struct yaml_field *spec_table(void);

/* A job file (malloc'ed) that gives this message again; NULL without memory. */
char *spec_text(const struct Gacc__V1__JobSpec *);

/* The message of a gacc_spec; the spec's own, valid until it changes. */
struct Gacc__V1__JobSpec *spec_message(const struct gacc_spec *);

#endif

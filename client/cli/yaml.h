/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text as YAML. */
#ifndef GACCCTL_YAML_H
#define GACCCTL_YAML_H

#include <stdbool.h>
#include <stdio.h>

/* One document, in block style. False: it is no JSON, or could not be written. */
bool yaml_of_json(const char *json, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Scalars of yaml_table: one value as text. Private to this room. */
#ifndef GACC_TEXT_YAML_VALUE_H
#define GACC_TEXT_YAML_VALUE_H

#include "text/yaml_table.h"

#include <stdbool.h>

/* Is the field written as one scalar? */
bool yaml_is_scalar(const struct yaml_field *);
/* Stores the value at `at`, freeing a string that was there. `initial`: "nan" is allowed. False: `why` says what is
 * wrong with it and nothing changed. */
bool yaml_parse_value(const struct yaml_field *, const char *text, bool initial, void *at, char *why, size_t n_why);
/* One integer of an I64S list. */
bool yaml_parse_i64(const struct yaml_field *, const char *text, int64_t *out, char *why, size_t n_why);
/* One double of a list of n. */
bool yaml_parse_f64(const struct yaml_field *, const char *text, double *out, char *why, size_t n_why);
/* A string by its limits; *out is malloc'ed. */
bool yaml_parse_string(const struct yaml_field *, const char *text, char **out, char *why, size_t n_why);
/* The value at `at` as yaml_parse_value takes it. */
void yaml_print_value(const struct yaml_field *, const void *at, FILE *);

#endif

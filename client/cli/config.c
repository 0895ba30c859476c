/* SPDX-License-Identifier: Apache-2.0 */
/* gaccctl config validate, show, schema: checks a job file without submitting it, shows gaccd's configuration, prints
 * the JSON Schema. gaccctl's main thread. */
#include "command.h"
#include "job_file.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

static int say_valid(struct invocation *inv, const char *path, gacc_spec *spec)
{
	const char *json = gacc_spec_json(spec);

	if (!json)
		return fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	if (wants_data(inv))
		return print_json(inv, json);
	fprintf(inv->out, "%s: ok\n", path);
	return EXIT_OK;
}

static int validate(struct invocation *inv, const char *path)
{
	gacc_spec *spec;
	int st;

	spec = spec_read(inv, path, &st);
	if (!spec)
		return st;
	if (spec_has_optimizer(inv, spec, &st))
		st = say_valid(inv, path, spec);
	gacc_spec_free(spec);
	return st;
}

static int schema(struct invocation *inv)
{
	char *text = gacc_spec_schema();
	int st = EXIT_OK;

	if (!text)
		return fail_with(inv, EXIT_FAILED, "NO_MEMORY", NULL, "out of memory");
	if (wants_data(inv))
		st = print_json(inv, text);
	else
		fprintf(inv->out, "%s\n", text);
	free(text);
	return st;
}

static void view_config(struct invocation *inv, const gacc_config *c)
{
	static const struct column columns[] = {
		{ "KEY", false, false }, { "VALUE", false, false }, { "SOURCE", false, false }, { NULL, false, false }
	};
	struct sheet *s = sheet_new(inv, columns);

	for (size_t i = 0; i < c->n; i++) {
		sheet_row(s, NULL);
		sheet_cell(s, "%s", c->value[i].key);
		sheet_cell(s, "%s", c->value[i].value);
		sheet_cell(s, "%s", c->value[i].source);
	}
	sheet_print(s);
}

static int show(struct invocation *inv)
{
	gacc_config *c;
	int st = EXIT_OK;

	if (!open_client(inv, &st))
		return st;
	if (gacc_node_config(inv->client, &c))
		return fail_client(inv);
	if (wants_data(inv))
		st = print_json(inv, c->json);
	else if (inv->format == FORMAT_NAME)
		for (size_t i = 0; i < c->n; i++)
			tell(inv->out, "%s\n", c->value[i].key);
	else
		view_config(inv, c);
	gacc_config_free(c);
	return st;
}

int cmd_config(struct invocation *inv)
{
	const char *word = inv->operand[0];

	if (!strcmp(word, "validate") && inv->n_operands == 2)
		return validate(inv, inv->operand[1]);
	if (!strcmp(word, "show") && inv->n_operands == 1)
		return show(inv);
	if (!strcmp(word, "schema") && inv->n_operands == 1)
		return schema(inv);
	return fail_usage(inv, "usage: gaccctl config %s", inv->command->usage);
}

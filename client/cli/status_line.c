/* SPDX-License-Identifier: Apache-2.0 */
/* Shows and erases the last line of a terminal: for commands that follow a job, and for everything that prints
 * meanwhile. gaccctl's main thread. */
#include "status_line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ERASE "\r\033[K"
#define WIDTH 80 /* of a terminal that does not say */

static FILE *terminal; /* NULL: none */
static bool visible;

void status_line_open(FILE *out)
{
	const char *kind = getenv("TERM");

	if (kind && *kind && strcmp(kind, "dumb") != 0 && isatty(fileno(out)) == 1)
		terminal = out;
}

bool status_line_is_open(void)
{
	return terminal != NULL;
}

bool status_line_is_visible(void)
{
	return visible;
}

void status_line_show(const char *text)
{
	struct winsize size;
	int width = WIDTH;

	if (!terminal)
		return;
	if (!ioctl(fileno(terminal), TIOCGWINSZ, &size) && size.ws_col > 1)
		width = size.ws_col;
	fprintf(terminal, ERASE "%.*s", width - 1, text);
	fflush(terminal);
	visible = true;
}

void status_line_clear(void)
{
	if (!visible)
		return;
	fputs(ERASE, terminal);
	fflush(terminal);
	visible = false;
}
